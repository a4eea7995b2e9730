"""The collect job against a real replay server, with weights that the test publishes."""

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf

from tflearn.actors.exploration import EpsilonLadder
from tflearn.agents import sac
from tflearn.coordinator import reports
from tflearn.coordinator.client import Coordinator, Role
from tflearn.coordinator.published_weights import Publisher
from tflearn.core.experience import Experience, Slicing, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.waiting import wait_until
from tflearn.environments import gymnasium_env
from tflearn.jobs.collect import collect
from tflearn.jobs.collect_settings import CollectOptions, EpisodeLimit, EpisodeMetricsOptions
from tflearn.networks.networks import NetworkOptions

FREE = Experience(replay=Uniform(min_size=1, max_size=10_000, sampling='server'), chunk_steps=4)


class Learner:
    """A learner as collectors see it: it publishes weights and reads reports."""

    def __init__(self, run, make_agent, experience):
        environment = run.factories()['make_environment'](num_environments=1, seed=0)
        self.agent = make_agent(environment.specs, create_train_step(), experience)
        environment.close()
        variables = self.agent.collect_policy.variables()
        for variable in variables:  # always the same action, so that episodes end after about ten steps
            variable.assign(tf.zeros_like(variable))
        self.coordinator, self.version = Coordinator(run.coordinator, 'train'), 0
        self.coordinator.join(Role('train', epoch=1), 60.0)
        self.publisher = Publisher(self.coordinator, variables)
        self.reader = reports.ReportReader(self.coordinator)

    def publish(self, env_steps=0, finished=False):
        self.version += 1
        self.publisher.publish(self.version, self.version, env_steps, finished)

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
    learner.publisher.close()
    learner.coordinator.close()


def test_ends_after_max_env_steps(small_run, learner):
    learner.publish()
    small_run.start(collect, num_environments=4, max_env_steps=200, seed=1).join()
    status = small_run.status('collect_0')
    assert status['state'] == 'finished'
    assert status['env_steps'] >= 200
    assert (status['lost_steps'], status['dropped_episodes'], status['rebuilt_environments']) == (0, 0, 0)
    assert status['mean_length'] == status['mean_return'] > 0
    assert 0 < status['mean_start_return'] < status['mean_return']
    metrics = learner.metrics()
    assert metrics['env_steps'] == status['env_steps']
    assert metrics['episodes'] == status['episodes']
    assert metrics['mean_reward'] == 1


def test_only_chosen_collectors_report_episodes(small_run, learner):
    learner.publish()
    options = CollectOptions(report_metrics=['collect_1'])
    for name in ('collect_0', 'collect_1'):
        job = small_run.start(collect, name=name, num_environments=2, max_env_steps=100, options=options)
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
    with pytest.raises(ValueError, match='got a policy without a state to be stored'):
        small_run.start(collect, experience=experience).join()


@pytest.mark.parametrize(
    ('argument', 'message'),
    [
        ({'num_environments': 0}, 'got num_environments=0; need an integer of at least 1'),
    ],
)
def test_rejects_arguments_out_of_range(small_run, argument, message):
    with pytest.raises(ValueError, match=message):
        small_run.start(collect, **argument).join()


def test_equal_seeds_collect_equal_data(small_run, learner):
    """The draws of environments and policy depend only on the seed and the collector's name."""
    learner.publish()
    returns = []
    for _ in range(2):
        options = CollectOptions(episode_metrics=EpisodeMetricsOptions(buffer_size=100))
        job = small_run.start(
            collect, num_environments=2, max_env_steps=150, seed=7, options=options, stop=threading.Event()
        )
        job.join()
        status = small_run.status('collect_0')
        returns.append([status[name] for name in ('episodes', 'mean_return', 'mean_discounted_return')])
    np.testing.assert_array_equal(*returns)
    tf.random.set_seed(0)
