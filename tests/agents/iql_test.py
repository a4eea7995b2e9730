"""Implicit Q-learning: losses by their definitions, targets, learning from mixed data, exports and refusals."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data, oracles
from tests.agents.bc_test import two_episodes
from tests.testing import experiences
from tflearn.agents import awac, iql
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import offline_loss

DISCRETE, CONTINUOUS = example_data.DISCRETE, example_data.CONTINUOUS
SMALL = {
    iql: {'network': NetworkOptions(fc_layer_params=(16, 8), activation='relu', critic_fc_layer_params=(8, 16))},
    awac: {'network': NetworkOptions(fc_layer_params=(16, 8), critic_fc_layer_params=(8, 16))},
}
BOTH = pytest.mark.parametrize('module', [iql, awac], ids=['iql', 'awac'])


def make_agent(module, specs=CONTINUOUS, experience=None, loss=None, **changes):
    experience = experience or experiences.changed(module.EXPERIENCE, sequence_length=5)
    made = {iql: iql.IQLLoss, awac: awac.AWACLoss}[module](**(loss or {}))
    arguments = {**SMALL[module], 'loss': made, **changes}
    agent = module.make_agent(specs, create_train_step(), experience, **arguments)
    agent.initialize()
    seed = 3 if specs is DISCRETE else 6  # advantages of both signs
    for i, variable in enumerate([*agent.policy.variables(), *critics_variables(agent)]):
        variable.assign(tf.random.stateless_uniform(variable.shape, (i, seed), -0.7, 0.7))
    return agent


def critics_variables(agent):
    return [*agent._critics.variables, *agent._target_critics.variables]


def batch(agent, seed=0):
    """Sequences with two episodes, of which some end: their discount is 0."""
    data = two_episodes(example_data.sequences(agent, 6, 5, seed))
    discount = np.ones((6, 5), np.float32)
    discount[:4, 0] = 0.0
    return data._replace(discount=tf.constant(discount))


def check_extra(extra, expected):
    """The metrics are means of `expected` over the rows that count, and one error for each item."""
    extra = dict(extra)
    errors, share = extra.pop('td_error').numpy(), extra.pop('valid_share')
    assert errors.shape == (6,) and (errors > 0).all() and float(share) == 0.75
    got = {name: float(value) for name, value in extra.items()}
    assert got == pytest.approx({name: each.mean() for name, each in expected.items()}, rel=1e-4)


def rows_of(data):
    """(rows, next observations) as numpy arrays, without the boundary row and the last row."""
    take = lambda leaf: leaf.numpy()[:, [0, 2, 3]]  # noqa: E731
    return tf.nest.map_structure(take, data), data.observation.numpy()[:, [1, 3, 4]]


@pytest.mark.parametrize('specs', [DISCRETE, CONTINUOUS], ids=['discrete', 'continuous'])
def test_losses_of_iql_are_the_papers(specs):
    loss = {'gamma': 0.9, 'expectile': 0.8, 'inverse_temperature': 2.0, 'max_weight': 0.8, 'reward_scale': 3.0}
    agent = make_agent(iql, specs, loss=loss)
    data = batch(agent)
    rows, following = rows_of(data)
    policy = oracles.Policy(agent._network, rows.observation, activation=oracles.relu)
    next_value = oracles.Policy(agent._network, following, activation=oracles.relu).value
    recorded = oracles.least(agent._target_critics, rows.observation, rows.action, specs is DISCRETE)
    difference = recorded - policy.value
    value_loss = np.abs(0.8 - (difference < 0)) * difference**2
    weight = np.minimum(np.exp(2.0 * difference), 0.8)
    actor_loss = -weight * policy.log_prob(rows.action)
    target = 3.0 * np.float64(rows.reward) + 0.9 * rows.discount * next_value
    values = [
        oracles.least([network] * 2, rows.observation, rows.action, specs is DISCRETE)
        for network in oracles.members(agent._critics)
    ]
    critic_loss = sum((target - value) ** 2 for value in values)
    assert (weight == 0.8).any() and (weight < 0.8).any() and (difference < 0).any()
    info = agent.loss(data)
    expected = {
        'value_loss': value_loss,
        'actor_loss': actor_loss,
        'critic_loss': critic_loss,
        'value': policy.value,
        'advantage': difference,
        'advantage_weight': weight,
        'log_likelihood': policy.log_prob(rows.action),
    }
    check_extra(info.extra, expected)
    assert float(info.loss) == pytest.approx((value_loss + actor_loss + critic_loss).mean(), rel=1e-4)


@pytest.mark.parametrize('specs', [DISCRETE, CONTINUOUS], ids=['discrete', 'continuous'])
def test_losses_of_awac_are_the_papers(specs):
    """With a deviation of nearly 0, what the policy draws is its mode."""
    agent = make_agent(awac, specs, loss={'gamma': 0.9, 'temperature': 0.5, 'reward_scale': 3.0})
    for variable in agent.policy.variables():
        if 'bias_layer' in variable.name:
            variable.assign(tf.fill(variable.shape, -9.0))
    data = batch(agent)
    rows, following = rows_of(data)

    def value(observation, critics):
        policy = oracles.Policy(agent._actor, observation, activation=oracles.relu)
        if specs is DISCRETE:
            values = np.minimum(*(oracles.critic(critic, observation) for critic in oracles.members(critics)))
            return (np.exp(policy.log_probs) * values).sum(-1)
        return oracles.least(critics, observation, np.clip(policy.mode, -1, 1), False)

    log_probs = oracles.Policy(agent._actor, rows.observation, activation=oracles.relu).log_prob(rows.action)
    target = 3.0 * np.float64(rows.reward) + 0.9 * rows.discount * value(following, agent._target_critics)
    values = [
        oracles.least([network] * 2, rows.observation, rows.action, specs is DISCRETE)
        for network in oracles.members(agent._critics)
    ]
    critic_loss = sum((target - each) ** 2 for each in values).mean()
    advantage = np.minimum(*values) - value(rows.observation, agent._critics)
    weight = np.exp(advantage / 0.5) / np.exp(advantage / 0.5).sum()
    info = agent.loss(data)
    assert float(info.extra['critic_loss']) == pytest.approx(critic_loss, rel=2e-3)
    assert float(info.extra['advantage']) == pytest.approx(advantage.mean(), rel=2e-3)
    assert float(info.extra['actor_loss']) == pytest.approx(-(weight * log_probs).sum(), rel=5e-3)
    assert float(info.loss) == pytest.approx(critic_loss - (weight * log_probs).sum(), rel=5e-3)


def test_the_expectile_of_numbers_and_bounded_weights():
    """The number that minimizes the expectile loss balances both sides; weights do not overflow."""
    numbers = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    candidates = np.linspace(-2, 2, 2001, dtype=np.float32)
    losses = [float(tf.reduce_mean(offline_loss.expectile_losses(tf.constant(numbers - c), 0.9))) for c in candidates]
    best = candidates[int(np.argmin(losses))]
    above, below = np.maximum(numbers - best, 0).sum(), np.maximum(best - numbers, 0).sum()
    assert 0.9 * above == pytest.approx(0.1 * below, rel=0.02)
    weights = offline_loss.advantage_weights(tf.constant([-1.0, 0.0, 0.1, 1e6]), 3.0, 100.0)
    np.testing.assert_allclose(weights, [np.exp(-3.0), 1.0, np.exp(0.3), 100.0], rtol=1e-5)


@BOTH
def test_targets_follow_their_critics(module):
    agent = make_agent(module, target_update_tau=0.25)
    before = [variable.numpy() for variable in agent._target_critics.variables]
    agent.train(batch(agent))
    critics, targets = agent._critics.variables, agent._target_critics.variables
    for old, critic, target in zip(before, critics, targets, strict=True):
        np.testing.assert_allclose(target, 0.75 * old + 0.25 * critic.numpy(), rtol=1e-5, atol=1e-6)
    agent.initialize()
    np.testing.assert_array_equal(targets[0], critics[0])
    assert int(agent.train_step_counter) == 1


@BOTH
def test_a_mask_of_legal_actions_holds_in_the_losses(module):
    mask = tensor_spec.BoundedTensorSpec((2,), tf.int64, 0, 1)
    agent = make_agent(
        module, EnvironmentSpecs({'state': DISCRETE.observation, 'mask': mask}, DISCRETE.action), action_mask='mask'
    )
    data = batch(agent)
    masks = tf.constant(np.tile([1, 0], (6, 5, 1)))
    data = data._replace(observation=data.observation | {'mask': masks}, action=tf.ones((6, 5), tf.int64))
    info = agent.train(data)
    assert np.isfinite(info.loss) and float(info.extra['actor_loss']) == 0.0, 'only forbidden actions were recorded'
    steps = ts.restart({'state': tf.zeros((20, 3)), 'mask': masks[:4].numpy().reshape(20, 2)}, 20)
    assert not agent.collect_policy.action(steps).action.numpy().any()
