"""What users install: the wheel with its gin files and console commands, the lock files, the two README commands."""

import ast
import contextlib
import email
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
from packaging.requirements import Requirement

import tflearn
from tests.architecture import owner_pages, source_tree
from tests.testing import console_programs
from tests.testing.console_programs import PROGRAMS
from tflearn.core import extras

ROOT = pathlib.Path(__file__).resolve().parents[1]
OWNER = ROOT / 'owner.toml'
EXTRAS = (
    *('mujoco', 'atari', 'minatar', 'box2d', 'envpool', 'tasks', 'dm-control', 'video', 'minari', 'rlds', 'stores'),
    *('gpu', 'all'),
)
LANES = {'classic': ('3.11',), 'current': ('3.12', '3.13')}  # and their versions of Python
LOCK_FILES = [(name, lane) for lane in LANES for name in ('lock', *EXTRAS) if (name, lane) != ('tasks', 'classic')]
LOCK_FILES.append(('lock', 'tpu'))
LOCKED_EXTRAS = ('clusters', 'dev', 'experiments', 'games', 'onnx', 'product', 'serving', 'valkey')  # in lock.txt
# What setup.py, the shell programs and the lock files may not name, for they are the user's choice. (Spelt in parts, so
# that this file does not name them either.)
REGISTRY = re.compile(r'py' r'pi\.org|python' r'hosted|index' r'-url|--find' r'-links|debian' r'\.org')


def run(*command: str | os.PathLike[str], **options) -> subprocess.CompletedProcess[str]:
    """Runs `command` with a deadline; a failure shows what it printed."""
    return subprocess.run(command, text=True, capture_output=True, timeout=120, **options)


@pytest.fixture(scope='module')
def wheel(tmp_path_factory) -> pathlib.Path:
    """The wheel, built from a copy of the checkout as a clone would have it."""
    folder = tmp_path_factory.mktemp('wheel')
    copy = folder / 'checkout'
    ignore = shutil.ignore_patterns('.*', 'runs', 'build', '*.egg-info', '__pycache__')
    shutil.copytree(ROOT, copy, ignore=ignore)
    options = ('--no-deps', '--no-build-isolation', '--no-index', '--wheel-dir', folder)
    result = run(sys.executable, '-m', 'pip', '--disable-pip-version-check', 'wheel', *options, copy)
    assert result.returncode == 0, result.stdout + result.stderr
    return next(folder.glob('*.whl'))


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory) -> pathlib.Path:
    """A folder that the wheel is installed into."""
    folder = tmp_path_factory.mktemp('installed')
    options = ('--no-deps', '--no-index', '--target', folder)
    result = run(sys.executable, '-m', 'pip', '--disable-pip-version-check', 'install', *options, wheel)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def metadata(wheel: pathlib.Path) -> email.message.Message:
    """Returns the fields of the wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith('.dist-info/METADATA'))
        return email.message_from_bytes(archive.read(name))


def locked(name: str, lane: str = 'classic') -> list[Requirement]:
    """Returns the lines of requirements/<lane>/<name>.txt."""
    lines = (ROOT / 'requirements' / lane / f'{name}.txt').read_text(encoding='utf-8').splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.strip().startswith('#')]


def test_the_wheel_holds_the_package_the_programs_and_the_gin_files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if '.dist-info/' not in name}
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / 'tflearn').rglob('*.py')}
    programs = {f'tflearn_scripts/{path.name}' for path in (ROOT / 'scripts').glob('*.py')}
    gin_files = {f'tflearn_gin/{path.relative_to(ROOT / "gin").as_posix()}' for path in (ROOT / 'gin').rglob('*.*')}
    data = {'tflearn/__init__.pyi', 'tflearn/py.typed', 'tflearn/extensions/clusters/kubernetes.yaml'}
    data |= {'tflearn/replay/valkey/functions.lua', 'tflearn_scripts/flags.toml'}
    data |= {'tflearn/extensions/experiments/report.html', 'tflearn/extensions/product/rounds.html'}
    data |= {f'tflearn/extensions/{name}/flags.toml' for name in ('experiments', 'product', 'serving')}
    assert names == package | programs | gin_files | data
    assert 'tflearn_gin/algorithms/dqn.gin' in names


def test_the_wheel_has_its_metadata(wheel):
    fields = metadata(wheel)
    version = re.search(r"__version__ = '(.+)'", (ROOT / 'tflearn' / '__init__.py').read_text(encoding='utf-8'))
    assert (fields['Name'], fields['Version']) == ('tflearn-agents', version.group(1))
    assert set(fields['Requires-Python'].split(',')) == {'>=3.11', '<3.14'}
    assert [pathlib.PurePath(name).name for name in fields.get_all('License-File')] == ['LICENSE']
    assert fields['License-Expression'] == 'Apache-2.0'
    versions = re.findall(r'Python :: (3\.\d+)$', '\n'.join(fields.get_all('Classifier')), re.M)
    assert versions == [version for lane in LANES.values() for version in lane]
    assert fields['Keywords'] and fields['Summary']
    filled = {name for name, value in tomllib.loads(OWNER.read_text(encoding='utf-8')).items() if '<' not in value}
    assert bool(fields['Project-URL']) == ('repository' in filled)
    assert bool(fields['Author-email'] or fields['Author']) == bool({'author', 'email'} & filled)
    text = fields.get_payload()
    code = r'(?s)```.*?```'
    assert '```mermaid' not in text and re.findall(r'\]\((?!https?://)', re.sub(code, '', text)) == []
    assert re.findall(code, text) == re.findall(code, (ROOT / 'README.md').read_text(encoding='utf-8'))


def test_the_extra_all_is_every_other_that_anyone_can_take(wheel):
    required: dict[str, set[str]] = {}
    for requirement in map(Requirement, metadata(wheel).get_all('Requires-Dist')):
        for extra in re.findall(r'extra == "([\w-]+)"', str(requirement.marker)):
            required.setdefault(extra, set()).add(re.sub(r' *(and)? *extra == .*', '', str(requirement)))
    others = [found for name, found in required.items() if name not in ('all', 'dev', 'gpu', 'tasks', 'minatar')]
    assert required['all'] == set().union(*others)
    assert not {'minatar', 'pytest'} & {Requirement(text.rstrip('; ')).name for text in required['all']}


def test_every_extra_is_resolved_by_the_check(wheel):
    lines = (ROOT / 'scripts' / 'check_extras').read_text(encoding='utf-8').splitlines()
    lists = ' '.join(line for line in lines if re.match(r'(all|resolved)=', line))
    resolved = set(re.findall(r'[a-z][\w-]+', lists))
    assert not {*metadata(wheel).get_all('Provides-Extra')} - resolved


PIP = """#!/bin/bash
case "$*" in
  *version_info*) echo 3.11 ;;
  '-m venv '*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *'pip install'*) echo "INFO: pip is still looking at multiple versions of ${*: -1}"; exit "${STATUS:-0}" ;;
