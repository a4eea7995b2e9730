"""The loss of V-MPO: pure functions and their coefficients.

Song et al. 2019, "V-MPO: On-Policy Maximum a Posteriori Policy Optimization for Discrete and Continuous Control" (arXiv
1909.12238), section 4. With the advantages A of the steps D of a batch, of which D' is the half with the largest ones,
the policy pi' that acted, the temperature eta and the multipliers alpha:

  psi = exp(A / eta) / sum_D' exp(A / eta) in D', and 0 elsewhere
  policy loss = - sum_D' psi log pi(a | x)                                              (equation 3)
  temperature loss = eta epsilon_eta + eta log mean_D' exp(A / eta)                     (equation 4)
  KL loss = mean_D alpha (epsilon_alpha - [KL(pi', pi)]) + [alpha] KL(pi', pi)          (equation 5)

Brackets mark what has no gradient. For continuous actions the KL loss has two such terms, of which the first compares
only the means, the second only the covariances.
"""

from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from tflearn.core.settings import Fraction, PositiveFloat, checked_dataclass


@checked_dataclass(frozen=True)
class VMPOLoss:
    """The loss: policy + temperature + KL + value_coefficient * value.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      lambda_: the lambda of advantages and values' targets; 1 is the n-step return to the end of the sequence, as in
        the paper.
      value_coefficient: the coefficient of the value's squared error; 0.5 in the paper.
      epsilon_eta: the bound of the KL divergence [nats] of psi from equal weights.
      epsilon_alpha: the bound of KL(pi', pi) [nats] of integers in the action.
      epsilon_mean: the same of the means of floats in the action.
      epsilon_covariance: the same of their covariances.
      initial_eta: the initial temperature, in the unit of the advantages.
      initial_alpha: the initial value of each multiplier.
    """

    gamma: Fraction = 0.99
    lambda_: Fraction = 1.0
    value_coefficient: PositiveFloat = 0.5
    epsilon_eta: PositiveFloat = 0.1
    epsilon_alpha: PositiveFloat = 0.01
    epsilon_mean: PositiveFloat = 0.01
    epsilon_covariance: PositiveFloat = 1e-4
    initial_eta: PositiveFloat = 1.0
    initial_alpha: PositiveFloat = 5.0

    def epsilon(self, kind: str) -> float:
        """Returns the bound of a divergence of `divergences`."""
        return {'kl': self.epsilon_alpha, 'kl_mean': self.epsilon_mean, 'kl_covariance': self.epsilon_covariance}[kind]


class Best(NamedTuple):
    """The half D' of the global batch.

    Attributes:
      threshold: float32 scalar, its least advantage.
      peak: float32 scalar, its largest advantage.
      log_total: float32 scalar, log sum_D' exp((A - peak) / eta).
      log_mean: float32 scalar, log mean_D' exp((A - peak) / eta).
      count: float32 scalar, the sum of the weights of all steps D.
    """

    threshold: tf.Tensor
    peak: tf.Tensor
    log_total: tf.Tensor
    log_mean: tf.Tensor
    count: tf.Tensor


def best(advantages: tf.Tensor, counts: tf.Tensor, eta: tf.Tensor) -> Best:
    """Returns the half of the global batch's steps with the largest advantages, in replica context.

    It is rounded up, and includes all steps whose advantage equals the least of it.

    Args:
      advantages: float32 [...], those of this replica.
      counts: float32 [...], the weight of each step; 0 for an invalid one.
      eta: float32 scalar, the temperature.
    """
    context = tf.distribute.get_replica_context()
    advantages, counts = tf.reshape(advantages, [-1]), tf.reshape(counts, [-1])
    if context.num_replicas_in_sync > 1:
        advantages, counts = context.all_gather([advantages, counts], axis=0)
    valid = counts > 0
    ordered = tf.sort(tf.where(valid, advantages, -float('inf')), direction='DESCENDING')
    size = (tf.reduce_sum(tf.cast(valid, tf.int32)) + 1) // 2
    threshold = ordered[tf.maximum(size - 1, 0)]
    weights = tf.where(valid & (advantages >= threshold), counts, 0.0)
    is_any = size > 0
    peak = tf.where(is_any, ordered[0], 0.0)
    total = tf.reduce_sum(weights * tf.exp(tf.where(weights > 0, advantages - peak, 0.0) / eta))
    log_total = tf.math.log(tf.where(is_any, total, 1.0))
    log_number = tf.math.log(tf.where(is_any, tf.reduce_sum(weights), 1.0))
    return Best(threshold, peak, log_total, log_total - log_number, tf.reduce_sum(counts))


def psi(advantages: tf.Tensor, eta: tf.Tensor, half: Best) -> tf.Tensor:
    """Returns the weights of log pi [...], without gradients; over the global batch their sum is 1."""
    inside = advantages >= half.threshold
    exponents = tf.where(inside, advantages - half.peak, 0.0) / eta - half.log_total
    return tf.stop_gradient(tf.where(inside, tf.exp(exponents), 0.0))


def temperature_loss(eta: tf.Tensor, half: Best, epsilon: float) -> tf.Tensor:
    """Returns the loss of the temperature, a scalar."""
    return half.peak + eta * (epsilon + half.log_mean)


def divergences(before: Any, now: Any, outer_rank: int) -> dict[str, tf.Tensor]:
    """Returns KL(before, now) of a nest of distributions, each summed over its kind of tensors of the action.

    Of normal distributions with independent dimensions, with `before`'s mean m' and deviation s', `now`'s m and s:

      kl_mean = 1/2 sum ((m - m') / s')^2
      kl_covariance = 1/2 sum (s' / s)^2 - 1 - log (s' / s)^2

    Args:
      before: a nest of distributions, of categories or normal, of outer dimensions [...].
      now: the same.
      outer_rank: the number of outer dimensions.

    Returns:
      float32 [...] by name: 'kl' of categories, 'kl_mean' and 'kl_covariance' of numbers; only those that there are.
    """
    found: dict[str, list[tf.Tensor]] = {}
    total = lambda values: tf.reduce_sum(values, axis=list(range(outer_rank, values.shape.rank)))  # noqa: E731
    for old, new in zip(tf.nest.flatten(before), tf.nest.flatten(now), strict=True):
        if new.dtype.is_floating:
            mean, deviation = old.mean(), old.stddev()
            ratio = tf.square(deviation / new.stddev())
            found.setdefault('kl_mean', []).append(total(0.5 * tf.square((new.mean() - mean) / deviation)))
            found.setdefault('kl_covariance', []).append(total(0.5 * (ratio - 1 - tf.math.log(ratio))))
        else:
            found.setdefault('kl', []).append(total(tfp.distributions.kl_divergence(old, new)))
    return {name: tf.add_n(parts) for name, parts in found.items()}
