"""Every command in the documents is parsed by its program."""

import functools
import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest
import tensorflow as tf

from tests.testing import docs_blocks
from tests.testing.docs_blocks import BLOCKS, COMMANDS, JOBS, OURS, ROOT
from tflearn.config import files, preview

# Programs whose command lines are not checked, and why.
UNCHECKED = {
    'openssl': 'tests/replay/tunnel_test.py runs the commands of security.md',
    'stunnel': 'tests/replay/tunnel_test.py runs it where it is installed',
    'curl': 'tests/environments/external_server_test.py runs the commands of the page',
    'docker': 'no Docker daemon runs where the tests run; tests/docker_test.py checks the files',
    'tensorflow_model_server': 'TensorFlow Serving is in no Python package',
}

OTHERS = [(place, words) for place, words in COMMANDS if words not in [ours for _, _, ours in OURS]]


# Parses each command by its program, which then shows its help; in a fork of one small process.
PARSE = """
import importlib, io, json, os, sys
commands = json.load(sys.stdin)
for name in {'job_flags', 'job_process', *(program for program, _ in commands)}:
    importlib.import_module(f'scripts.{name}')
for program, arguments in commands:
    if os.fork() == 0:
        status, sys.argv, sys.stderr = 0, [program, *arguments, '--help'], io.StringIO()
        try:
            sys.stdout = io.StringIO()
            importlib.import_module(f'scripts.{program}').main()
        except SystemExit as exit:
            status = exit.code
        print(json.dumps([status, sys.stderr.getvalue()]), file=sys.__stdout__, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope='module')
def parsed() -> dict[str, tuple[int, str]]:
    """Exit status and error output by page and line."""
    commands = json.dumps([[program, words[1:]] for _, program, words in OURS])
    done = subprocess.run(
        [sys.executable, '-c', PARSE], input=commands, cwd=ROOT, text=True, capture_output=True, timeout=250, check=True
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    return {place: result for (place, _, _), result in zip(OURS, results, strict=True)}


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
    """A folder with the files of the documents."""
    folder = tmp_path_factory.mktemp('docs')
    for block in BLOCKS:
        if block.file_name:
            (folder / block.file_name).write_text(block.text, encoding='utf-8')
    return folder


@functools.cache
def _check(folder, gin_file, bindings):
    with docs_blocks.working_in(folder):
        preview.check(files.resolve(gin_file), bindings, JOBS)


@pytest.mark.parametrize(('place', 'program', 'words'), OURS, ids=[f'{item[0]}-{item[1]}' for item in OURS])
def test_our_commands(parsed, folder, place, program, words):
    assert parsed[place] == [0, '']
    flags = dict(word.removeprefix('--').split('=', 1) for word in words[1:] if word.startswith('--') and '=' in word)
    if program in ('replay_server', 'collect', 'train', 'synchronous', 'evaluate', 'launch'):
        bindings = tuple(word.split('=', 1)[1] for word in words if word.startswith('--gin_bindings='))
        _check(folder, flags.get('gin_file', 'dqn_cartpole'), bindings)


@pytest.mark.parametrize(('place', 'words'), OTHERS, ids=[f'{item[0]}-{item[1][0]}' for item in OTHERS])
def test_commands_of_others(place, words):
    program = pathlib.Path(words[0]).name
    if words[0].removeprefix('./').startswith('scripts/'):
        assert (ROOT / words[0]).stat().st_mode & 0o111
        assert [word for word in words[1:] if '/' in word and not (ROOT / word).exists()] == []
    elif program in ('vulture', 'radon'):
        assert importlib.util.find_spec(program)
    elif program in ('python', 'python3.13') and words[1] == '-m':
        assert importlib.util.find_spec(words[2])
    elif program == 'python':
        text = (ROOT / words[1]).read_text(encoding='utf-8')
        assert [word for word in words[2:] if f"'{word.partition('=')[0]}'" not in text] == []
    elif program == 'saved_model_cli':
        text = (pathlib.Path(tf.__spec__.origin).parent / 'python' / 'tools' / 'saved_model_cli.py').read_text('utf-8')
        named = [word.removeprefix('--') for i, word in enumerate(words) if i == 1 or word.startswith('--')]
        assert [name for name in named if f"'{name}'" not in text and f"'--{name}'" not in text] == []
    elif program in ('pip', 'uv'):  # tests/clean_install_test.py runs them
        if words[:2] == ['uv', 'venv']:
            return
        named = {extra for word in words for extra in re.findall(r'^\.\[([\w,-]+)\]$', word)}
        assert 'install' in words[1:3] and named <= set(
            re.findall(r"^    '([\w-]+)': \[", (ROOT / 'setup.py').read_text(), re.M)
        )
        assert [word for word in words if word.endswith('.txt') and not (ROOT / word).exists()] == []
    else:
        assert program in UNCHECKED


def test_exceptions_are_needed():
    assert set(UNCHECKED) <= {pathlib.Path(words[0]).name for _, words in OTHERS}
