"""The real data programs. tests/data and tests/jobs test what they run."""

import os

import pytest

from tests.data import data_sets
from tests.testing import console_programs, forks
from tflearn.data.shards import find_shards

DEADLINE_SECS = 120.0
ENVIRONMENT = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1'}


def run(program, *arguments):
    return forks.run(*console_programs.words(program), *arguments, env=ENVIRONMENT, timeout=DEADLINE_SECS)


def test_record_is_called_by_its_name(tmp_path):
    ended = run(
        'data', 'record', '--episodes=3', '--steps=3', '--output=x', f'--root_dir={tmp_path}', '--gin_file=dqn_cartpole'
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith('tflearn data record: error: got --episodes=3 and --steps=3; need')


def test_recording_ends_after_the_steps_of_the_flag_or_the_gin_file(tmp_path):
    flags = (f'--root_dir={tmp_path}/run', '--gin_file=dqn_cartpole', '--policy=random', f'--output={tmp_path}/data')
    recorded = run('data', 'record', *flags, '--steps=50')
    assert recorded.returncode == 0, recorded.stderr
    num_steps = sum(shard.steps for shard in find_shards(tmp_path / 'data'))
    assert 50 <= num_steps < 300
    quota = (
        'from tflearn.jobs import record',
        'record.record.quota=@record.Quota()',
        f'record.Quota.num_steps={num_steps}',
    )
    again = run('data', 'record', *flags, *(f'--gin_bindings={binding}' for binding in quota))
    assert again.returncode == 0, again.stderr
    assert f'has {num_steps} environment steps already' in again.stderr


def test_training_on_files_needs_no_environment(tmp_path):
    """The packaged algorithms give every job the environment of the run, which is not bound."""
    data_sets.write(tmp_path / 'data', 60)
    flags = (f'--root_dir={tmp_path / "run"}', '--gin_file=algorithms/bc', f'--data={tmp_path / "data"}')
    ended = run('train_offline', *flags, '--gin_bindings=train.StopConditions.num_train_steps=2')
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / 'run' / 'policies' / 'greedy_policy' / '2').is_dir()


def test_filter(tmp_path):
    for name in 'ab':
        data_sets.write(tmp_path / name, 60, seed=ord(name))
    kept = run('data', 'filter', f'--data={tmp_path}/[ab]', f'--output={tmp_path}/c', '--max_episodes=40')
    assert (kept.returncode, kept.stderr) == (0, '')
    assert kept.stdout.startswith('40 episodes, ')


def test_describe(tmp_path):
    data_sets.write(tmp_path / 'data', 60, metadata={'policy': 'random'})
    ended = run('data', 'describe', f'--data={tmp_path}/*', f'--picture={tmp_path}/drawn.png')
    assert (ended.returncode, ended.stderr) == (0, '')
    assert 'observation: float32[2]' in ended.stdout
    assert (tmp_path / 'drawn.png').exists()


@pytest.mark.slow
def test_record_then_train(tmp_path):
    run_dir, data = tmp_path / 'run', tmp_path / 'data'
    flags = (f'--root_dir={run_dir}', '--gin_file=dqn_cartpole')
    recorded = run('data', 'record', *flags, f'--output={data}', '--episodes=40', '--policy=random')
    assert recorded.returncode == 0, recorded.stderr
    assert '40 episodes' in recorded.stderr
    trained = run('train_offline', *flags, f'--data={data}', '--gin_bindings=train.StopConditions.num_train_steps=200')
    assert trained.returncode == 0, trained.stderr
    assert (run_dir / 'policies' / 'greedy_policy' / '200').is_dir()
    wrong = run('train_offline', *flags, '--data=no_such_directory')
    assert wrong.returncode == 2
