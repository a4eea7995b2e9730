import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tflearn.agents import ppo
from tflearn.experience import Experience
from tflearn.specs import EnvironmentSpecs, zeros
from tflearn.steps import create_train_step

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')
SMALL = {'actor_fc_layer_params': (16,), 'value_fc_layer_params': (16,)}
PLAIN = {'normalize_observations': False, 'normalize_rewards': False}


def _agent(specs=example_data.CONTINUOUS, **changes):
    agent = ppo.make_agent(specs, create_train_step(), ppo.EXPERIENCE, **SMALL | changes)
    agent.initialize()
    return agent


def _advantages(rewards, discounts, last, values, gamma, lambda_):
    """The definition, one step after the other: sums of errors until the episode ends."""
    advantages, following = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * discounts[t] * values[t + 1] - values[t]
        following = delta + (0.0 if last[t] else gamma * lambda_ * discounts[t] * following)
        advantages[t] = following
    return advantages


@pytest.mark.parametrize(
    ('discounts', 'last'),
    [
        ([1, 1, 1, 1], [0, 0, 0, 0]),
        ([1, 0, 1, 1], [0, 1, 0, 0]),  # a termination
        ([1, 1, 1, 1], [0, 1, 0, 0]),  # a time limit: its last observation's value counts
        ([1, 1, 1, 1], [0, 0, 0, 1]),
    ],
)
def test_advantages(discounts, last):
    agent = _agent(gamma=0.9, gae_lambda=0.8, **PLAIN)
    rewards, values = np.array([1.0, -2.0, 3.0, 0.5]), np.array([0.3, -0.4, 0.5, 0.7, -1.1])
    step_types = np.where(last, ts.StepType.LAST, ts.StepType.MID).astype(np.int32)
    steps = ts.TimeStep(step_types, np.float32(rewards), np.float32(discounts), np.zeros((4, 3), np.float32))
    steps = tf.nest.map_structure(lambda value: tf.constant(value)[tf.newaxis], steps)
    returns, advantages = agent.compute_return_and_advantage(steps, tf.constant(np.float32(values))[tf.newaxis])
    expected = _advantages(rewards, discounts, last, values, 0.9, 0.8)
    np.testing.assert_allclose(advantages[0], expected, rtol=1e-5)
    np.testing.assert_allclose(returns[0], expected + values[:-1], rtol=1e-5)


def test_padding_changes_nothing():
    """A sequence that ends early and is filled up with its last step trains as one without that filling."""
    agent = _agent(**PLAIN)
    kept = example_data.sequences(agent, 1, 6)
    losses = []
    for padding in (0, 4):
        place = np.arange(6 + padding)
        fill = lambda value: tf.concat([value, tf.repeat(value[:, -1:], padding, axis=1)], axis=1)  # noqa: E731, B023
        types = np.select([place < 4, place == 4], [ts.StepType.MID, ts.StepType.LAST], ts.StepType.FIRST)
        data = tf.nest.map_structure(fill, kept)._replace(
            step_type=tf.constant(np.where(place < 5, ts.StepType.MID, ts.StepType.LAST)[np.newaxis], tf.int32),
            next_step_type=tf.constant(types[np.newaxis], tf.int32),
        )
        # TF-Agents takes the mean over all steps, whether they count or not.
        losses.append(float(agent.loss(data).loss) * (6 + padding))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_loss_changes_nothing_and_is_what_train_sees():
    agent = _agent()
    data = example_data.sequences(agent, 4, 9)
    loss = agent.loss(data)
    before = [variable.numpy() for variable in agent.collect_policy.variables()]
    np.testing.assert_allclose(agent.train(data).loss, loss.loss, rtol=1e-5)
    assert agent.train_step_counter.numpy() == 1
    assert any((a != b.numpy()).any() for a, b in zip(before, agent.collect_policy.variables(), strict=True))


def test_every_epoch_is_a_train_step():
    agent = _agent(num_epochs=3)
    agent.train(example_data.sequences(agent, 4, 9))
    assert agent.train_step_counter.numpy() == agent._optimizer.iterations.numpy() == 3


def test_normalizers_take_the_batch():
    agent = _agent()
    data = example_data.sequences(agent, 4, 9)
    agent.train(data)
    count, mean, *_ = agent._observation_normalizer.variables
    assert count.numpy() == pytest.approx(36)
    np.testing.assert_allclose(mean.numpy(), data.observation.numpy().mean(axis=(0, 1)), rtol=1e-4)
    assert agent._reward_normalizer.variables[0].numpy() == pytest.approx(36)


def _bandit(specs, size=64):
    """One episode of one step after the other: the reward is the action."""
    agent = _agent(specs, learning_rate=1e-2, **PLAIN)
    train, act = tf.function(agent.train), tf.function(agent.collect_policy.action)
    for _ in range(60):
        step = act(zeros(specs.time_step, (size,)))
        reward = tf.cast(tf.reshape(step.action, (size, -1))[:, 0], tf.float32)
        data = example_data.sequences(agent, size, 2)
        pair = lambda value: tf.stack([value, value], axis=1)  # noqa: E731
        data = data._replace(
            action=pair(step.action),
            policy_info=tf.nest.map_structure(pair, step.info),
            reward=pair(reward),
            discount=tf.zeros((size, 2)),
            next_step_type=tf.fill((size, 2), tf.constant(ts.StepType.LAST)),
            observation=tf.zeros_like(data.observation),
        )
        train(data)
    return float(tf.reduce_mean(reward))


def test_it_learns_discrete_actions():
    assert _bandit(example_data.DISCRETE) > 0.85


def test_it_learns_continuous_actions():
    assert _bandit(example_data.CONTINUOUS) > 0.5


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'experience': Experience()}, "PPO needs 'queue'"),
        ({'num_epochs': 0}, 'got num_epochs=0'),
        ({'clip_epsilon': 0.0}, 'clip_epsilon=0.0; need'),
        (
            {'specs': EnvironmentSpecs(tf.TensorSpec((4,), tf.uint8), example_data.DISCRETE.action)},
            'need floats, or normalize_observations=False',
        ),
    ],
)
def test_what_it_cannot_learn(changes, message):
    arguments = {'specs': example_data.DISCRETE, 'train_step': create_train_step(), 'experience': ppo.EXPERIENCE}
    with pytest.raises(ValueError, match=message):
        ppo.make_agent(**arguments | changes)
