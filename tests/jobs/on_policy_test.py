"""The jobs of a run with PPO, each in a thread of this process: the learner gets all items, and only new ones."""

import functools

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tflearn
from tests.testing import experiences, lanes
from tflearn.agents import impala, ppo
from tflearn.coordinator.client import Coordinator, Role
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing
from tflearn.core.waiting import wait_until
from tflearn.environments import gymnasium_env, vector_env
from tflearn.files.run_dir import read_json
from tflearn.jobs.collect import collect
from tflearn.jobs.train import train
from tflearn.learner.learner import LearnerOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.replay import backend
from tflearn.replay.storage import REPLAY

EXPERIENCE = Experience(
    slicing=Slicing(sequence_length=9, stride=8, cross_episodes=True),
    replay=Queue(max_size=8, max_policy_lag=2, versions_ahead=1, training=Iteration(num_epochs=2, minibatch_steps=12)),
    batch=BatchItems(4),
)


# So that no item is too old, however slow the machine is.
WITHOUT_DROPS = experiences.changed(EXPERIENCE, max_policy_lag=None)


@pytest.fixture
def on_policy_run(small_run):
    factories = {
        'make_environment': functools.partial(gymnasium_env.make, 'CartPole-v1'),
        'make_agent': functools.partial(ppo.make_agent, network=NetworkOptions(fc_layer_params=(8,))),
        'experience': EXPERIENCE,
    }
    small_run.factories = lambda: factories
    small_run.start_replay()
    return small_run


def _normalizer_count(run):
    reader = tf.train.load_checkpoint(str(run.dir.checkpoints))
    (name,) = [
        name
        for name in reader.get_variable_to_shape_map()
        if '_observation_normalizer/count/' in name and 'agent' in name
    ]
    return float(reader.get_tensor(name))


@pytest.mark.parametrize('ends', [(60,), pytest.param((60, 120), marks=pytest.mark.slow)])
def test_runs_to_the_end_and_can_be_continued(on_policy_run, ends):
    run, seen = on_policy_run, []
    given = {'publish_interval_steps': 1, 'export_interval_steps': 30}
    counts = []
    for num_train_steps in ends:
        collector = run.start(collect, num_environments=4)
        run.start(train, num_train_steps=num_train_steps, **given).join()
        collector.join()
        status = run.status('train')
        assert read_json(run.dir.train_result)['train_step'] == num_train_steps
        assert status['policy_version'] == num_train_steps // 6, 'after each iteration'
        # With what collectors have ahead one version, and one since this iteration; one row of each of the four
        # sequences is older by one, and the metric is that of a minibatch. What an end left in the queue comes on top.
        lag = 2 + 4 / 11 if num_train_steps == 60 else EXPERIENCE.replay.max_policy_lag + 1
        assert status['policy_lag'] <= lag + 1e-6, 'it is summed in float32'
        counts.append(_normalizer_count(run))
        seen.append(backend.counts(run.address)[REPLAY])
    # Ten iterations of 32 rows each, less those between two episodes.
    assert all(250 < count < 320 for count in np.diff([0, *counts]))
    samples = [counts.samples for counts in seen]
    # The items that the learner wanted when it ended, and those that collectors had made ahead.
    assert 40 <= samples[0] <= 40 + 2 * 4 + 4
    # What the end left in the queue made the rest too old; so much of it was dropped.
    assert all(more <= 40 + 3 * 4 + EXPERIENCE.replay.max_size for more in np.diff(samples))


def joined(run, name):
    """A job that the run's coordinator has taken in."""
    coordinator = Coordinator(run.coordinator, name)
    coordinator.join(Role('collect'), 60.0)
    return coordinator


def _inserts(run):
    return backend.counts(run.address)[REPLAY].inserts


@pytest.mark.slow
def test_four_collectors_together_make_as_many_items_as_one(on_policy_run):
    run, calls = on_policy_run, []
    names = [f'collect_{i}' for i in range(4)]
    given = {'experience': WITHOUT_DROPS}
    settings = {'num_environments': 2, **given}
    collectors = [run.start(collect, name=name, **settings) for name in names]
    coordinator = joined(run, 'watch')
    known = lambda: len(coordinator.credits(-1, 0.0)[1].shares) == 4  # noqa: E731

    def wait_for_all(result):
        calls.append(result.num_steps)
        if len(calls) == 1:
            wait_until(known, 'all collectors', 60)

    options = LearnerOptions(after_run=wait_for_all)
    given |= {'publish_interval_steps': 1, 'export_interval_steps': 90, 'options': options}
    run.start(train, num_train_steps=90, **given).join()
    for collector in collectors:
        collector.join()
    coordinator.close()
    assert run.status('train')['policy_version'] == 90 // 6
    assert 15 * 4 <= _inserts(run) <= 15 * 4 + 2 * 4 + 2
    steps = [run.status(name)['env_steps'] for name in names]
    assert min(steps) > 0


def test_rejects_agent_without_prepare(on_policy_run):
    with pytest.raises(ValueError, match='need an agent that prepares sequences for several epochs'):
        on_policy_run.start(train, num_train_steps=10, make_agent=impala.make_agent).join()


class Choice(gymnasium.Env):
    """The first action chooses: 30 with the last of 200 steps, or 0.1 with each of them, which is 20 in all."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self._step = self._choice = 0
        return self._observation(), {}

    def _observation(self):
        return np.array([self._step / 200, self._choice], np.float32)

    def step(self, action):
        self._choice = self._choice if self._step else int(action)
        self._step += 1
        done = self._step == 200
        return self._observation(), 30.0 * done if self._choice else 0.1, done, False, {}


@lanes.classic
@pytest.mark.slow
def test_a_rare_large_reward_is_chosen_with_the_default_normalization(small_run):
    run = small_run
    given = {
        'make_environment': functools.partial(vector_env.in_process, Choice),
        'make_agent': functools.partial(
            ppo.make_agent,
            optimizer=OptimizerOptions(1e-2),
            network=NetworkOptions(fc_layer_params=(16,)),
            loss=ppo.PPOLoss(gamma=1.0, lambda_=1.0),
        ),
        'experience': Experience(
            slicing=Slicing(sequence_length=201, stride=200, pad_episodes=True),
            replay=Queue(max_size=16, max_policy_lag=2, training=Iteration(num_epochs=4, minibatch_steps=800)),
            batch=BatchItems(16),
        ),
    }
    run.start_replay(**given)
    collector = run.start(collect, num_environments=16, **given)
    run.start(train, num_train_steps=640, publish_interval_steps=1, export_interval_steps=640, **given).join()
    collector.join()
    policy = tflearn.load_policy(run.dir.greedy_policy)
    assert policy(np.zeros(2, np.float32)) == 1
