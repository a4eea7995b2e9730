"""Losses of algorithms that learn from recorded data: pure functions.

Expectile regression and advantage weights: Kostrikov et al. 2021, "Offline Reinforcement Learning
with Implicit Q-Learning" (arXiv 2110.06169), equations 5 and 7. Weights that sum to 1 over a batch:
Nair et al. 2020, "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets" (arXiv
2006.09359), equation 13 and appendix.
"""

import tensorflow as tf

_ILLEGAL = -1e8


def expectile_losses(differences: tf.Tensor, expectile: float) -> tf.Tensor:
    """Returns |expectile - 1(u < 0)| u^2 of each difference u, whose mean the expectile minimizes.

    Args:
      differences: float32 [...], target minus prediction.
      expectile: in (0, 1): 0.5 weighs both signs alike, which is half the squared error.
    """
    return tf.where(differences < 0, 1.0 - expectile, expectile) * tf.square(differences)


def advantage_weights(advantages: tf.Tensor, inverse_temperature: float, max_weight: float) -> tf.Tensor:
    """Returns min(exp(inverse_temperature * advantage), max_weight), float32 [...],
    without a gradient.

    Args:
      advantages: float32 [...].
      inverse_temperature: 0 weighs all actions alike.
      max_weight: the greatest weight, above 0.
    """
    # The exponent is bounded, not the weight alone: exp of a large number would be infinite.
    exponents = tf.minimum(inverse_temperature * advantages, tf.math.log(tf.cast(max_weight, advantages.dtype)))
    return tf.stop_gradient(tf.exp(exponents))


def softmax_weights(scores: tf.Tensor, temperature: float, counts: tf.Tensor) -> tf.Tensor:
    """Returns exp((score - greatest score of the global batch) / temperature), without a gradient;
    in replica context.

    Divided by their sum, they are the softmax over the global batch; see `with_mean_one`.

    Args:
      scores: float32 [...].
      temperature: above 0; the smaller, the more the greatest scores count.
      counts: float32 [...]: 0 where a row does not count. Its weight is 0.
    """
    greatest = tf.reduce_max(tf.where(counts > 0, scores, scores.dtype.min))
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync > 1:
        greatest = tf.reduce_max(context.all_gather(greatest[tf.newaxis], axis=0))
    exponents = tf.where(counts > 0, (scores - greatest) / temperature, 0.0)
    return tf.stop_gradient(tf.where(counts > 0, tf.exp(exponents), 0.0))


def legal_counts(log_probs: tf.Tensor, masked: bool) -> tf.Tensor:
    """Returns float32 [...]: 0 for recorded actions that a mask forbids, else 1.

    Args:
      log_probs: float32 [...], of recorded actions; of those that the mask forbids nearly -1e9.
      masked: whether there is a mask. Without one, an action far from a narrow normal distribution
        may be as unlikely.
    """
    return tf.cast(log_probs > _ILLEGAL, tf.float32) if masked else tf.ones_like(log_probs)


def with_mean_one(weights: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns weights divided by their mean over the rows of the global batch that count;
    in replica context.

    Args:
      weights: float32 [...], 0 where a row does not count.
      counts: float32 [...], 1 for the rows of the mean, 0 for others.
    """
    sums = tf.stack([tf.reduce_sum(weights), tf.reduce_sum(counts)])
    total, count = tf.unstack(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, sums))
    return weights * tf.math.divide_no_nan(count, total)
