"""Transitions of sequences against plain loops in float64."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn.agents import actor_critic

FIRST, MID, LAST = (int(kind) for kind in (ts.StepType.FIRST, ts.StepType.MID, ts.StepType.LAST))
GAMMA = 0.9
# The next step types of sequences of three steps and a last row, and how many steps count.
EPISODES = {
    (MID, MID, MID): 3,
    (MID, MID, LAST): 3,
    (MID, LAST, FIRST): 2,
    (LAST, FIRST, MID): 1,  # the next episode is not a part of the return
    (MID, FIRST, MID): 1,  # the environment failed, and was rebuilt
    (FIRST, MID, MID): 0,
}


def sequences(terminated):
    """Returns a Trajectory [6, 4, ...] with a nested observation, and its arrays."""
    generator = np.random.default_rng(0)
    following = np.array([[*kinds, MID] for kinds in EPISODES], np.int32)
    rewards = generator.uniform(-1, 1, following.shape)
    discounts = np.where((following == LAST) & terminated, 0.0, 1.0)
    observation = generator.uniform(-1, 1, (*following.shape, 2))
    counted = generator.integers(0, 9, following.shape)
    data = trajectory.Trajectory(
        step_type=tf.fill(following.shape, MID),
        observation={'a': tf.constant(observation, tf.float32), 'b': tf.constant(counted)},
        action=tf.constant(observation, tf.float32),
        policy_info=(),
        next_step_type=tf.constant(following),
        reward=tf.constant(rewards, tf.float32),
        discount=tf.constant(discounts, tf.float32),
    )
    return data, rewards, discounts, observation, counted


@pytest.mark.parametrize('terminated', [True, False])
def test_n_step_returns_end_with_the_episode(terminated):
    data, rewards, discounts, observation, counted = sequences(terminated)
    found = actor_critic.of_n_steps(data, GAMMA, reward_scale=2.0)
    for i, num_steps in enumerate(EPISODES.values()):
        reward, factor = 0.0, 1.0
        for t in range(num_steps):
            reward += factor * rewards[i, t]
            factor *= GAMMA * discounts[i, t]
        assert float(found.reward[i]) == pytest.approx(2 * reward)
        assert float(found.discount[i]) == pytest.approx(factor)
        assert found.counts[i] == (num_steps > 0)
        np.testing.assert_allclose(found.next_observation['a'][i], observation[i, num_steps], rtol=1e-6)
        assert found.next_observation['b'][i] == counted[i, num_steps]
        np.testing.assert_allclose(found.action[i], observation[i, 0], rtol=1e-6)
    ended = [i for i, kinds in enumerate(EPISODES) if LAST in kinds]
    assert all((found.discount.numpy()[i] == 0) == terminated for i in ended), 'a truncated one keeps its value'


def test_one_step_returns_take_the_second_row():
    data, rewards, discounts, observation, _ = sequences(True)
    found = actor_critic.of_n_steps(tf.nest.map_structure(lambda leaf: leaf[:, :2], data), GAMMA, 1.0)
    has_action = np.array([kinds[0] != FIRST for kinds in EPISODES])
    np.testing.assert_allclose(found.reward, np.where(has_action, rewards[:, 0], 0), rtol=1e-6)
    np.testing.assert_allclose(found.discount, np.where(has_action, GAMMA * discounts[:, 0], 0), rtol=1e-6)
    np.testing.assert_allclose(found.next_observation['a'], observation[:, 1], rtol=1e-6)


def test_all_rows_but_the_last_are_transitions_of_one_step():
    data, rewards, discounts, observation, _ = sequences(True)
    found = actor_critic.of_steps(data, GAMMA, reward_scale=2.0)
    has_action = np.array([[kind != FIRST for kind in kinds] for kinds in EPISODES])
    np.testing.assert_array_equal(found.counts, has_action.ravel())
    np.testing.assert_allclose(found.reward, np.where(has_action, 2 * rewards[:, :-1], 0).ravel(), rtol=1e-6)
    np.testing.assert_allclose(found.discount, np.where(has_action, GAMMA * discounts[:, :-1], 0).ravel(), rtol=1e-6)
    np.testing.assert_allclose(found.next_observation['a'], observation[:, 1:].reshape(-1, 2), rtol=1e-6)
