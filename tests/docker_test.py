"""The image and the development container: what their files name is there. The image itself is not built here."""

import fnmatch
import json
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = pathlib.Path(__file__).resolve().parents[1]
TEXT = (ROOT / 'docker' / 'Dockerfile').read_text(encoding='utf-8')
SETUP = (ROOT / 'setup.py').read_text(encoding='utf-8')
CONTAINER = json.loads((ROOT / '.devcontainer' / 'devcontainer.json').read_text(encoding='utf-8'))
EXTRAS = set(re.findall(r"^    '([\w-]+)': \[", SETUP, re.MULTILINE))
# An instruction and its arguments, of Docker's reference; none of the others is needed here.
INSTRUCTIONS = [
    tuple(line.split(maxsplit=1))
    for line in re.sub(r'\\\n\s*|^#.*\n', '', TEXT, flags=re.MULTILINE).splitlines()
    if line
]
ARGUMENTS = dict(text.split('=') for name, text in INSTRUCTIONS if name == 'ARG')


def _of(name: str) -> list[str]:
    return [text for instruction, text in INSTRUCTIONS if instruction == name]


def _copied() -> list[str]:
    """What is copied from the checkout."""
    return [source for text in _of('COPY') if '--from' not in text for source in text.split()[:-1]]


def test_the_instructions_are_known_and_in_order():
    known = {'ARG', 'FROM', 'ENV', 'RUN', 'WORKDIR', 'COPY', 'USER', 'VOLUME', 'EXPOSE', 'CMD'}
    assert {name for name, _ in INSTRUCTIONS} <= known
    names = [name for name, _ in INSTRUCTIONS]
    assert names.index('FROM') == 1 and names[-1] == 'CMD'
    assert names.index('USER') > max(i for i, name in enumerate(names) if name == 'RUN')
    user = _of('USER')[0]
    assert user == '1000', 'Kubernetes refuses a name where runAsNonRoot is asked for'
    assert f'useradd --create-home --uid {user} {CONTAINER["remoteUser"]}' in TEXT
    assert re.search(r'pip install uv==\d+\.\d+\.\d+ ', TEXT)
    assert TEXT.index('COPY tflearn/ ') > TEXT.index('--constraint'), 'a change of the code installs no library again'


def test_the_ports_are_those_of_the_manifests():
    template = yaml.safe_load((ROOT / 'tflearn/extensions/clusters/kubernetes.yaml').read_text(encoding='utf-8'))
    parts = [template['parts'][name]['container']['ports'] for name in ('serve', 'scraped')]
    ports = {port['containerPort'] for each in parts for port in each}
    ports |= {port['number'] for port in template['ports']['replay_server'].values()}
    assert {int(port) for port in _of('EXPOSE')[0].split()} == ports


@pytest.mark.parametrize('command', _of('RUN'))
def test_shell_can_read_the_commands(command):
    assert subprocess.run(['bash', '-n', '-c', command], check=False, timeout=60).returncode == 0


def test_what_is_copied_is_there_and_not_ignored():
    lines = (ROOT / '.dockerignore').read_text(encoding='utf-8').splitlines()
    rules = [line for line in lines if line and not line.startswith('#')]
    for source in (item.rstrip('/') for item in _copied()):
        assert (ROOT / source).exists(), source
        ignored = False
        for rule in rules:
            if any(fnmatch.fnmatch(each, rule.removeprefix('!')) for each in (source, source.partition('/')[0])):
                ignored = not rule.startswith('!')
        assert not ignored, source
    assert rules[0] == '*', 'nothing else goes to the daemon: no .git, no runs'
    packaged = set(re.findall(r"'(tflearn|scripts|gin)'", SETUP))
    assert packaged <= {source.rstrip('/') for source in _copied()}


def test_the_versions_are_those_of_setup_py():
    needed = SpecifierSet(tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['requires-python'])
    assert needed.contains(f'{ARGUMENTS["PYTHON"]}.0') and needed.contains(f'{CONTAINER["build"]["args"]["PYTHON"]}.0')
    assert _of('FROM') and all(text.startswith('python:${PYTHON}-slim') for text in _of('FROM'))
    named = [*re.findall(r'EXTRAS=([\w,-]+)', TEXT), CONTAINER['build']['args']['EXTRAS']]
    assert {extra for text in named for extra in text.split(',')} <= EXTRAS
    assert any('gpu' in text for text in named)


@pytest.mark.parametrize(('version', 'lane'), [((3, 11), 'classic'), ((3, 12), 'current'), ((3, 13), 'current')])
def test_the_python_decides_the_lane(tmp_path, version, lane):
    """The instruction that installs, with programs in the places of python and uv that print what they are given."""
    (command,) = [command for command in _of('RUN') if 'uv pip install' in command and 'lane=' in command]
    given = f'import sys; sys.version_info = {version}; exec(sys.argv[2])'
    for name, program in (('python', f'exec {sys.executable} -c "{given}" "$@"'), ('uv', 'printf "%s\\n" "$@"')):
        (tmp_path / name).write_text(f'#!/bin/sh\n{program}\n')
        (tmp_path / name).chmod(0o755)
    environment = {'PATH': f'{tmp_path}:/usr/bin:/bin', 'EXTRAS': 'serving,mujoco'}
    done = subprocess.run(
        ['sh', '-c', command], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    words = done.stdout.split()
    assert words[:2] == ['pip', 'install'] and words[-1] == '.[serving,mujoco]'
    files = [word for word in words if word.startswith('requirements/')]
    assert all((ROOT / file).exists() for file in files)
    constraints = [f'requirements/{lane}/lock.txt', f'requirements/{lane}/gpu.txt']
    assert files == [*constraints, *(['requirements/current/overrides.txt'] if lane == 'current' else [])]


def test_the_command_is_one_of_ours():
    program, *flags = json.loads(_of('CMD')[0])
    assert (ROOT / 'scripts' / f'{program.removeprefix("tflearn-")}.py').exists()
    defined = (ROOT / 'scripts' / 'flags.toml').read_text(encoding='utf-8')
    assert all(f'\n{re.match("--([a-z_]+)=", flag)[1]} = ' in defined for flag in flags)
    assert dict(flag.split('=') for flag in flags)['--root_dir'].startswith('runs/')
    assert _of('VOLUME') == [f'{_of("WORKDIR")[-1]}/runs']


def test_the_development_container_is_made_of_the_image():
    build = CONTAINER['build']
    folder = ROOT / '.devcontainer'
    assert (folder / build['dockerfile']).resolve() == ROOT / 'docker' / 'Dockerfile'
    assert (folder / build['context']).resolve() == ROOT
    assert set(build['args']) <= set(ARGUMENTS)
    python = CONTAINER['customizations']['vscode']['settings']['python.defaultInterpreterPath']
    assert f'python -m venv {python.removesuffix("/bin/python")}' in TEXT
