"""Discrete SAC: losses by their definitions, masks, learning, and refusals."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data, oracles
from tests.agents.iql_test import batch, check_extra, rows_of
from tests.testing import experiences
from tflearn.agents import discrete_sac
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

SMALL = {'network': NetworkOptions(fc_layer_params=(16, 8), critic_fc_layer_params=(8, 16))}


def make_agent(specs=example_data.DISCRETE, experience=None, **changes):
    experience = experience or experiences.changed(discrete_sac.EXPERIENCE, sequence_length=5)
    agent = discrete_sac.make_agent(specs, create_train_step(), experience, **{**SMALL, **changes})
    agent.initialize()
    pairs = (agent._actor, agent._critics, agent._target_critics)
    for i, variable in enumerate(variable for network in pairs for variable in network.variables):
        variable.assign(tf.random.stateless_uniform(variable.shape, (i, 3), -0.7, 0.7))
    return agent


def test_losses_are_the_papers():
    loss = discrete_sac.DiscreteSACLoss(0.9, reward_scale=3.0, target_entropy_share=0.4, initial_log_alpha=-0.5)
    agent, alpha = make_agent(loss=loss), np.exp(-0.5)
    data = batch(agent)
    rows, following = rows_of(data)

    def value(observation, critics):
        log_probs = oracles.Policy(agent._actor, observation, activation=oracles.relu).log_probs
        values = np.minimum(*(oracles.critic(critic, observation) for critic in oracles.members(critics)))
        return (np.exp(log_probs) * (values - alpha * log_probs)).sum(-1)

    policy = oracles.Policy(agent._actor, rows.observation, activation=oracles.relu)
    target = 3.0 * np.float64(rows.reward) + 0.9 * rows.discount * value(following, agent._target_critics)
    own = [
        oracles.least([critic] * 2, rows.observation, rows.action, is_discrete=True)
        for critic in oracles.members(agent._critics)
    ]
    expected = {
        'critic_loss': sum((target - values) ** 2 for values in own),
        'actor_loss': -value(rows.observation, agent._critics),
        'alpha_loss': alpha * (policy.entropy() - 0.4 * np.log(policy.log_probs.shape[-1])),
        'value': value(rows.observation, agent._critics),
        'entropy': policy.entropy(),
        'alpha': np.array(alpha),
    }
    info = agent.loss(data)
    check_extra(info.extra, expected)
    losses = sum(expected[name].mean() for name in ('critic_loss', 'actor_loss', 'alpha_loss'))
    assert float(info.loss) == pytest.approx(losses, rel=1e-4)


def test_each_loss_trains_its_own_part():
    agent = make_agent()
    data = batch(agent)
    parts = {
        'critics': agent._critics.trainable_variables,
        'actor': agent._actor.trainable_variables,
        'alpha': [agent._log_alpha],
    }
    agent._draws.restart()
    _, made = agent._losses(data, None, training=True)
    for loss, own in zip(made.values(), parts, strict=True):
        with tf.GradientTape(persistent=True) as tape:
            losses, _ = loss({})
            share = tf.reduce_mean(losses)
        for name, variables in parts.items():
            gradients = tape.gradient(share, variables)
            assert all((gradient is not None) == (name == own) for gradient in gradients), (name, own)


def test_illegal_actions_have_no_part():
    """Where one action is legal, the entropy is 0, and so is the greatest one."""
    mask = tensor_spec.BoundedTensorSpec((2,), tf.int64, 0, 1)
    specs = EnvironmentSpecs({'state': example_data.DISCRETE.observation, 'mask': mask}, example_data.DISCRETE.action)
    agent = make_agent(specs, action_mask='mask')
    data = example_data.sequences(agent, 8, 5)
    masks = np.tile([1, 0], (8, 5, 1))
    data = data._replace(observation=data.observation | {'mask': tf.constant(masks)}, action=tf.zeros((8, 5), tf.int64))
    extra = agent.loss(data).extra
    assert float(extra['entropy']) == pytest.approx(0, abs=1e-6)
    assert float(extra['alpha_loss']) == pytest.approx(0, abs=1e-6)
    rows = tf.nest.map_structure(lambda leaf: tf.reshape(leaf[:, :-1], (32, -1)), data.observation)
    expected = tf.reduce_mean(tf.reduce_min(agent._critics(agent._mask(rows)[0]), axis=1)[:, 0])
    assert float(extra['value']) == pytest.approx(float(expected), rel=1e-4)
    assert np.isfinite(agent.train(data).loss)
    steps = ts.restart({'state': tf.zeros((50, 3)), 'mask': tf.constant([[1, 0]] * 50, tf.int64)}, 50)
    assert not agent.collect_policy.action(steps).action.numpy().any()


def test_it_learns_a_bandit_at_the_target_entropy():
    """Rewards of 1 and 0: the policy prefers the first action as far as its entropy allows."""
    experience = experiences.changed(discrete_sac.EXPERIENCE, sequence_length=2)
    agent = make_agent(example_data.DISCRETE, experience, target_update_tau=0.1, optimizer=OptimizerOptions(2e-2))
    train = tf.function(agent.train, autograph=False)
    for seed in range(300):
        data = example_data.sequences(agent, 64, 2, seed % 20)
        reward = tf.cast(data.action == 0, tf.float32)
        info = train(data._replace(reward=reward, discount=tf.zeros((64, 2))))
    assert float(info.extra['entropy']) == pytest.approx(0.5 * np.log(2), abs=0.1)
    steps = ts.restart(example_data.sequences(agent, 200, 2).observation[:, 0], 200)
    assert agent.policy.action(steps).action.numpy().mean() < 0.05
