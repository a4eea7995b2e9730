"""Episodes that are too short or too long for the experience's items: counted, warned of, refused where all are."""

import dataclasses
import functools

import gymnasium
import numpy as np
import pytest

import tflearn
from tests.testing.jobs import SmallRun, small_run  # noqa: F401 - a fixture
from tflearn.agents import dqn, td3
from tflearn.core.experience import BatchItems, Experience, Slicing, Uniform
from tflearn.environments import vector_env
from tflearn.jobs.collect import collect
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.train import train
from tflearn.networks.networks import NetworkOptions


class Short(gymnasium.Env):
    """Episodes of three steps, which a time limit ends."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, discrete=False):
        self.action_space = gymnasium.spaces.Discrete(2) if discrete else gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 3
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._left -= 1
        return np.zeros(2, np.float32), 1.0, False, self._left == 0, {}


def _train(tmp_path, slicing):
    network = NetworkOptions(fc_layer_params=(4,), critic_fc_layer_params=(4,))
    return tflearn.train(
        make_environment=functools.partial(vector_env.in_process, Short),
        make_agent=functools.partial(td3.make_agent, network=network),
        experience=Experience(slicing, Uniform(max_size=500, min_size=20, samples_per_insert=8.0), BatchItems(8)),
        num_train_steps=20,
        num_environments=2,
        num_episodes=1,
        export_interval_steps=20,
        exports=ExportOptions(('greedy_policy',)),
        root_dir=tmp_path,
    )


def test_episodes_that_are_all_shorter_than_n_steps_are_refused(tmp_path):
    with pytest.raises(
        ValueError,
        match=r'got 100 episodes, all of at most 3 steps without a sequence of 6 rows; need Slicing.sequence_length of '
        r'at most 4, or Slicing.pad_episodes=True for agents that leave boundary rows out \(all packaged ones but DQN',
    ):
        _train(tmp_path, Slicing(sequence_length=6))


def test_n_steps_end_with_padded_episodes(tmp_path):
    assert _train(tmp_path, Slicing(sequence_length=6, pad_episodes=True)).train_step == 20


def test_a_collector_ends_where_all_episodes_are_too_short(small_run, caplog):  # noqa: F811
    """Instead of the learner's waiting; the error is the collector's, so that a launcher ends the run with it."""
    experience = dataclasses.replace(SmallRun.experience, slicing=Slicing(sequence_length=6))
    given = {
        'make_environment': functools.partial(vector_env.in_process, functools.partial(Short, discrete=True)),
        'make_agent': functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=(4,))),
        'experience': experience,
    }
    small_run.start_replay(**given)
    small_run.start(train, num_train_steps=20, **given)
    with pytest.raises(ValueError, match='got 100 episodes, all of at most 3 steps without a sequence of 6 rows'):
        small_run.start(collect, num_environments=2, **given).join()
    assert 'of the steps are never trained on' in caplog.text
    assert small_run.status('collect_0')['unused_steps'] >= 297