esac
"""


@pytest.mark.parametrize('status', ['0', '1'])
def test_versions_that_pip_finds_after_many_fail_the_check(tmp_path, status):
    python = tmp_path / 'python3.11'
    python.write_text(PIP)
    python.chmod(0o755)
    variables = os.environ | {'TFLEARN_LANE': 'classic', 'TFLEARN_PYTHON': str(python), 'STATUS': status}
    done = run(ROOT / 'scripts' / 'check_extras', '--resolve', 'serving', env=variables)
    assert done.returncode == 1 and re.search('serving +FAILED', done.stdout), done.stdout + done.stderr
    assert 'still looking at multiple versions of .[serving]' in done.stderr
    done = run(ROOT / 'scripts' / 'check_extras', '--resolve', 'serving,toys', env=variables)
    assert done.returncode == 2 and 'error: got toys; need some of' in done.stderr


def test_pages_with_the_owners_name_are_made_from_one_file():
    assert {name: (ROOT / name).read_text(encoding='utf-8') for name in owner_pages.pages()} == owner_pages.pages()


def test_extras_can_be_named_to_every_pip(wheel):
    """pip before 23.3 does not normalize the names of extras: what the metadata spell is what users have to write."""
    assert set(metadata(wheel).get_all('Provides-Extra')) == {*EXTRAS, *LOCKED_EXTRAS, 'tf-agents'}
    named = f'{wheel}[{",".join([*EXTRAS, *LOCKED_EXTRAS])}]'
    result = run(sys.executable, '-m', 'pip', 'install', '--dry-run', '--no-index', named)
    assert 'does not provide the extra' not in result.stdout + result.stderr
    assert result.returncode == 0 or 'extra == ' in result.stderr, 'it looks for what the extras require'


def test_hints_name_what_setup_py_requires(wheel, installed):
    required: dict[str, set[str]] = {}
    for requirement in map(Requirement, metadata(wheel).get_all('Requires-Dist')):
        if requirement.marker:
            extra = str(requirement.marker).rpartition(' == ')[2].strip('"')
            required.setdefault(extra, set()).add(
                f'{requirement.name}{sorted(requirement.extras)}{requirement.specifier}'
            )
    program = 'import json; from tflearn.core import extras; each = extras._requirements; '
    program += 'print(json.dumps({extra: each(extra) for extra in extras._EXTRAS.values()}))'
    printed = run(sys.executable, '-c', program, cwd=installed, env={**os.environ, 'PYTHONPATH': str(installed)})
    for extra, texts in json.loads(printed.stdout).items():
        hinted = {f'{item.name}{sorted(item.extras)}{item.specifier}' for item in map(Requirement, texts)}
        assert hinted == required[extra]
    assert extras.install_command('ale_py.roms') == "pip install 'ale-py>=0.11' (the extra atari)"
    assert '(the extra mujoco)' in extras.install_command('imageio'), 'gymnasium asks for it, beside mujoco'
    assert extras.install_command('numpy') is None


@pytest.mark.parametrize('program', [*PROGRAMS, 'synchronous', 'loop'])
def test_console_commands_work_outside_the_checkout(installed, tmp_path, program):
    command, *verb = console_programs.name(program).split()
    result = run(
        installed / 'bin' / command, *verb, '--help', cwd=tmp_path, env={**os.environ, 'PYTHONPATH': str(installed)}
    )
    assert result.stdout.startswith(f'{console_programs.name(program)}: '), result.stdout + result.stderr
    assert '\n  --help\n' in result.stdout


def test_the_wheel_has_a_command_for_each_program(installed):
    names = {path.name for path in (installed / 'bin').iterdir()}
    assert names == {'tflearn', *map(console_programs.name, PROGRAMS)}


@pytest.mark.parametrize('name', ['tflearn', 'tflearn-train'])
def test_programs_show_their_version(installed, tmp_path, name):
    result = run(installed / 'bin' / name, '--version', cwd=tmp_path, env={**os.environ, 'PYTHONPATH': str(installed)})
    python, tensorflow = platform.python_version(), importlib.metadata.version('tensorflow')
    expected = f'{name} {tflearn.__version__} (Python {python}, tensorflow {tensorflow}, '
    assert (result.returncode, result.stderr) == (0, '') and result.stdout.startswith(expected)


def test_gin_files_are_found_outside_the_checkout(installed, tmp_path):
    program = 'from tflearn.config import files; print(files.resolve("algorithms/dqn"))'
    result = run(sys.executable, '-c', program, cwd=tmp_path, env={**os.environ, 'PYTHONPATH': str(installed)})
    assert pathlib.Path(result.stdout.strip()) == installed / 'tflearn_gin' / 'algorithms' / 'dqn.gin', result.stderr


def test_what_the_code_imports_is_declared(wheel):
    declared = {Requirement(line).name for line in metadata(wheel).get_all('Requires-Dist')}
    modules = (
        {name.lower().replace('-', '_') for name in declared} | {'tflearn', 'scripts'} | set(sys.stdlib_module_names)
    )
    modules |= {'grpc_health', 'tensorflow_serving'}  # Of an extra, where it is not installed.
    modules |= {'ray', 'jaxlib'}  # `ray_driver` and `tpu_compiler` run in a Python that has it.
    for name in declared:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # An extra's.
            modules |= {file.parts[0].removesuffix('.py') for file in importlib.metadata.files(name) or ()}
    undeclared = [
        f'{file.at(line)}: got an import of {name}; need it in setup.py; add it and run scripts/lock'
        for file in source_tree.read(ROOT)
        for name, line in file.imports
        if file.parts[0] in ('tflearn', 'scripts') and name.split('.')[0] not in modules
    ]
    assert not undeclared, '\n'.join(undeclared)


@pytest.mark.parametrize(('name', 'lane'), LOCK_FILES)
def test_locked_versions_are_exact(name, lane):
    lines = locked(name, lane)
    assert lines and not [str(line) for line in lines if not re.fullmatch(r'==[\w.]+', str(line.specifier)) or line.url]


@pytest.mark.parametrize(('name', 'lane'), LOCK_FILES)
def test_locked_versions_have_hashes(name, lane):
    text = (ROOT / 'requirements' / lane / 'hashed' / f'{name}.txt').read_text(encoding='utf-8')
    blocks = re.findall(r'^[^\s#].*(?:\n .*)*', text, re.M)
    assert [Requirement(block.splitlines()[0].rstrip(' \\')) for block in blocks] == locked(name, lane)
    assert not [block for block in blocks if not re.search(r'--hash=sha256:[0-9a-f]{64}\b', block)]


@pytest.mark.parametrize('extra', [*LOCKED_EXTRAS, *EXTRAS])
@pytest.mark.parametrize(
    ('lane', 'python_version'), [(lane, each) for lane in LANES for each in LANES[lane]] + [('tpu', '3.12')]
)
def test_the_lock_fits_setup_py(wheel, extra, lane, python_version):
    if lane == 'tpu' and extra not in LOCKED_EXTRAS:
        pytest.skip('the lane has no other extras')
    full_version = f'{python_version}.9'
    environment = {
        'python_version': python_version,
        'python_full_version': full_version,
        'extra': extra,
    }
    lines = locked('lock', lane) + (locked(extra, lane) if (extra, lane) in LOCK_FILES else [])
    versions = {line.name: line.specifier for line in lines if not line.marker or line.marker.evaluate(environment)}
    for text in metadata(wheel).get_all('Requires-Dist'):
        requirement = Requirement(text)
        if not requirement.marker or requirement.marker.evaluate(environment):
            name = requirement.name.lower().replace('_', '-')
            name = 'tensorflow-tpu' if (name, lane) == ('tensorflow', 'tpu') else name
            assert name in versions, f'got no {name} in requirements/; run scripts/lock'
            version = str(versions[name]).removeprefix('==')
            assert requirement.specifier.contains(version), (
                f'got {name} {version}; need {requirement}; run scripts/lock'
            )


def test_the_bill_of_materials_lists_the_lock_and_named_extras():
    environment = {**os.environ, 'TFLEARN_LANE': 'classic'}
    bill = json.loads(run(ROOT / 'scripts' / 'sbom', 'video', env=environment).stdout)
    assert (bill['bomFormat'], bill['specVersion']) == ('CycloneDX', '1.5')
    wanted = [f'{line.name}{line.specifier}' for name in ('lock', 'video') for line in locked(name)]
    assert [f'{found["name"]}=={found["version"]}' for found in bill['components']] == wanted
    needs = {entry['ref']: entry['dependsOn'] for entry in bill['dependencies']}
    references = [found['bom-ref'] for found in bill['components']]
    assert set(needs) == set(references) and {each for found in needs.values() for each in found} <= set(references)
    (reverb,) = [reference for reference in references if '/dm-reverb@' in reference]
    assert any('/portpicker@' in each for each in needs[reverb])
    hashes = {found['name']: found['hashes'] for found in bill['components']}
    (line,) = [line for line in locked('lock') if line.name == 'dm-reverb']
    text = (ROOT / 'requirements' / 'classic' / 'hashed' / 'lock.txt').read_text()
    assert hashes[line.name] and all(f'sha256:{each["content"]}' in text for each in hashes[line.name])
    licenses = {found['name']: found.get('licenses') for found in bill['components']}
    assert licenses['tensorflow'] == [{'license': {'name': 'Apache Software License'}}]
    assert sum(bool(found) for found in licenses.values()) > 100
    wrong = run(ROOT / 'scripts' / 'sbom', 'none')
    assert wrong.returncode == 2 and wrong.stderr.startswith('scripts/sbom: error: got none; need some of all')


def test_no_file_names_a_registry():
    shown = [
        path for path in ROOT.rglob('*') if not re.match(r'\.git/|\.venv|runs/', path.relative_to(ROOT).as_posix())
    ]
    texts = [
        path for path in shown if path.is_file() and path.suffix not in ('.png', '.pyc') and '_cache' not in str(path)
    ]
    assert texts
    assert not [str(path) for path in texts if REGISTRY.search(path.read_text(encoding='utf-8', errors='replace'))]


def test_a_wrong_python_is_reported_in_one_line():
    # The interpreter's own number, replaced before setup.py looks at it.
    program = 'import runpy, sys; sys.version_info = (3, 14, 1, "final", 0); runpy.run_path("setup.py")'
    result = run(sys.executable, '-c', program, cwd=ROOT)
    assert result.returncode == 1
    assert result.stderr == 'tflearn-agents: error: got Python 3.14; need 3.11, 3.12 or 3.13\n'


@pytest.mark.parametrize('job', ['train', '__main__'])  # what all import looks at it
def test_a_wrong_python_is_reported_before_a_program_imports_anything(job):
    program = f'import sys; sys.version_info = (3, 14, 1, "final", 0); import scripts.{job}'
    result = run(sys.executable, '-c', program, cwd=ROOT)
    assert result.returncode == 2
    assert result.stderr.startswith('tflearn: error: got Python 3.14; need 3.11 (with')
    assert result.stderr.count('\n') == 1


def test_setup_py_can_be_read_by_an_old_python():
    ast.parse((ROOT / 'setup.py').read_text(encoding='utf-8'), feature_version=(3, 6))


@pytest.mark.parametrize('command', ['quickstart', 'test', 'lock', 'check_extras', 'sbom', 'release'])
def test_help(command, tmp_path):
    result = run(ROOT / 'scripts' / command, '--help', cwd=tmp_path)
    assert result.returncode == 0 and result.stdout.startswith(f'usage: scripts/{command}'), result.stderr


@pytest.mark.parametrize('command', ['quickstart', 'test'])
def test_no_fitting_python_is_reported_in_one_line(command, tmp_path):
    environment = {**os.environ, 'TFLEARN_PYTHON': '/bin/false', 'TFLEARN_VENV': str(tmp_path / 'venv')}
    result = run(ROOT / 'scripts' / command, cwd=tmp_path, env=environment)
    assert result.returncode == 2
    assert result.stderr.startswith(
        f'scripts/{command}: error: got no Python 3.11 or 3.13 or 3.12 in TFLEARN_PYTHON=/bin/false'
    )
    assert result.stderr.count('\n') == 1


def test_a_folder_of_the_user_is_left_alone(tmp_path):
    (tmp_path / 'thesis.tex').write_text('years of work', encoding='utf-8')
    result = run(ROOT / 'scripts' / 'test', env={**os.environ, 'TFLEARN_VENV': str(tmp_path)})
    assert result.returncode == 2 and 'which holds something else' in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ['thesis.tex']


@pytest.fixture
def ready_venv(tmp_path) -> dict[str, str]:
    """An environment made by hand, with the right stamp and a tflearn-launch that prints its arguments."""
    venv = tmp_path / 'venv'
    assert run(sys.executable, '-m', 'venv', '--without-pip', venv).returncode == 0
    (venv / 'bin' / 'tflearn-launch').write_text('#!/bin/sh\necho "$@"\n', encoding='utf-8')
    (venv / 'bin' / 'tflearn-launch').chmod(0o755)
    environment = {**os.environ, 'TFLEARN_VENV': str(venv), 'TFLEARN_PYTHON': ''}
    program = f'source {ROOT}/scripts/venv.sh; wanted_stamp >"$stamp"'
    assert run('bash', '-euc', program, env=environment).returncode == 0
    return environment


@pytest.mark.parametrize(
    ('arguments', 'expected'),
    [
        ('', '--gin_file=dqn_cartpole --root_dir=runs/dqn_cartpole'),
        ('--root_dir=x', '--gin_file=dqn_cartpole --root_dir=x'),
        ('--gin_file=dqn_acrobot', '--root_dir=runs/dqn_acrobot --gin_file=dqn_acrobot'),
        ('--gin_file my/own.gin', '--root_dir=runs/own --gin_file my/own.gin'),
        ('--root_dir x --gin_file=y', '--root_dir x --gin_file=y'),
    ],
)
def test_quickstart_fills_in_what_is_not_given(ready_venv, tmp_path, arguments, expected):
    result = run(ROOT / 'scripts' / 'quickstart', *arguments.split(), env=ready_venv, cwd=tmp_path)
    assert (result.stdout.strip(), result.stderr) == (expected, '')


def test_bazel_reads_no_environment():
    lanes = {path.name for path in (ROOT / 'requirements').iterdir() if path.is_dir()} - {'tpu_compiler'}
    assert {'.venv', *(f'.venv-{lane}' for lane in lanes)} <= {*(ROOT / '.bazelignore').read_text().split()}
