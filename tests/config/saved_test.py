"""The configuration beside the results: the newest one and all older ones."""

import json

import pytest

from tflearn.config import job_config
from tflearn.config.going_on import Effective
from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import RunDir


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path)


def files(run_dir):
    return {path.name: path.read_text() for path in run_dir.root.iterdir() if path.suffix != '.json'}


def save(run_dir, text):
    values = dict(line.split(' = ') for line in text.splitlines())
    configured = job_config.ConfiguredJob(None, {}, [], text, Effective({}, values))
    job_config.save(run_dir, configured)


def test_writes_the_first_configuration(run_dir):
    save(run_dir, 'a = 1\n')
    save(run_dir, 'a = 1\n')
    assert files(run_dir) == {'config.gin': 'a = 1\n'}


def test_logs_a_change_and_keeps_older_configurations(run_dir, caplog):
    caplog.set_level('INFO')
    for text in ('a = 1\nb = 1\n', 'a = 2\nb = 1\n', 'a = 3\nb = 1\n'):
        save(run_dir, text)
    assert files(run_dir) == {
        'config-1.gin': 'a = 1\nb = 1\n',
        'config-2.gin': 'a = 2\nb = 1\n',
        'config.gin': 'a = 3\nb = 1\n',
    }
    assert '-a = 1\n+a = 2' in caplog.text
    assert 'b = 1' not in caplog.text
    assert json.loads(run_dir.config_values.read_text()) == {'a': '3', 'b': '1'}


def test_finished_run_keeps_its_configuration(run_dir):
    save(run_dir, 'a = 1\n')
    run_dir.done.touch()
    save(run_dir, 'a = 2\n')
    assert files(run_dir) == {'config.gin': 'a = 1\n', 'DONE': ''}


@pytest.mark.parametrize('content', [b'\xff', None])
def test_names_a_configuration_that_cannot_be_read(run_dir, content):
    run_dir.config.mkdir() if content is None else run_dir.config.write_bytes(content)
    with pytest.raises(UserValueError, match='got .*config.gin, which cannot be read .*; remove it'):
        save(run_dir, 'a = 1\n')
