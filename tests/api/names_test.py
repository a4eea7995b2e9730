"""The public names of `tflearn`: importable, listed, typed, and loaded on first use."""

import importlib
import os
import pathlib
import subprocess
import sys

import pytest

import tflearn

CHECKOUT = pathlib.Path(__file__).parents[2]
BROUGHT_BY_EXTENSIONS = ('compare', 'train_policies')
USERS_PROGRAM = pathlib.Path(__file__).with_name('users_program.py')
STRICT = """
[mypy]
strict = True
python_version = 3.11
[mypy-tflearn.*]
follow_imports = silent
[mypy-tensorflow.*,tf_agents.*,absl.*,reverb.*,gin.*,google.*]
ignore_missing_imports = True
[mypy-gin.*]
follow_imports = skip
"""


def run(*arguments, path=CHECKOUT, **options):
    """Runs Python with `path` in front of its module path."""
    environment = {**os.environ, 'PYTHONPATH': str(path)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=240, check=False, **options)


@pytest.mark.parametrize(
    'name',
    [
        pytest.param(name, marks=pytest.mark.extensions if name in BROUGHT_BY_EXTENSIONS else ())
        for name in tflearn.__all__
    ],
)
def test_each_name_can_be_imported(name):
    assert callable(getattr(tflearn, name))
    assert getattr(tflearn, name) is getattr(importlib.import_module('tflearn'), name)


def test_they_are_listed_and_no_other_is_there():
    assert 15 <= len(tflearn.__all__) <= 35
    assert set(tflearn.__all__) <= set(dir(tflearn))
    with pytest.raises(AttributeError, match=r"no attribute 'Lerner'; it has .*Learner"):
        _ = tflearn.Lerner


def test_importing_it_loads_no_tensorflow():
    heavy = "{'tensorflow', 'numpy', 'reverb', 'gin', 'gymnasium', 'absl'} & sys.modules.keys()"
    done = run('-c', f'import sys, tflearn; dir(tflearn); assert not {heavy}, {heavy}')
    assert done.returncode == 0, done.stderr


def test_its_first_use_prints_none_of_tensorflows_lines(monkeypatch):
    monkeypatch.delenv('TF_CPP_MIN_LOG_LEVEL', raising=False)
    devices = 'import tensorflow as tf; tf.config.list_logical_devices()'
    for first in (
        'import tflearn; tflearn.train',
        'from tflearn.agents import dqn; import tflearn; tflearn.train',
        'import tflearn; from tflearn.environments import gymnasium_env; tflearn.evaluate',
    ):
        done = run('-c', f'{first}; {devices}')
        assert (done.returncode, done.stdout, done.stderr) == (0, '', ''), first


@pytest.mark.slow
def test_a_users_program_passes_a_strict_type_check(tmp_path):
    config = tmp_path / 'mypy.ini'
    config.write_text(STRICT)
    options = ('--config-file', config, '--cache-dir', CHECKOUT / '.mypy_cache' / 'strict')
    wrong = tmp_path / 'wrong.py'
    lines = 'tflearn.RunDir(3)', 'tflearn.Lerner', 'reveal_type(tflearn.load_policy)', 'tflearn.train(max_sec=3.0)'
    wrong.write_text('\n'.join(['import tflearn', *lines, 'tflearn.train(strategy=3)', '']))
    done = run('-m', 'mypy', *options, USERS_PROGRAM, wrong, cwd=tmp_path)
    lines = [line for line in done.stdout.splitlines() if not line.startswith('wrong.py:')]
    assert len(lines) == 1 and ' in 1 file (checked 2 source files)' in lines[0], done.stdout + done.stderr
    for text in (
        'wrong.py:2: error: Argument 1 to "RunDir"',
        'wrong.py:3: error: Module has no attribute "Lerner"',
        'wrong.py:5: error: Unexpected keyword argument "max_sec" for "train"; did you mean "max_secs"?',
        'wrong.py:6: error: Argument "strategy" to "train" has incompatible type "int"',
    ):
        assert text in done.stdout
    assert 'PolicyFunction"' in done.stdout
