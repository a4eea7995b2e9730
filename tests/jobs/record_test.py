"""The record job: exported policies and random ones, in real environments."""

import functools
import threading

import numpy as np
import pytest

from tests.testing import jobs
from tflearn.data import columns, writer
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.environments import gymnasium_env
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.record import record
from tflearn.jobs.synchronous import synchronous
from tflearn.policies import loader
from tflearn.run_dir import RunDir, write_json

CARTPOLE = functools.partial(gymnasium_env.make, 'CartPole-v1')


def run_record(run_dir, output, **settings):
    settings = {'num_episodes': 6, 'num_environments': 2, **settings}
    record(run_dir=run_dir, stop=threading.Event(), make_environment=CARTPOLE, output=str(output), **settings)
    return list(EpisodeReader(Dataset([str(output)])).episodes())


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory):
    """A run of few steps, with exported policies of two train steps."""
    run = jobs.SmallRun(tmp_path_factory.mktemp('run'))
    settings = {'num_environments': 2, 'export_interval_steps': 20, 'num_train_steps': 20, 'seed': 1}
    given = {'run_dir': run.dir, 'stop': threading.Event(), 'exports': ExportOptions(('greedy_policy',)), **settings}
    synchronous(**jobs.job_arguments(synchronous, {**run.factories(), **given}))
    return run.dir


def test_the_exported_policy_acts(run_dir, tmp_path):
    episodes = run_record(run_dir, tmp_path / 'data')
    assert 6 <= len(episodes) <= 7
    policy = loader.load(run_dir.policy('greedy_policy') / '20')
    for episode in episodes:
        assert (episode['step_type'][0], episode['step_type'][-1]) == (0, 2)
        taken = episode['step_type'] != 2
        assert episode['reward'].sum() == np.count_nonzero(taken)
        specs = columns.read_specs(tmp_path / 'data')
        time_step = specs.time_step._replace(
            step_type=episode['step_type'],
            reward=np.zeros(len(taken), np.float32),
            discount=np.ones(len(taken), np.float32),
            observation=episode['observation'],
        )
        actions, _ = policy.action(time_step)
        np.testing.assert_array_equal(episode['action'][taken], actions[taken])
    assert columns.read_metadata(tmp_path / 'data')['train_step'] == 20


def test_a_finished_run_acts_with_its_result(run_dir, tmp_path):
    write_json(run_dir.done, {'policy': 'policies/greedy_policy/0'})
    try:
        run_record(run_dir, tmp_path / 'data', num_episodes=1)
    finally:
        run_dir.done.unlink()
    assert columns.read_metadata(tmp_path / 'data')['train_step'] == 0


def test_random_actions_need_no_run_and_a_second_call_continues(tmp_path):
    no_run = RunDir(tmp_path / 'run')
    first = run_record(no_run, tmp_path / 'data', policy='random')
    actions = np.concatenate([episode['action'] for episode in first])
    assert 0.2 < actions.mean() < 0.8
    assert len(run_record(no_run, tmp_path / 'data', policy='random')) == len(first)
    more = run_record(no_run, tmp_path / 'data', policy='random', num_episodes=12)
    assert 12 <= len(more) <= 13
    starts = {tuple(episode['observation'][0]) for episode in more}
    assert len(starts) == len(more), 'the second call did not repeat the episodes of the first'
    assert [shard.number for shard in writer.shards(tmp_path / 'data')] == [0, 1]


def test_epsilon_changes_some_actions(run_dir, tmp_path):
    episodes = run_record(run_dir, tmp_path / 'data', epsilon=0.5, num_episodes=10)
    assert columns.read_metadata(tmp_path / 'data')['epsilon'] == 0.5
    returns = {float(episode['reward'].sum()) for episode in episodes}
    assert len(returns) > 1


def test_mistakes_are_refused(run_dir, tmp_path):
    with pytest.raises(ValueError, match='got num_episodes=0; need at least 1'):
        run_record(run_dir, tmp_path / 'data', num_episodes=0)
    with pytest.raises(ValueError, match=r"got no policy in .*; need one .*, or policy='random'"):
        run_record(run_dir, tmp_path / 'data', policy='no_policy')
    with pytest.raises(FileNotFoundError, match='got no policy at .*7'):
        run_record(run_dir, tmp_path / 'data', train_step=7)
    pendulum = functools.partial(gymnasium_env.make, 'Pendulum-v1')
    with pytest.raises(ValueError, match='use the configuration that it was trained with'):
        record(
            run_dir=run_dir, stop=threading.Event(), make_environment=pendulum, output=str(tmp_path / 'data'),
            num_environments=2,
        )  # fmt: skip
    assert not writer.shards(tmp_path / 'data')
