"""Transitions: what agents that learn from old items, in any order, make of sequences."""

from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.trajectories import time_step as ts


class Transitions(NamedTuple):
    """Transitions over one or several steps; R rows.

    Attributes:
      observation: nest of [R, ...].
      action: nest of [R, ...].
      reward: float32 [R], the sum of the discounted rewards.
      discount: float32 [R], of the value of `next_observation`; 0 where the episode terminated.
      next_observation: nest of [R, ...].
      counts: float32 [R], 0 for a row between two episodes, which has no action; else 1.
    """

    observation: Any
    action: Any
    reward: tf.Tensor
    discount: tf.Tensor
    next_observation: Any
    counts: tf.Tensor


def of_n_steps(experience: Any, gamma: float, reward_scale: float) -> Transitions:
    """Returns the n-step transitions of sequences, one of each; fewer steps where an episode ended before.

    With the rewards r and discounts d of the steps 0 ... k - 1, where k is n, or where the episode ended:

      reward = sum_t gamma^t d_0 ... d_t-1 r_t
      discount = gamma^k d_0 ... d_k-1

    Args:
      experience: a Trajectory [B, n + 1, ...], whose last row is only used for its observation.
      gamma: the discount per step.
      reward_scale: the factor of the rewards.
    """
    if experience.reward.shape[1] == 2:
        return of_steps(experience, gamma, reward_scale)
    # Rows between two episodes, and those in which an environment failed, have no action; later ones do not follow.
    own = tf.cast(experience.next_step_type[:, :-1] != ts.StepType.FIRST, tf.float32)
    valid = tf.math.cumprod(own, axis=1)
    discounts = tf.where(valid > 0, gamma * experience.discount[:, :-1], 1.0)
    rewards = tf.where(valid > 0, experience.reward[:, :-1], 0.0)
    reward = tf.reduce_sum(tf.math.cumprod(discounts, axis=1, exclusive=True) * rewards, axis=1)
    num_steps = tf.cast(tf.reduce_sum(valid, axis=1), tf.int32)
    first = lambda leaf: leaf[:, 0]  # noqa: E731
    return Transitions(
        tf.nest.map_structure(first, experience.observation),
        tf.nest.map_structure(first, experience.action),
        reward_scale * reward,
        tf.reduce_prod(discounts, axis=1),
        tf.nest.map_structure(lambda leaf: tf.gather(leaf, num_steps, axis=1, batch_dims=1), experience.observation),
        valid[:, 0],
    )


def of_steps(experience: Any, gamma: float, reward_scale: float) -> Transitions:
    """Returns the transitions of all rows but the last of sequences [B, T + 1, ...], one after the other: [B * T, ...].

    Args:
      experience: a Trajectory [B, T + 1, ...].
      gamma: the discount per step.
      reward_scale: the factor of the rewards.
    """
    now, following = slice(None, -1), slice(1, None)

    def rows(nest: Any, part: slice) -> Any:
        return tf.nest.map_structure(lambda leaf: joined_rows(leaf[:, part]), nest)

    counts = tf.cast(rows(experience.next_step_type, now) != ts.StepType.FIRST, tf.float32)
    # Where a row has no action, its reward may be anything.
    reward, discount = (tf.where(counts > 0, rows(leaf, now), 0.0) for leaf in (experience.reward, experience.discount))
    return Transitions(
        rows(experience.observation, now),
        rows(experience.action, now),
        reward_scale * reward,
        gamma * discount,
        rows(experience.observation, following),
        counts,
    )


def joined_rows(leaf: tf.Tensor) -> tf.Tensor:
    """Returns [B, T, ...] as [B * T, ...]."""
    if leaf.shape[1] == 1:
        return leaf[:, 0]
    return tf.reshape(leaf, tf.concat([[-1], tf.shape(leaf)[2:]], axis=0))
