"""The real program with --data. tests/api/data_evaluation_test.py tests what it runs."""

import json
import re

import pytest

from tests.data import data_sets
from tests.scripts.data_test import run


def test_help_lists_the_flags_of_data():
    ended = run('evaluate', '--data=x', '--help')
    assert (ended.returncode, ended.stderr) == (0, '')
    for flag in ('data', 'policy', 'gamma', 'output'):
        assert f'  --{flag}\n' in ended.stdout
    assert '--gin_file' not in ended.stdout.replace('a gin file', '')
    assert '--data=DIR' in run('evaluate', '--help').stdout


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (('--data=x',), 'got no --root_dir; need a directory'),
        (('--root_dir=/tmp/no_run', '--data='), 'got an empty --data; need a directory of episodes'),
        (('--root_dir=/tmp/no_run', '--data=x', '--gamma=2'), 'got a wrong flag: flag --gamma=2'),
        (('--root_dir=/tmp/no_run', '--data=x', '--gamma=nan'), 'got --gamma=nan; need a number from 0 to 1'),
        (('--root_dir=/tmp/no_run', '--data=x', '--gin_file=dqn_cartpole'), 'got a wrong flag: Unknown command line'),
    ],
)
def test_user_errors_take_one_line(arguments, message):
    ended = run('evaluate', *arguments)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(f'tflearn-evaluate: error: {message}')
    assert 'Traceback' not in ended.stderr


@pytest.mark.slow
def test_evaluates_on_data(tmp_path):
    flags = (f'--root_dir={tmp_path / "run"}', '--gin_file=dqn_cartpole')
    trained = run('synchronous', *flags, '--gin_bindings=train.StopConditions.num_train_steps=10')
    assert trained.returncode == 0, trained.stderr
    recorded = run(
        'data', 'record', *flags, f'--output={tmp_path / "data"}', '--episodes=40', '--policy=random',
        '--log_probabilities',
    )  # fmt: skip
    assert recorded.returncode == 0, recorded.stderr
    ended = run(
        'evaluate', flags[0], f'--data={tmp_path / "data"}', f'--output={tmp_path / "found.json"}', '--horizon=4',
        '--policy=raw_policy',
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert re.search(r'^weighted IS +4  \[4, 4\]$', ended.stdout, re.MULTILINE)
    assert json.loads((tmp_path / 'found.json').read_text())['behaviour'] == 'recorded'


def test_data_of_another_kind_is_refused(tmp_path):
    data_sets.write(tmp_path / 'data')
    ended = run('evaluate', f'--root_dir={tmp_path}', f'--data={tmp_path / "data"}')
    assert ended.returncode == 2
    assert 'tflearn-evaluate: error: got no policy in' in ended.stderr
