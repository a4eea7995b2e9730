"""The initial deviation of float actions, of the algorithms whose policies draw them by a normal distribution."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tflearn.agents import appo, impala, ppo, v_mpo
from tflearn.core.train_step import create_train_step
from tflearn.networks.networks import NetworkOptions
from tflearn.networks.state_dependent import StateDependentNoise


def _agent(algorithm, specs=example_data.CONTINUOUS, **given):
    network = NetworkOptions(fc_layer_params=(16,))
    agent = algorithm.make_agent(specs, create_train_step(), algorithm.EXPERIENCE, network=network, **given)
    agent.initialize()
    return agent


@pytest.mark.parametrize('algorithm', [ppo, v_mpo, impala, appo])
@pytest.mark.parametrize(
    ('given', 'expected'), [({}, 0.35), ({'initial_deviation': 1.5}, 1.5), ({'initial_deviation': 2}, 2)]
)
def test_the_initial_deviation(algorithm, given, expected):
    agent = _agent(algorithm, **given)
    observation = tf.nest.map_structure(lambda s: tf.zeros([3, *s.shape], s.dtype), example_data.CONTINUOUS.observation)
    distribution = agent.collect_policy.distribution(ts.restart(observation, 3)).action
    for each in tf.nest.flatten(distribution):
        np.testing.assert_allclose(each.stddev(), np.full(each.mean().shape, expected), rtol=1e-5)


@pytest.mark.parametrize('algorithm', [ppo, v_mpo, impala, appo])
def test_one_without_a_use_is_refused(algorithm):
    with pytest.raises(ValueError, match='got initial_deviation=1 for the action .*; need floats for it'):
        _agent(algorithm, example_data.DISCRETE, initial_deviation=1.0)


def test_one_beside_state_dependent_noise_is_refused():
    with pytest.raises(ValueError, match='got initial_deviation=1 with state_dependent_noise.*need one of them'):
        _agent(ppo, initial_deviation=1.0, state_dependent_noise=StateDependentNoise())
