"""Faults of an installation are reported in one line; imports drop only known noise."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.testing import forks
from tflearn.core import preflight


def test_accepts_this_installation():
    preflight.check()


HERE = sys.version_info[:2]


@pytest.mark.parametrize('version', [(3, 10), (3, 14)])
def test_rejects_another_python(version):
    with pytest.raises(ImportError, match=rf'got Python 3.{version[1]}; need 3.11 .*, 3.12 or 3.13 .*; use'):
        preflight.check(version)


def test_rejects_another_version():
    with pytest.raises(
        ImportError, match=r"got absl-py \S+ in .*; need absl-py 0.1.*; install it: .*'absl-py==0\.1\.\*'"
    ):
        preflight.check(HERE, {HERE: {'absl-py': '0.1'}})


def test_a_version_is_not_compared_by_its_digits_alone():
    with pytest.raises(ImportError, match='need gin-config 0'):
        preflight.check(HERE, {HERE: {'gin-config': '0.50'}})
    preflight.check(HERE, {HERE: {'gin-config': '0'}})
    preflight.check(HERE, {HERE: {'gin-config': '7|0'}})


def test_rejects_a_missing_package():
    with pytest.raises(ImportError, match='got no a-package-nobody-has in .*; need a-package-nobody-has 1'):
        preflight.check(HERE, {HERE: {'a-package-nobody-has': '1'}})


@pytest.fixture
def noisy_module(tmp_path, monkeypatch):
    """A module that prints a known and an unknown line while it is imported, as C++ code does."""
    name = f'noisy_module_{tmp_path.name}'
    (tmp_path / f'{name}.py').write_text(
        'import os, sys\n'
        r'os.write(2, b"E external: Unable to register cuDNN factory: Attempting\nsomething new\n")' + '\n'
        'print("Gym has been unmaintained since 2022", file=sys.stderr)\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv('TF_CPP_MIN_LOG_LEVEL', raising=False)
    yield name
    sys.modules.pop(name, None)


def test_drops_only_known_noise(noisy_module, capfd):
    preflight.import_quietly(noisy_module, 'a_module_that_nobody_has')
    assert noisy_module in sys.modules
    assert capfd.readouterr().err == 'something new\n'


def test_set_log_level_shows_all(noisy_module, capfd, monkeypatch):
    monkeypatch.setenv('TF_CPP_MIN_LOG_LEVEL', '0')
    preflight.import_quietly(noisy_module)
    assert 'cuDNN' in capfd.readouterr().err


@pytest.mark.parametrize('is_fork', [False, True])
def test_a_missing_gpu_is_no_error(tmp_path, is_fork):
    program = tmp_path / 'program.py'
    program.write_text(
        'from tflearn.core import preflight\n'
        'preflight.import_quietly("tensorflow")\n'
        'import tensorflow as tf\n'
        'print(tf.config.list_logical_devices("GPU"))\n'
    )
    environment = {**os.environ, 'PYTHONPATH': str(forks.CHECKOUT), 'CUDA_VISIBLE_DEVICES': '-1'}
    environment.pop('TF_CPP_MIN_LOG_LEVEL', None)
    if is_fork:
        ended = forks.run(str(program), env=environment, timeout=60)
    else:
        command = [sys.executable, str(program)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, '[]\n', '')


def test_failed_import_shows_its_output(tmp_path, monkeypatch, capfd):
    (tmp_path / 'failing_module.py').write_text('import os\nos.write(2, b"a hint\\n")\nraise OSError("no")\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(OSError, match='no'):
        preflight.import_quietly('failing_module')
    assert capfd.readouterr().err.endswith('a hint\n')


def test_a_log_handler_made_during_an_import_stays_usable(tmp_path):
    (tmp_path / 'logging_module.py').write_text('import logging\nhandler = logging.StreamHandler()\n')
    program = (
        'import logging\nfrom tflearn.core import preflight\npreflight.import_quietly("logging_module")\n'
        'import logging_module\nlogging.getLogger().addHandler(logging_module.handler)\nlogging.warning("still here")\n'
    )
    path = os.pathsep.join([str(tmp_path), str(pathlib.Path(__file__).parents[2])])
    environment = {**os.environ, 'PYTHONPATH': path}
    command = [sys.executable, '-c', program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr == 'still here\n'
