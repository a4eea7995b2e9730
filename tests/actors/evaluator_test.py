import functools
import json
import math
import threading

import numpy as np
import pytest

from tests import fakes
from tests.environments import example_environments
from tflearn.actors.compiled_policy import CompiledPolicy
from tflearn.actors.evaluator import EpisodeStatistics, Evaluator
from tflearn.environments import vector_env
from tflearn.waiting import Stopped


class AlwaysOne:
    """A policy without TensorFlow; its state counts its calls."""

    def __init__(self):
        self.states = []

    def initial_state(self, batch_size):
        return 0

    def action(self, time_step, policy_state):
        self.states.append(policy_state)
        return np.ones(len(time_step.step_type), np.int64), policy_state + 1


def test_each_environment_plays_its_quota():
    # The first four episodes that end would include three of the short ones.
    environment = fakes.CheckedEnvironment(lengths=(1, 6))
    policy = AlwaysOne()
    statistics = Evaluator(environment, num_episodes=4).run(policy)
    assert statistics.returns == (1.0, 1.0, 6.0, 6.0)
    assert statistics.lengths == (1, 1, 6, 6)
    assert statistics.num_episodes == 4
    assert statistics.mean_return == 3.5
    assert statistics.mean_length == 3.5
    assert policy.states == list(range(13))
    json.dumps({'returns': statistics.returns, 'mean_return': statistics.mean_return})


@pytest.mark.parametrize(('num_episodes', 'lengths'), [(5, (2, 2, 3, 3, 4)), (2, (2, 3)), (1, (2,))])
def test_quotas_differ_by_at_most_one(num_episodes, lengths):
    environment = fakes.CheckedEnvironment(lengths=(2, 3, 4))
    assert Evaluator(environment, num_episodes).run(AlwaysOne()).lengths == lengths


def test_each_run_plays_new_episodes():
    environment = fakes.CheckedEnvironment(lengths=(2, 5), truncated=True)
    evaluator = Evaluator(environment, num_episodes=2)
    assert evaluator.run(AlwaysOne()) == evaluator.run(AlwaysOne())
    assert environment.num_resets == 2
    assert not environment.closed


def test_evaluates_a_tf_agents_policy():
    environment = fakes.CheckedEnvironment(lengths=(3, 4))
    policy = CompiledPolicy(fakes.CountingPolicy(environment.specs), 2)
    assert Evaluator(environment, num_episodes=4).run(policy).returns == (1.0, 1.0, 2.0, 2.0)


def test_endless_episode_is_an_error():
    environment = fakes.CheckedEnvironment(lengths=(2, 10**9))
    with pytest.raises(ValueError, match='got an episode of more than max_steps_per_episode=50 steps; need episodes'):
        Evaluator(environment, num_episodes=2, max_steps_per_episode=50).run(AlwaysOne())


def test_episode_may_take_max_steps():
    environment = fakes.CheckedEnvironment(lengths=(2, 50))
    statistics = Evaluator(environment, num_episodes=2, max_steps_per_episode=50).run(AlwaysOne())
    assert statistics.lengths == (2, 50)


class Fragile(example_environments.TwoStates):
    """Episodes of 10 steps; raises once in each of the steps `raises_in` of an episode."""

    def __init__(self, raises_in):
        super().__init__(length=10)
        self._raises_in = raises_in

    def step(self, action):
        if self._raises_in and self._steps + 1 == self._raises_in[0]:
            raise OSError(f'lost the simulator in step {self._raises_in.pop(0)}')
        return super().step(action)


def test_interrupted_episode_is_dropped_and_replaced():
    environment = vector_env.in_process(functools.partial(Fragile, [8, 4, 3]), 1, seed=0)
    statistics = Evaluator(environment, num_episodes=2).run(AlwaysOne())
    environment.close()
    assert environment.num_rebuilt == 3
    assert statistics.returns == (10.0, 10.0)
    assert statistics.lengths == (10, 10)
    assert statistics.dropped_episodes == 3


def test_too_many_interrupted_episodes_in_a_row_are_an_error():
    environment = vector_env.in_process(functools.partial(Fragile, [3] * 100), 1, seed=0)
    with pytest.raises(RuntimeError, match='got 11 interrupted episodes in a row of environment 0; need complete'):
        Evaluator(environment, num_episodes=1).run(AlwaysOne())
    environment.close()


def test_stop_event_ends_the_evaluation():
    stop = threading.Event()

    class StopsSoon(AlwaysOne):
        def action(self, time_step, policy_state):
            if policy_state == 3:
                stop.set()
            return super().action(time_step, policy_state)

    policy = StopsSoon()
    with pytest.raises(Stopped, match='stopped with 1 of 2 episodes still to play'):
        Evaluator(fakes.CheckedEnvironment(lengths=(2, 10**9)), num_episodes=2).run(policy, stop)
    assert len(policy.states) == 4


@pytest.mark.parametrize('name', ['num_episodes', 'max_steps_per_episode'])
def test_rejects_numbers_below_1(name):
    with pytest.raises(ValueError, match=f'got {name}=0; need at least 1'):
        Evaluator(fakes.CheckedEnvironment(), **{name: 0})


@pytest.mark.parametrize(('num_episodes', 't'), [(2, 12.706), (3, 4.303), (4, 3.182), (10, 2.262), (20, 2.093)])
def test_confidence_interval_is_students_t(num_episodes, t):
    returns = tuple(float(value) for value in range(num_episodes))
    statistics = EpisodeStatistics(returns, (1,) * num_episodes)
    low, high = statistics.mean_return_interval
    assert (low + high) / 2 == pytest.approx(statistics.mean_return)
    radius = t * np.std(returns, ddof=1) / math.sqrt(num_episodes)
    assert (high - low) / 2 == pytest.approx(radius, rel=0.01)


def test_statistics_of_a_single_episode():
    statistics = EpisodeStatistics((7.0,), (3,))
    assert statistics.mean_return == 7.0
    assert statistics.std_return == 0.0
    assert statistics.mean_return_interval == (-math.inf, math.inf)
