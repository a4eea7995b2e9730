"""The losses of TD3, DDPG and TD3+BC: pure functions and their settings; `agents/td3.py` has papers and equations.

Letters in shapes: B items of a batch, n steps of an n-step return, A numbers of the action.
"""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserValueError


@dataclasses.dataclass(frozen=True)
class LossOptions:
    """The losses and the targets' updates; see `td3.make_agent` for them."""

    gamma: float = 0.99
    reward_scale: float = 1.0
    target_update_tau: float = 0.005
    policy_delay: int = 2
    target_policy_noise: float = 0.2
    target_policy_noise_clip: float = 0.5
    behavior_cloning_alpha: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1 or not 0 < self.target_update_tau <= 1:
            raise UserValueError(
                f'got gamma={self.gamma!r}, target_update_tau={self.target_update_tau!r}; need a number in [0, 1], and '
                'one above 0, at most 1'
            )
        if not isinstance(self.policy_delay, int) or self.policy_delay < 1:
            raise UserValueError(f'got policy_delay={self.policy_delay!r}; need an integer of at least 1 train step')
        if not self.target_policy_noise >= 0 or not self.target_policy_noise_clip >= 0:
            raise UserValueError(
                f'got target_policy_noise={self.target_policy_noise!r}, target_policy_noise_clip='
                f'{self.target_policy_noise_clip!r}; need numbers of at least 0, as shares of half the range of actions'
            )
        if self.behavior_cloning_alpha is not None and not self.behavior_cloning_alpha > 0:
            raise UserValueError(
                f'got behavior_cloning_alpha={self.behavior_cloning_alpha!r}; need a number above 0, or None'
            )


class Transitions(NamedTuple):
    """Transitions over n steps, or fewer where an episode ended before.

    Attributes:
      observation: nest of [B, ...].
      action: nest of [B, ...].
      reward: float32 [B], the sum of the discounted rewards.
      discount: float32 [B], of the value of `next_observation`; 0 where the episode terminated.
      next_observation: nest of [B, ...].
      counts: float32 [B], 0 for a row between two episodes, which has no action; else 1.
    """

    observation: Any
    action: Any
    reward: tf.Tensor
    discount: tf.Tensor
    next_observation: Any
    counts: tf.Tensor


def transitions(experience: Any, gamma: float, reward_scale: float) -> Transitions:
    """Returns the n-step transitions of sequences.

    With the rewards r and discounts d of the steps 0 ... k - 1, where k is n, or where the episode ended:

      reward = sum_t gamma^t d_0 ... d_t-1 r_t
      discount = gamma^k d_0 ... d_k-1

    Args:
      experience: a Trajectory [B, n + 1, ...], whose last row is only used for its observation.
      gamma: the discount per step.
      reward_scale: the factor of the rewards.
    """
    # Rows between two episodes, and those in which an environment failed, have no action; later ones do not follow.
    own = tf.cast(experience.next_step_type[:, :-1] != ts.StepType.FIRST, tf.float32)
    valid = tf.math.cumprod(own, axis=1)
    discounts = tf.where(valid > 0, gamma * experience.discount[:, :-1], 1.0)
    rewards = tf.where(valid > 0, experience.reward[:, :-1], 0.0)
    reward = tf.reduce_sum(tf.math.cumprod(discounts, axis=1, exclusive=True) * rewards, axis=1)
    num_steps = tf.cast(tf.reduce_sum(valid, axis=1), tf.int32)

    def last(leaf: tf.Tensor) -> tf.Tensor:
        return leaf[:, 1] if leaf.shape[1] == 2 else tf.gather(leaf, num_steps, axis=1, batch_dims=1)

    return Transitions(
        tf.nest.map_structure(lambda leaf: leaf[:, 0], experience.observation),
        tf.nest.map_structure(lambda leaf: leaf[:, 0], experience.action),
        reward_scale * reward,
        tf.reduce_prod(discounts, axis=1),
        tf.nest.map_structure(last, experience.observation),
        valid[:, 0],
    )


def smoothed_actions(actions: tf.Tensor, noise: tf.Tensor, bounds: tuple[Any, Any], options: LossOptions) -> tf.Tensor:
    """Returns the targets' actions with clipped noise, within their bounds; float32 [B, A].

    Args:
      actions: float32 [B, A].
      noise: float32 [B, A], standard normal.
      bounds: the least and the greatest actions, float32 [A] each.
      options: deviation and clipping of the noise, as shares of half the range.
    """
    low, high = bounds
    bound = options.target_policy_noise_clip
    shares = tf.clip_by_value(options.target_policy_noise * noise, -bound, bound)
    return tf.clip_by_value(actions + (high - low) / 2 * shares, low, high)


def value_scale(alpha: float, values: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns TD3+BC's lambda, alpha / mean |value| over the global batch, in replica context; a constant scalar.

    Args:
      alpha: the paper's alpha.
      values: float32 [B], the values of the data's actions.
      counts: float32 [B], 0 for the items that are left out.
    """
    sums = tf.stop_gradient(tf.stack([tf.reduce_sum(counts * tf.abs(values)), tf.reduce_sum(counts)]))
    total, count = tf.unstack(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, sums))
    return tf.math.divide_no_nan(alpha * count, total)


def distances(actions: tf.Tensor, others: tf.Tensor, bounds: tuple[Any, Any]) -> tf.Tensor:
    """Returns the mean squared distances of actions [B, A], in units of half the range of each number; float32 [B]."""
    low, high = bounds
    shares = tf.math.divide_no_nan(actions - others, (high - low) / 2)
    return tf.reduce_mean(tf.square(shares), axis=1)
