"""V-trace: off-policy targets and advantages, as pure functions.

Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures" (arXiv 1802.01561), section 4.1. B is the batch, T the number of transitions of a
sequence. With the behaviour policy mu and the target policy pi:

  ratio_t = pi(a_t | x_t) / mu(a_t | x_t)
  rho_t = min(rho_bar, ratio_t)      c_t = lambda min(c_bar, ratio_t)
  delta_t = rho_t (r_t + gamma_t V(x_t+1) - V(x_t))
  v_t = V(x_t) + delta_t + gamma_t c_t (v_t+1 - V(x_t+1))      v_T = V(x_T)
  advantage_t = min(pg_rho_bar, ratio_t) (r_t + gamma_t v_t+1 - V(x_t))

Differs from the paper: lambda, which is 1 there (remark 2 mentions it), and invalid steps: between
two episodes and in padding, v_t = V(x_t) and the advantage is 0. With the last observation of an
episode at such a step, both a termination (gamma_t = 0) and a truncation (bootstrapped from that
observation) are correct.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, PositiveFloat, checked


@checked
def targets(
    log_ratios: tf.Tensor,
    rewards: tf.Tensor,
    discounts: tf.Tensor,
    values: tf.Tensor,
    valid: tf.Tensor | None = None,
    *,
    rho_bar: PositiveFloat | None = 1.0,
    c_bar: PositiveFloat | None = 1.0,
    pg_rho_bar: PositiveFloat | None = 1.0,
    lambda_: Fraction = 1.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the targets v_t of the values, and the advantages, the weights of log pi(a_t | x_t):
    float32 [B, T].

    Neither has a gradient.

    It takes log2(T) rounds: unrolled if T is static, otherwise in a loop. XLA compiles both.

    Args:
      log_ratios: float32 [B, T], log pi(a_t | x_t) - log mu(a_t | x_t).
      rewards: float32 [B, T], r_t.
      discounts: float32 [B, T], gamma_t: 0 where the episode was terminated.
      values: float32 [B, T + 1], V(x_t), including that of x_T.
      valid: bool [B, T], whether the step is valid; None is all. Except for `values`, the arguments
        at invalid steps have no effect, even if they are not finite.
      rho_bar: the bound of rho_t, which determines to what the values converge; None is no bound.
      c_bar: the bound of c_t, which determines how fast they converge; None is no bound.
      pg_rho_bar: the bound of the ratio in the advantages; None is no bound.
      lambda_: from 0 (one step) to 1 (all steps).

    Raises:
      ValueError: for inconsistent shapes or invalid bounds.
    """
    _check_shapes(log_ratios, rewards, discounts, values)
    values = tf.stop_gradient(values)
    if valid is not None:
        log_ratios, rewards, discounts = (
            tf.where(valid, part, tf.zeros_like(part)) for part in (log_ratios, rewards, discounts)
        )
    counts = tf.ones_like(rewards) if valid is None else tf.cast(valid, rewards.dtype)
    log_ratios = tf.stop_gradient(log_ratios)
    now, following = values[:, :-1], values[:, 1:]
    deltas = counts * clipped_ratios(log_ratios, rho_bar) * (rewards + discounts * following - now)
    # The discounts are 0 at invalid steps, so nothing is traced back through them.
    excess = backward_sums(deltas, discounts * lambda_ * clipped_ratios(log_ratios, c_bar))
    next_targets = following + tf.concat([excess[:, 1:], tf.zeros_like(excess[:, :1])], axis=1)
    advantages = counts * clipped_ratios(log_ratios, pg_rho_bar) * (rewards + discounts * next_targets - now)
    return tf.stop_gradient(now + excess), tf.stop_gradient(advantages)


def clipped_ratios(log_ratios: tf.Tensor, bound: float | None) -> tf.Tensor:
    """Returns min(bound, exp(log_ratios)), which cannot overflow unless `bound` is None."""
    return tf.exp(log_ratios if bound is None else tf.minimum(log_ratios, math.log(bound)))


def backward_sums(terms: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """Returns s with s_t = terms_t + factors_t s_t+1 and s_T = 0.

    Round k doubles the sums over 2^k steps (Hillis and Steele 1986, "Data parallel algorithms"):
    log2(T) operations on all steps instead of T operations on one.

    Args:
      terms: float32 [B, T].
      factors: float32 [B, T].
    """
    length = terms.shape[1]
    if length is not None:
        for round_ in range(max(0, length - 1).bit_length()):
            terms, factors = _doubled(terms, factors, _shift(2**round_))
        return terms
    indices = tf.range(tf.shape(terms)[1])

    def body(offset: tf.Tensor, terms: tf.Tensor, factors: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return (2 * offset, *_doubled(terms, factors, _gather(indices + offset)))

    start = (tf.constant(1), terms, factors)
    return tf.while_loop(lambda offset, *_: offset < tf.size(indices), body, start)[1]


def _check_shapes(log_ratios: tf.Tensor, rewards: tf.Tensor, discounts: tf.Tensor, values: tf.Tensor) -> None:
    for name, tensor in {'log_ratios': log_ratios, 'discounts': discounts, 'rewards': rewards}.items():
        if tensor.shape.rank != 2 or not tensor.shape.is_compatible_with(log_ratios.shape):
            raise UserValueError(f'got {name} {tensor.shape} with log_ratios {log_ratios.shape}; need [B, T] for both')
    length = log_ratios.shape[1]
    if values.shape.rank != 2 or not (length is None or values.shape[1] in (None, length + 1)):
        raise UserValueError(
            f'got values {values.shape} for {length} steps; need [B, T + 1], including the bootstrap value'
        )


def _doubled(
    terms: tf.Tensor, factors: tf.Tensor, later: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    # Without bounds the product of many ratios may be infinite, even where it is multiplied by 0.
    return terms + tf.math.multiply_no_nan(factors, later(terms)), tf.math.multiply_no_nan(factors, later(factors))


def _shift(offset: int) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda tensor: tf.pad(tensor[:, offset:], [[0, 0], [0, offset]])


def _gather(indices: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function like that of `_shift`, for an offset that is a tensor."""
    inside = indices < tf.size(indices)

    def later(tensor: tf.Tensor) -> tf.Tensor:
        values = tf.gather(tensor, tf.where(inside, indices, 0), axis=1)
        return tf.ensure_shape(tf.where(inside, values, tf.zeros_like(values)), tensor.shape)

    return later
