"""Agents that need a queue, in one process: it collects the items of a batch, and trains on them."""

import dataclasses
import functools

import pytest

from tests.jobs.synchronous_test import agent_variables, assert_same, run_synchronously
from tests.testing import lanes
from tflearn.agents import appo, impala, ppo, reinforce, v_mpo
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Reuse, Slicing
from tflearn.files.run_dir import read_json
from tflearn.networks.networks import NetworkOptions
from tflearn.policies.policy_function import load_policy

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')

FEW = NetworkOptions(fc_layer_params=(8,))
CROSSING = Slicing(sequence_length=9, stride=8, cross_episodes=True)
# Two environments make two items in 8 batched steps, or 16 environment steps (less between two episodes).
ITERATION = Experience(CROSSING, Queue(max_size=1, training=Iteration(2, 8)), BatchItems(2))
EPISODES = Experience(Slicing(sequence_length=21, stride=20, pad_episodes=True), Queue(), BatchItems(4))
AGENTS = {
    'ppo': (ppo, ITERATION),
    'v_mpo': (v_mpo, ITERATION),
    'impala': (impala, Experience(CROSSING, Queue(), BatchItems(2))),
    'appo': (appo, Experience(CROSSING, Queue(training=Reuse(3, 2, 1.0, 4)), BatchItems(2))),
    'reinforce': (reinforce, EPISODES),
}


def train(root, agent='ppo', **arguments):
    """Trains by a queue; returns the run's directory."""
    module, experience = AGENTS[agent]
    given = {'make_agent': functools.partial(module.make_agent, network=FEW), 'experience': experience}
    return run_synchronously(root, **{**given, 'num_train_steps': 24, 'seed': 3, **arguments})


@pytest.fixture(scope='module')
def of_ppo(tmp_path_factory):
    """The directory of a run that has ended."""
    return train(tmp_path_factory.mktemp('ppo'))


def test_the_same_seed_gives_the_same_weights_and_metrics_another_one_others(of_ppo, tmp_path):
    same, other = (train(tmp_path / str(seed), seed=seed) for seed in (3, 4))
    assert_same(of_ppo, same)
    assert read_json(same.train_result)['train_step'] == 24
    one, another = agent_variables(of_ppo), agent_variables(other)
    assert any((one[name] != another[name]).any() for name in one)


@pytest.mark.slow
@pytest.mark.parametrize('agent', [*AGENTS][1:])
def test_the_same_seed_gives_the_same_weights_and_metrics(tmp_path, agent):
    assert_same(*(train(tmp_path / name, agent) for name in 'ab'))


def test_collects_what_an_iteration_needs_and_no_more(of_ppo):
    # 24 train steps are 6 iterations, each of 2 epochs of 2 minibatches.
    assert 0 <= 6 * 16 + 2 - read_json(of_ppo.train_result)['env_steps'] < 6 * 4


@lanes.classic
def test_counts_a_version_for_each_batch(tmp_path):
    version = load_policy(train(tmp_path, 'appo').root).metadata['policy_version']
    assert 0 < version < 24, 'each is trained on three times'


@lanes.classic
def test_drops_items_of_an_older_policy(tmp_path):
    """With 4 environments an iteration of 3 items leaves one, whose policy is one version old."""
    queue = dataclasses.replace(ITERATION.replay, max_policy_lag=0)
    experience = dataclasses.replace(ITERATION, replay=queue, batch=BatchItems(3))
    status = read_json(train(tmp_path, experience=experience, num_environments=4).status('train'))
    assert status['stale_sequences'] > 0
    assert status['greatest_policy_lag'] == 0
