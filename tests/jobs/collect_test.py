"""The collect job against a real replay server, with weights that the test publishes."""

import dataclasses
import functools
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes
from tests.environments import example_environments
from tests.environments.example_environments import SlowResets
from tflearn.actors.exploration import EpsilonLadder
from tflearn.agents import dqn, ppo, sac
from tflearn.coordinator import reports
from tflearn.coordinator.client import Coordinator, Role
from tflearn.coordinator.control import AcquiredLease, Credits, Lease, Share
from tflearn.coordinator.published_weights import Publisher
from tflearn.core.experience import Experience, Slicing, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.waiting import wait_until
from tflearn.environments import gymnasium_env, pacing, vector_env
from tflearn.jobs.collect import collect
from tflearn.jobs.collect_limits import CreditLimit, VersionLimit
from tflearn.jobs.collect_settings import CollectOptions, EpisodeLimit, EpisodeMetricsOptions
from tflearn.jobs.collection import Collection
from tflearn.networks.networks import NetworkOptions

FREE = Experience(replay=Uniform(min_size=1, max_size=10_000, sampling='server'), chunk_steps=4)


class Learner:
    """A learner as collectors see it: it publishes weights and reads reports."""

    def __init__(self, run, make_agent, experience, make_environment=None):
        make_environment = make_environment or run.factories()['make_environment']
        environment = make_environment(num_environments=1, seed=0)
        self.agent = make_agent(environment.specs, create_train_step(), experience)
        environment.close()
        variables = self.agent.collect_policy.variables()
        for variable in variables:  # always the same action, so that episodes end after about ten steps
            variable.assign(tf.zeros_like(variable))
        self.coordinator, self.version = Coordinator(run.coordinator, 'train'), 0
        self.coordinator.join(Role('train', epoch=1), 60.0)
        self.publisher = Publisher(self.coordinator, variables)
        self.reader = reports.ReportReader(self.coordinator)
        self.reader.read()  # collectors with a limit wait until a learner has said how many steps the run has

    def publish(self, env_steps=0, finished=False):
        self.version += 1
        self.publisher.publish(self.version, self.version, env_steps, finished)

    def close(self):
        self.publisher.close()
        self.coordinator.close()

    def metrics(self):
        self.reader.read()
        return self.reader.metrics()


@pytest.fixture
def learner(small_run):
    """A fake learner for a small run without a rate limit, with a running replay server."""
    small_run.experience = FREE
    small_run.start_replay()
    learner = Learner(small_run, small_run.factories()['make_agent'], FREE)
    yield learner
    learner.close()


@pytest.mark.parametrize('make, secs', [(vector_env.in_process, 0.6), (vector_env.in_worker_processes, 2.4)])
def test_reports_while_its_environments_are_reset(small_run, make, secs):
    """A launcher kills a job that does not report, and the learner does without one whose lease has expired."""
    make_one = functools.partial(SlowResets, secs, small_run.dir.status('collect_0'))
    small_run.experience, own = FREE, {'make_environment': functools.partial(make, make_one)}
    small_run.start_replay(**own)
    learner = Learner(small_run, small_run.factories()['make_agent'], FREE, **own)
    learner.publish()
    small_run.start(collect, num_environments=4, max_env_steps=8, **own).join()
    learner.close()
    assert SlowResets.reported_meanwhile(small_run.dir.status('collect_0'), 4)


def test_ends_after_max_env_steps(small_run, learner):
    learner.publish()
    make_one = small_run.factories()['make_environment']
    paced = functools.partial(pacing.make, make_environment=make_one, unroll_step_interval_secs=1e-9)
    small_run.start(collect, make_environment=paced, num_environments=4, max_env_steps=200, seed=1).join()
    status = small_run.status('collect_0')
    assert status['state'] == 'finished'
    assert 200 <= status['env_steps'] < 200 + 4, 'a batched step of four environments may be the last'
    assert status['overruns'] >= 50, 'every step is late'
    assert (status['lost_steps'], status['dropped_episodes'], status['rebuilt_environments']) == (0, 0, 0)
    assert status['mean_length'] == status['mean_return'] > 0
    assert 0 < status['mean_start_return'] < status['mean_return']
    metrics = learner.metrics()
    assert metrics['env_steps'] == status['env_steps']
    assert metrics['episodes'] == status['episodes'] and metrics['overruns'] == status['overruns']
    assert metrics['mean_reward'] == 1
    parts = [status[name] for name in ('policy_secs', 'environment_secs', 'writing_secs')]
    assert min(parts) > 0 and [metrics[name] for name in ('policy_secs', 'environment_secs', 'writing_secs')] == parts


def test_only_chosen_collectors_report_episodes(small_run, learner):
    learner.publish()
    options = CollectOptions(report_metrics=['collect_1'])
    for name, limit in (('collect_0', 100), ('collect_1', 200)):  # of the run
        job = small_run.start(collect, name=name, num_environments=2, max_env_steps=limit, options=options)
        job.join()
        assert (learner.metrics()['mean_return'] is None) == (name == 'collect_0')
    both = [small_run.status(name)['env_steps'] for name in ('collect_0', 'collect_1')]
    assert learner.metrics()['env_steps'] == sum(both)


def test_waits_for_newer_weights_after_max_episodes(small_run, learner):
    learner.publish()
    options = CollectOptions(episode_limit=EpisodeLimit(3))
    job = small_run.start(collect, num_environments=1, options=options)
    for version in (1, 2):
        wait_until(functools.partial(_waits, small_run, version, job), 'the limit', 60)
        assert small_run.status('collect_0')['episodes'] == 3 * version
        learner.publish()
    learner.publish(finished=True)
    job.join()


