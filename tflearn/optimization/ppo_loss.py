"""The loss of proximal policy optimization: pure functions and their coefficients.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (arXiv 1707.06347): the clipped objective (equation 7)
and the adaptive KL penalty (section 4); Schulman et al. 2016 (arXiv 1506.02438): generalized advantage estimation. The
terms are those of TF-Agents' PPOAgent.
"""

import tensorflow as tf

from tflearn.core.settings import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, checked_dataclass
from tflearn.optimization import vtrace
from tflearn.optimization.schedules import Schedule


@checked_dataclass(frozen=True)
class PPOLoss:
    """The loss: policy + value_coefficient * value - entropy_coefficient * entropy + kl_coefficient * KL.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      lambda_: the lambda of the advantages, from 0 (one step) to 1 (to the end of the sequence).
      normalize_advantages: whether to normalize advantages to mean 0 and variance 1 over an iteration's steps.
      clip_epsilon: the distance from 1 at which a probability ratio is clipped, or a schedule of the train step; None
        does not clip.
      value_coefficient: the coefficient of the value's squared error.
      value_clipping: the largest change of a value from the iteration's start that its loss takes into account; None is
        no bound.
      entropy_coefficient: the coefficient of the policy's entropy, or a schedule of the train step.
      kl_coefficient: the initial coefficient of the divergence from the policy that acted; 0 has no such penalty.
      kl_target: the target of that divergence [nats]. After an iteration whose divergence exceeds 1.5 times the target,
        the coefficient is doubled; below the target divided by 1.5 it is halved. The divergence is that of the last
        minibatch before its step, unlike in the paper, where it is over all steps. None keeps the coefficient constant.
      value_warmup_steps: train steps at the beginning of a run in which only the value's loss counts, so that the first
        advantages that the policy learns from are better than chance. What policy and value share is trained too.
    """

    gamma: Fraction = 0.99
    lambda_: Fraction = 0.95
    normalize_advantages: bool = True
    clip_epsilon: PositiveFloat | Schedule | None = 0.2
    value_coefficient: NonNegativeFloat = 0.5
    value_clipping: PositiveFloat | None = None
    entropy_coefficient: NonNegativeFloat | Schedule = 0.0
    kl_coefficient: NonNegativeFloat = 0.0
    kl_target: PositiveFloat | None = 0.01
    value_warmup_steps: NonNegativeInt = 0

    def warmed_up(self, term: tf.Tensor, train_step: tf.Tensor) -> tf.Tensor:
        """Returns a term of the loss, which is not the value's; 0 in the warm-up's train steps."""
        return tf.where(train_step >= self.value_warmup_steps, term, 0.0) if self.value_warmup_steps else term

    def epsilon(self, train_step: tf.Tensor) -> tf.Tensor | float | None:
        """Returns `clip_epsilon` at a train step."""
        return self.clip_epsilon(train_step) if callable(self.clip_epsilon) else self.clip_epsilon

    def entropy_weight(self, train_step: tf.Tensor) -> tf.Tensor | float:
        """Returns the entropy's coefficient at a train step."""
        return self.entropy_coefficient(train_step) if callable(self.entropy_coefficient) else self.entropy_coefficient


def advantages(
    rewards: tf.Tensor, discounts: tf.Tensor, values: tf.Tensor, last: tf.Tensor, valid: tf.Tensor, lambda_: float
) -> tf.Tensor:
    """Generalized advantage estimation (arXiv 1506.02438, equation 16) for sequences that may contain several episodes.

    delta_t = r_t + gamma_t V(x_t+1) - V(x_t)
    A_t = delta_t + lambda gamma_t (1 - last_t) A_t+1      A_T = 0

    Args:
      rewards: float32 [B, T], r_t.
      discounts: float32 [B, T], gamma_t: 0 where the episode was terminated.
      values: float32 [B, T + 1], V(x_t), including that of x_T.
      last: bool [B, T], whether x_t+1 is an episode's last observation; its value is used, as after a time limit.
      valid: bool [B, T], whether the step is valid; otherwise A_t is 0 and nothing is traced back through it.
      lambda_: from 0 to 1.

    Returns:
      A, float32 [B, T].
    """
    deltas = tf.where(valid, rewards + discounts * values[:, 1:] - values[:, :-1], 0.0)
    return vtrace.backward_sums(deltas, tf.where(valid & ~last, lambda_ * discounts, 0.0))


def policy_loss(ratios: tf.Tensor, advantages: tf.Tensor, epsilon: tf.Tensor | float | None) -> tf.Tensor:
    """Returns - min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon) A), or - ratio A without an epsilon, [B]."""
    if epsilon is None:
        return -ratios * advantages
    return -tf.minimum(ratios * advantages, tf.clip_by_value(ratios, 1 - epsilon, 1 + epsilon) * advantages)


def value_loss(values: tf.Tensor, targets: tf.Tensor, before: tf.Tensor, clipping: float | None) -> tf.Tensor:
    """Returns (V - target)^2, or the maximum of that and the same for V clipped to `before` +- `clipping`, [B]."""
    squares = tf.math.squared_difference(values, targets)
    if clipping is None:
        return squares
    clipped = before + tf.clip_by_value(values - before, -clipping, clipping)
    return tf.maximum(squares, tf.math.squared_difference(clipped, targets))


def next_kl_coefficient(coefficient: tf.Tensor, divergence: tf.Tensor, target: float) -> tf.Tensor:
    """Returns the penalty's coefficient after an iteration with this divergence [nats]."""
    factor = tf.where(divergence > 1.5 * target, 2.0, tf.where(divergence < target / 1.5, 0.5, 1.0))
    return tf.clip_by_value(coefficient * factor, 1e-15, 1e15)


def normalized(advantages: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns advantages [B, T] normalized to mean 0 and variance 1 over the valid steps of the global batch."""
    reduce = tf.distribute.get_replica_context().all_reduce
    count, total = reduce(tf.distribute.ReduceOp.SUM, [tf.reduce_sum(counts), tf.reduce_sum(counts * advantages)])
    mean = tf.math.divide_no_nan(total, count)
    squares = reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(counts * tf.square(advantages - mean)))
    return (advantages - mean) * tf.math.rsqrt(tf.math.divide_no_nan(squares, count) + 1e-8)
