"""CQL as a setting of SAC."""

import numpy as np
import pytest
import tensorflow as tf

from tests.agents import example_data, oracles
from tests.testing import deterministic_oracle as oracle
from tflearn.agents import sac
from tflearn.core.train_step import create_train_step
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.conservative import Conservative
from tflearn.optimization.optimizers import OptimizerOptions

SPECS = example_data.CONTINUOUS
SMALL = {
    'network': NetworkOptions(fc_layer_params=(8,), critic_fc_layer_params=(8,)),
}


def _agent(**changes):
    agent = sac.make_agent(SPECS, create_train_step(), sac.EXPERIENCE, **SMALL | changes)
    agent.initialize()
    return agent


def _gaps(agent, data, actions, log_densities):
    """Returns the sum of both critics' gaps [B], in float64."""
    observation, own = (np.asarray(part, np.float64)[:, 0] for part in (data.observation, data.action))
    total = 0.0
    for critic in oracles.members(agent._critics):
        value = lambda action, critic=critic: oracle.network(  # noqa: E731
            critic.variables, np.concatenate([observation, action], axis=1)
        )[:, 0]
        drawn = np.stack([value(actions[:, k]) for k in range(actions.shape[1])], axis=1)
        total += np.log(np.exp(drawn - log_densities).mean(axis=1)) - value(own)
    return total


@pytest.mark.parametrize('target', [None, 4.0])
def test_the_regularizer_is_the_papers(target):
    agent, plain = _agent(conservative=Conservative(5.0, target, num_actions=3)), _agent()
    data = example_data.sequences(agent, 8, 2)
    generator = np.random.default_rng(1)
    actions, densities = generator.uniform(-1, 1, (8, 6, 2)), generator.normal(size=(8, 6))
    agent._draw_others = lambda batch: (tf.constant(actions, tf.float32), tf.constant(densities, tf.float32))
    weights = np.linspace(0.5, 1.5, 8)
    excess = _gaps(agent, data, actions, densities) - 2 * (target or 0.0)
    np.testing.assert_allclose(agent._excess_gaps(agent._transitions(data)), excess, rtol=1e-4)
    losses = []
    for each in (agent, plain):
        for name in ('_actor', '_critics'):
            for mine, other in zip(getattr(each, name).variables, getattr(agent, name).variables, strict=True):
                mine.assign(other)
        each.initialize()
        each._draws = agent._draws
        losses.append(float(each.loss(data, tf.constant(weights, tf.float32)).loss))
    of_weight = 0.0 if target is None else -5.0 * (weights * excess).mean() / 2
    assert losses[0] - losses[1] == pytest.approx(5.0 * (weights * excess).mean() + of_weight, rel=1e-3)


def test_actions_are_drawn_from_the_densities_that_are_reported():
    agent = _agent(conservative=Conservative(1.0, num_actions=3))
    batch = agent._transitions(example_data.sequences(agent, 4, 2))
    agent._draws.restart()
    actions, log_densities = (part.numpy().astype(np.float64) for part in agent._draw_others(batch))
    assert actions.shape == (4, 6, 2) and log_densities.shape == (4, 6)
    np.testing.assert_allclose(log_densities[:, :3], -2 * np.log(2.0), rtol=1e-6)
    distribution = agent._distribution(batch.observation, training=True).input_distribution
    mean, deviation = distribution.mean().numpy()[:, None], distribution.stddev().numpy()[:, None]
    shares = actions[:, 3:]
    normal = -0.5 * ((np.arctanh(shares) - mean) / deviation) ** 2 - np.log(deviation * np.sqrt(2 * np.pi))
    expected = (normal - np.log(1 - shares**2)).sum(axis=2)
    np.testing.assert_allclose(log_densities[:, 3:], expected, rtol=1e-3, atol=1e-3)


def test_the_weight_is_adapted_to_the_target_gap():
    """The gap of critics without weights is the log of the actions' volume, log 4."""
    for target, grows in ((1.0, True), (10.0, False)):
        agent = _agent(
            optimizer=OptimizerOptions({'critic': 0.01}), conservative=Conservative(1.0, target, num_actions=3)
        )
        for variable in agent._critics.variables:
            variable.assign(tf.zeros_like(variable))
        agent.train(example_data.sequences(agent, 8, 2))
        assert (float(agent._log_conservative_weight) > 0) == grows


@pytest.mark.slow  # the tests above check the loss that does it
def test_values_of_other_actions_fall():
    """Rewards are 0 everywhere; the data's actions are at the upper bounds."""
    differences = {}
    for weight in (0.0, 1.0):
        agent = _agent(
            optimizer=OptimizerOptions({'critic': 1e-2}),
            loss=sac.SACLoss(gamma=0.0),
            conservative=Conservative(weight, num_actions=3),
        )
        data = example_data.sequences(agent, 32, 2)
        data = data._replace(action=tf.fill(data.action.shape, 0.95), reward=tf.zeros_like(data.reward))
        train = tf.function(agent.train, autograph=False)
        for _ in range(60):
            train(data)
        observation = data.observation[:, 0]
        own, other = (tf.reduce_mean(agent._critics(observation, tf.fill((32, 2), action))) for action in (0.95, -0.95))
        differences[weight] = float(own - other)
    assert differences[1.0] > differences[0.0] + 0.5


def test_without_it_the_agent_has_the_same_variables():
    assert len(_agent().variables) == len(_agent(conservative=Conservative(1.0, num_actions=3)).variables)


def test_is_not_for_memory():
    with pytest.raises(ValueError, match='got Conservative.weight with lstm_size; need one of them'):
        _agent(network=NetworkOptions(lstm_size=(4,)), conservative=Conservative(1.0, num_actions=3))