def test_collects_at_intervals_while_it_waits(small_run, learner):
    learner.publish()
    options = CollectOptions(episode_limit=EpisodeLimit(1, collect_at_least_every_secs=0.2))
    job = small_run.start(collect, num_environments=1, options=options)
    wait_until(lambda: small_run.status('collect_0').get('episodes', 0) >= 4 or job.ended, 'more episodes', 60)
    job.stop.set()
    job.join()
    assert small_run.status('collect_0')['policy_version'] == 1


def _waits(run, version, job):
    status = run.status('collect_0')
    return job.ended or (status.get('state'), status.get('policy_version')) == ('waiting for newer weights', version)


def test_random_actions_end_with_the_steps_of_the_run(small_run, learner):
    learner.publish()
    options = CollectOptions(initial_random_steps=10**6)
    job = small_run.start(collect, num_environments=2, options=options)
    wait_until(lambda: small_run.status('collect_0').get('env_steps', 0) > 0 or job.ended, 'steps', 60)
    assert small_run.status('collect_0')['random_actions']
    learner.publish(env_steps=10**6)
    wait_until(lambda: not small_run.status('collect_0')['random_actions'] or job.ended, 'the policy', 60)
    job.stop.set()
    job.join()


def test_epsilon_ladder_sets_epsilons(small_run, learner):
    learner.publish()
    options = CollectOptions(epsilon_ladder=EpsilonLadder(num_collectors=2))
    small_run.start(collect, name='collect_1', num_environments=4, max_env_steps=50, options=options).join()
    with pytest.raises(ValueError, match='got the collector number 2 for an epsilon ladder of num_collectors=2'):
        small_run.start(collect, name='collect_2', options=options).join()
    with pytest.raises(ValueError, match="got the collector name 'mine' with an epsilon ladder for several"):
        small_run.start(collect, name='mine', options=options).join()


def test_rejects_unsupported_exploration_before_waiting(small_run):
    given = {
        'make_environment': functools.partial(gymnasium_env.make, 'Pendulum-v1'),
        'make_agent': functools.partial(
            sac.make_agent, network=NetworkOptions(fc_layer_params=(8,), critic_fc_layer_params=(8,))
        ),
    }
    options = CollectOptions(epsilon_ladder=EpsilonLadder())
    with pytest.raises(
        ValueError, match='an epsilon ladder for the collect policy ActorPolicy; need an epsilon-greedy'
    ):
        small_run.start(collect, **given, options=options).join()
    experience = Experience(slicing=Slicing(store_policy_state=True))
    with pytest.raises(ValueError, match='got Slicing.store_policy_state=True; DQN needs False'):
        small_run.start(collect, experience=experience).join()


def test_equal_seeds_collect_equal_data(small_run, learner):
    """The draws of environments and policy depend only on the seed and the collector's name."""
    learner.publish()
    returns, taken = [], 0
    for _ in range(2):
        options = CollectOptions(episode_metrics=EpisodeMetricsOptions(buffer_size=100))
        limit = taken + 150  # of the run, so both take as many
        job = small_run.start(
            collect, num_environments=2, max_env_steps=limit, seed=7, options=options, stop=threading.Event()
        )
        job.join()
        status = small_run.status('collect_0')
        taken = status['env_steps']
        returns.append([status[name] for name in ('episodes', 'mean_return', 'mean_discounted_return')])
    np.testing.assert_array_equal(*returns)
    tf.random.set_seed(0)


def test_rejects_names_and_functions_of_other_types():
    with pytest.raises(ValueError, match=r"report_metrics='collect_0'; need True, False or a list of names"):
        CollectOptions(report_metrics='collect_0')
    with pytest.raises(ValueError, match='got EpisodeMetricsOptions.on_episode=3; need a function of an episode'):
        EpisodeMetricsOptions(on_episode=3)


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
    collection = Collection(environment, agent.collect_policy, CollectOptions(initial_random_steps=40), Experience())
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
    collection = Collection(environment, agent.collect_policy, CollectOptions(initial_random_steps=40), Experience())
    collection.run(1, lambda row: None, env_steps_of_run=40)
    assert not collection.random


@pytest.mark.parametrize(
    ('module', 'name', 'rows_of_run'), [(sac, 'Pendulum-v1', 20), (dqn, 'CartPole-v1', 0), (ppo, 'Pendulum-v1', 0)]
)
def test_continuous_actions_of_a_replay_are_random_until_the_learner_trains(module, name, rows_of_run):
    experience = Experience(replay=Uniform(min_size=40)) if module is not ppo else ppo.EXPERIENCE
    environment = gymnasium_env.make(name, 2, seed=0)
    network = NetworkOptions(fc_layer_params=(4,))
    agent = module.make_agent(environment.specs, create_train_step(), experience, network=network)
    make = functools.partial(Collection, environment, agent.collect_policy, CollectOptions(), experience)
    collection, rows = make(), []
    while collection.random and collection.metrics.env_steps < 40:
        collection.run(16, rows.append)
    assert len(rows) == rows_of_run
    trained = make()
    trained.run(1, lambda row: None, train_step=1)
    environment.close()
    assert not trained.random


def test_environments_see_the_progress_of_the_run():
    environment = vector_env.in_process(example_environments.Course, 2, seed=0)
    agent = dqn.make_agent(
        environment.specs, create_train_step(), Experience(), network=NetworkOptions(fc_layer_params=(4,))
    )
    collection = Collection(environment, agent.collect_policy, CollectOptions(), Experience())
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
    collection, rows = Collection(environment, agent.collect_policy, options, Experience(), 'collect_3'), []
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
