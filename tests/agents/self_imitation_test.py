import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tests.agents import example_data
from tflearn.agents import ppo, self_imitation
from tflearn.core.experience import Slicing
from tflearn.core.train_step import Draws, create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.data import columns
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

SPECS = EnvironmentSpecs(
    tensor_spec.BoundedTensorSpec((3,), tf.float32, -1.0, 1.0, 'observation'),
    tensor_spec.BoundedTensorSpec((1,), tf.float32, -2.0, 2.0, 'action'),
)


def episode(observations, actions, rewards, terminated):
    """A Trajectory [T + 1] with the boundary row."""
    fields = columns.boundaries(len(rewards) + 1, terminated)
    rows = {'observation': np.float32(observations), 'action': np.float32(actions), 'policy_info': ()}
    rewards = np.float32([*rewards, 0.0])
    return trajectory.Trajectory(**rows, **fields, reward=rewards)


def joined(*episodes):
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *episodes)


def test_returns_of_recorded_steps():
    """R = sum of gamma^k r, and gamma^n V(x_n) where the episode was cut."""
    some = episode([[1], [2], [3]], [[0], [1], [9]], [1.0, 2.0], terminated=True)
    others = episode([[4], [5], [6], [7]], [[2], [3], [4], [9]], [1.0, 0.0, 4.0], terminated=False)
    steps = self_imitation.steps_of(joined(some, others), 0.5)
    assert steps.observation.numpy().ravel().tolist() == [1, 2, 4, 5, 6]
    assert steps.action.numpy().ravel().tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(steps.sums, [2.0, 2.0, 2.0, 2.0, 4.0])
    np.testing.assert_allclose(steps.last_factor, [0.0, 0.0, 0.125, 0.25, 0.5])
    assert steps.last.numpy().ravel().tolist() == [3, 7]
    draws = Draws(create_train_step())
    draws.restart()
    drawn = steps.draw(draws, 400)
    np.testing.assert_array_equal(drawn.last, np.where(drawn.observation.numpy() < 4, 3, 7))
    numbers, counts = np.unique(drawn.observation, return_counts=True)
    assert numbers.tolist() == [1, 2, 4, 5, 6] and counts.min() > 40


def test_losses_equal_the_papers():
    log_probs, returns, values = np.float32([-1.0, -2.0, -np.inf, -0.5]), np.float32([3, 1, 2, 2]), np.float32([1] * 4)
    variable = tf.Variable(values)
    with tf.GradientTape() as tape:
        policy, value = self_imitation.losses(tf.constant(log_probs), returns - variable)
    np.testing.assert_allclose(policy, [2.0, 0.0, 0.0, 0.5])
    np.testing.assert_allclose(value, [2.0, 0.0, 0.5, 0.5])
    np.testing.assert_allclose(tape.gradient([policy, value], variable), [-2.0, 0.0, -1.0, -1.0])


def test_imitates_what_is_better_than_the_value_in_the_environments_unit():
    """Where all that the agent does itself is worth 0, it takes the recorded action of return 1, not that of -1."""
    optimizer = OptimizerOptions(learning_rate=0.01)
    agent = ppo.make_agent(
        SPECS, create_train_step(), ppo.EXPERIENCE, network=NetworkOptions(fc_layer_params=(16,)), optimizer=optimizer
    )
    agent.initialize()
    ends = np.eye(3)[:2]
    good, bad = (episode(ends, [[action], [0.0]], [reward], True) for action, reward in ((1.5, 1.0), (-1.5, -1.0)))
    agent.demonstrate(joined(good, bad), 0.5)
    own = example_data.sequences(agent, 2, 9)
    own = own._replace(reward=tf.zeros_like(own.reward))
    train, shares = tf.function(agent.train, autograph=False), []
    for _ in range(150):
        shares.append(float(train(own).extra['imitated_share']))
    time_step = ts.restart(tf.constant(ends[:1], tf.float32), batch_size=1)
    mode = agent.policy.distribution(time_step).action.mode()
    np.testing.assert_allclose(mode, [[1.5]], atol=0.3)
    assert 0.2 < np.mean(shares) < 0.8


def test_refuses_a_network_with_memory():
    slicing = Slicing(sequence_length=9, stride=8, cross_episodes=True, store_policy_state=True)
    agent = ppo.make_agent(
        SPECS,
        create_train_step(),
        dataclasses.replace(ppo.EXPERIENCE, slicing=slicing),
        network=NetworkOptions(fc_layer_params=(8,), lstm_size=(4,)),
    )
    with pytest.raises(
        ValueError, match='got Initial.demonstrations with a network with memory; PPO needs one without'
    ):
        agent.demonstrate(episode(np.eye(3)[:2], [[0.0], [0.0]], [1.0], True), 0.5)
