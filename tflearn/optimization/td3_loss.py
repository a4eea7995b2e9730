"""The losses of TD3, DDPG and TD3+BC: pure functions and their settings; `agents/td3.py` has papers and equations.

Letters in shapes: B items of a batch, A numbers of the action.
"""

from typing import Any

import tensorflow as tf

from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, checked_dataclass


@checked_dataclass(frozen=True)
class TD3Loss:
    """The losses, and how often the actor is trained.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      reward_scale: the factor of the rewards.
      policy_delay: train steps between two updates of the actor and of all targets, the paper's d.
      target_policy_noise: the deviation of the noise in the targets' actions, the paper's sigma, as a share of half the
        range of each action.
      target_policy_noise_clip: the largest absolute value of that noise, the paper's c, as such a share.
      behavior_cloning_alpha: TD3+BC's alpha, the weight of the values beside the distance from the data's actions; the
        paper's is 2.5. For training from files; None has no such distance.
    """

    gamma: Fraction = 0.99
    reward_scale: float = 1.0
    policy_delay: PositiveInt = 2
    target_policy_noise: NonNegativeFloat = 0.2
    target_policy_noise_clip: NonNegativeFloat = 0.5
    behavior_cloning_alpha: PositiveFloat | None = None


def smoothed_actions(actions: tf.Tensor, noise: tf.Tensor, bounds: tuple[Any, Any], options: TD3Loss) -> tf.Tensor:
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
