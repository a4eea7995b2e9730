import dataclasses

import numpy as np
import pytest

from tests import fakes
from tests.environments import example_environments
from tflearn.agents import dqn
from tflearn.coordinator.control import AcquiredLease, Credits, Lease, Share
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.environments import vector_env
from tflearn.jobs.collect_settings import CollectOptions, EpisodeMetricsOptions
from tflearn.jobs.collection import Collection, CreditLimit, VersionLimit
from tflearn.networks.networks import NetworkOptions


def test_limits_episodes_per_version():
    limit = VersionLimit(3, None)
    assert [limit.update(1, episodes) for episodes in (0, 2, 3, 4)] == [False, False, True, True]
    assert [limit.update(2, episodes) for episodes in (4, 6, 7)] == [False, False, True]


def test_allows_versions_ahead():
    limit = VersionLimit(8, versions_ahead=1)
    assert [limit.update(5, count) for count in (0, 8, 15, 16)] == [False, False, False, True]
    assert [limit.update(6, count) for count in (16, 20, 24)] == [False, False, True]
    assert [limit.update(8, count) for count in (24, 39, 40)] == [False, False, True], 'a version was missed'
    assert [limit.update(99, count) for count in (40, 55, 56)] == [False, False, True], 'but never more at once'


def test_allows_one_more_episode_after_a_wait():
    now = 0.0
    limit = VersionLimit(2, 10.0, clock=lambda: now)
    assert not limit.update(1, 0)
    assert limit.update(1, 2)
    now = 9.0
    assert limit.update(1, 2)
    now = 10.0
    assert not limit.update(1, 2)
    assert not limit.update(1, 2), 'until that episode has ended'
    now = 11.0
    assert limit.update(1, 3)
    now = 21.0
    assert not limit.update(1, 3)


def test_counts_random_steps_exactly():
    environment = fakes.CheckedEnvironment((50, 50))
    agent = dqn.make_agent(
        environment.specs, create_train_step(), Experience(), network=NetworkOptions(fc_layer_params=(4,)), epsilon=0.0
    )
    rows = []
    collection = Collection(environment, agent.collect_policy, CollectOptions(initial_random_steps=40))
    while collection.random:
        collection.run(16, rows.append)
    assert collection.metrics.env_steps >= 40
    assert len(rows) == 16 + 4 + 16
    best = agent.policy
    assert len({int(row.action[0]) for row in rows[:20]}) == 2
    for row in rows[20:]:
        time_step = environment.specs.time_step._replace(
            step_type=row.step_type, reward=row.reward, discount=row.discount, observation=row.observation
        )
        assert (best.action(time_step).action.numpy() == row.action).all()


def test_skips_random_steps_that_the_run_already_has():
    environment = fakes.CheckedEnvironment((50, 50))
    agent = dqn.make_agent(
        environment.specs, create_train_step(), Experience(), network=NetworkOptions(fc_layer_params=(4,))
    )
    collection = Collection(environment, agent.collect_policy, CollectOptions(initial_random_steps=40))
    collection.run(1, lambda row: None, env_steps_of_run=40)
    assert not collection.random


def test_environments_see_the_progress_of_the_run():
    environment = vector_env.in_process(example_environments.Course, 2, seed=0)
    agent = dqn.make_agent(
        environment.specs, create_train_step(), Experience(), network=NetworkOptions(fc_layer_params=(4,))
    )
    collection = Collection(environment, agent.collect_policy, CollectOptions())
    rows = []
    for env_steps, train_step in ((0, 0), (10, 3), (10, 3), (40, 5)):
        collection.run(1, rows.append, env_steps, train_step)
    environment.close()
    assert [row.observation[0].tolist() for row in rows[1:]] == [[0, 0, 0], [3, 10, 0], [3, 10, 0]]


@pytest.mark.parametrize('make', [vector_env.in_process, vector_env.in_worker_processes])
def test_calls_back_with_each_episode(make):
    """An episode has four steps; the row after its last one is no step."""
    environment = make(example_environments.Course, 2, seed=0)
    agent = dqn.make_agent(
        environment.specs, create_train_step(), Experience(), network=NetworkOptions(fc_layer_params=(4,))
    )
    episodes = []

    def on_episode(episode):
        episodes.append(episode)
        return {'first': episode.observation[0, 1]}

    options = CollectOptions(episode_metrics=EpisodeMetricsOptions(on_episode=on_episode))
    collection, rows = Collection(environment, agent.collect_policy, options, 'collect_3'), []
    for step in range(9):
        collection.run(1, rows.append, 10 * step)
    environment.close()
    assert [(episode.collector, episode.environment) for episode in episodes] == [('collect_3', i) for i in (0, 1)] * 2
    for episode, start in zip(episodes, (0, 0, 5, 5), strict=True):
        assert episode.observation.shape == (5, 3)
        assert episode.observation[:, 1].tolist() == [10 * max(0, start - 1), *(10 * (start + i) for i in range(4))]
        np.testing.assert_array_equal(
            episode.action, [row.action[episode.environment] for row in rows[start : start + 4]]
        )
        assert episode.reward.tolist() == [1.0] * 4
        assert episode.terminated
        assert episode.metrics['return'] == 4.0
        assert episode.metrics['info/robot/speed'] == 0.5
    assert collection.metrics.means()['mean_custom/first'] == np.mean([0, 0, 40, 40])


def test_credits_apply_to_the_acting_weights():
    now = [0.0]
    acquired_lease = AcquiredLease(Lease('collect_0', 'a', ttl_secs=5.0), clock=lambda: now[0])
    messages = [None]
    limit = CreditLimit(acquired_lease, lambda: messages[-1])
    assert limit.update(1, 0), 'no credits yet'
    messages.append(Credits(2, 8, shares=(Share('a', 1, 4, 8, 8),)))
    assert limit.update(1, 0), 'they are for newer weights'
    assert [limit.update(2, count) for count in (0, 7, 8)] == [False, False, True]
    assert [limit.update(4, count) for count in (8, 23, 24)] == [False, False, True], 'computed from the same message'
    messages.append(dataclasses.replace(messages[-1], policy_version=4, shares=()))
    assert limit.update(4, 8), 'it has no share any more'
    now[0] = 6.0
    acquired_lease.begin_if_expired(9)
    messages.append(dataclasses.replace(messages[-1], shares=(Share('a', 2, 4, 4, 4),)))
    assert [limit.update(4, count) for count in (9, 12, 13)] == [False, False, True], 'counted from its new lease'
    now[0] = 12.0
    assert limit.update(4, 9), 'the lease has expired'
