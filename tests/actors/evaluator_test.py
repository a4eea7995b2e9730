import contextlib
import functools
import json
import math
import threading

import gymnasium
import numpy as np
import pytest

from tests import fakes
from tests.environments import example_environments
from tests.testing import lanes
from tflearn.actors.actor import CompiledPolicy
from tflearn.actors.evaluator import EpisodeStatistics, Evaluator
from tflearn.core.waiting import Stopped
from tflearn.environments import vector_env, wrappers


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


def test_an_endless_episode_is_cut_and_the_evaluation_is_incomplete(caplog):
    environment = fakes.CheckedEnvironment(lengths=(2, 10**9))
    reports = []
    evaluator = Evaluator(environment, num_episodes=5, max_steps_per_episode=50, report=reports.append)
    with caplog.at_level('WARNING'):
        statistics = evaluator.run(AlwaysOne())
    assert statistics.lengths == (2, 2, 2, 50)
    assert statistics.returns == (2.0, 2.0, 2.0, 50.0)
    assert statistics.incomplete == (
        '1 of 5 episodes did not end within 50 steps (max_steps_per_episode), 1 of 5 were not played to their end'
    )
    assert 'incomplete: 1 of 5 episodes did not end within 50 steps (max_steps_per_episode), 1 of 5' in caplog.text
    assert (reports[0].episodes, reports[0].num_episodes, reports[0].steps) == (0, 5, 0)


class Clock:
    """A second for each call."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(
    ('lengths', 'max_secs', 'kept', 'incomplete'),
    [
        # The first call is the beginning, so 7 steps are taken.
        ((2, 10**9), 7, (2, 2), '7 s (max_secs) were over, 2 of 4 were not played to their end'),
        ((10**9,), 7, (7,), '7 s (max_secs) were over, 1 of 4 episodes did not end, 3 of 4 were not played'),
    ],
)
def test_an_evaluation_ends_in_time_with_what_it_has(lengths, max_secs, kept, incomplete, caplog):
    reports = []
    evaluator = Evaluator(fakes.CheckedEnvironment(lengths), 4, max_secs=max_secs, report=reports.append, clock=Clock())
    statistics = evaluator.run(AlwaysOne())
    assert statistics.lengths == kept
    assert statistics.incomplete.startswith(incomplete)
    assert [report.steps for report in reports] == sorted(report.steps for report in reports)
    assert len(reports) == 7


def test_progress_estimates_the_seconds_left():
    reports = []
    evaluator = Evaluator(fakes.CheckedEnvironment((4,)), 5, report=reports.append, clock=Clock())
    evaluator.run(AlwaysOne())
    assert [report.episodes for report in reports][:6] == [0, 0, 0, 0, 1, 1]
    assert reports[0].secs_left is None
    assert str(reports[3]) == '0 of 5 episodes, 3 steps, at most 3597 s left'
    assert reports[4].secs_left == pytest.approx(4 * 4)
    assert str(reports[4]) == '1 of 5 episodes, 4 steps, about 16 s left'


def test_an_environment_that_may_have_no_end_is_warned_of_once_and_early(caplog):
    evaluator = Evaluator(fakes.CheckedEnvironment((10**9,)), 1, 100, clock=Clock())
    with caplog.at_level('WARNING'):
        evaluator.run(AlwaysOne())
    early, late = caplog.messages
    assert early.startswith('an episode of the evaluation has not ended after 30 steps (30 s); it is cut after')
    assert 'max_steps_per_episode=100 steps, the evaluation after max_secs=3600' in early
    assert late.startswith('the evaluation is incomplete: ')


@pytest.mark.parametrize('make', [vector_env.in_process, vector_env.in_worker_processes])
@lanes.classic
def test_numbers_of_the_info_are_metrics_of_the_evaluation(make):
    with contextlib.closing(make(functools.partial(example_environments.WithInfo, length=3), 2, seed=0)) as environment:
        statistics = Evaluator(environment, num_episodes=4).run(AlwaysOne())
    assert statistics.lengths == (3, 3, 3, 3)
    means = statistics.means
    assert (means['info/cost'], means['info_end/cost'], means['info_end/success']) == (1.0, 1.5, 1.0)
    assert means['reward'] == pytest.approx(statistics.mean_return / 3)
    assert not {'info/name', 'start_return', 'discounted_return'} & means.keys()


def test_numbers_of_the_info_of_a_native_vector_environment_are_metrics():
    def make_all():
        make_one = functools.partial(example_environments.WithInfo, length=3)
        return gymnasium.vector.SyncVectorEnv([make_one] * 2)

    with contextlib.closing(vector_env.native(make_all, seed=0)) as environment:
        means = Evaluator(environment, num_episodes=2).run(AlwaysOne()).means
    assert (means['info/cost'], means['info_end/cost'], means['info_end/success']) == (1.0, 1.5, 1.0)


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
    message = r'got 11 interrupted episodes in a row of environment 0; need complete ones; fix the cause: '
    message += r'OSError: lost the simulator in step 3 \(its traceback is in the log\)$'
    with pytest.raises(RuntimeError, match=message):
        Evaluator(wrappers.Wrapper(environment), num_episodes=1).run(AlwaysOne())
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


@pytest.mark.parametrize(('num_episodes', 't'), [(2, 12.706), (3, 4.303), (4, 3.182), (10, 2.262), (20, 2.093)])
def test_confidence_interval_is_students_t(num_episodes, t):
    returns = tuple(float(value) for value in range(num_episodes))
    statistics = EpisodeStatistics(tuple({'return': each, 'length': 1} for each in returns))
    low, high = statistics.mean_return_interval
    assert (low + high) / 2 == pytest.approx(statistics.mean_return)
    radius = t * np.std(returns, ddof=1) / math.sqrt(num_episodes)
    assert (high - low) / 2 == pytest.approx(radius, rel=0.01)


def test_statistics_of_a_single_episode():
    statistics = EpisodeStatistics(({'return': 7.0, 'length': 3},))
    assert statistics.mean_return == 7.0
    assert statistics.std_return == 0.0
    assert statistics.mean_return_interval == (-math.inf, math.inf)
