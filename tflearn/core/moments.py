"""Mean and variance of the values of a global batch,
and the variables that keep statistics of them.

All replicas get the same numbers. Chan et al. 1979, "Updating formulae and a pairwise algorithm for
computing sample variances", has the way to join those of several batches.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def variable(value: Any, name: str, dtype: tf.DType | None = None) -> tf.Variable:
    """Returns a variable to which all replicas assign the same value, in the strategy's scope."""
    aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return tf.Variable(value, trainable=False, name=name, dtype=dtype, aggregation=aggregation)


def of_batch(
    values: Sequence[tf.Tensor], counts: tf.Tensor
) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
    """Returns the moments of the values of the global batch, in replica context.

    Args:
      values: this replica's part of each tensor, [B, T, *spec].
      counts: float32 [B, T], 1 for values that count, else 0. Steps with a value that is not finite
        do not count.

    Returns:
      The number of steps that count; of each tensor the mean and the sum of squared deviations,
      float32 [*spec]; and this replica's part of each with 0 in steps that do not count.
    """
    values = [tf.cast(value, tf.float32) for value in values]
    for value in values:
        finite = tf.reduce_all(tf.math.is_finite(value), axis=list(range(2, value.shape.rank)))
        counts = tf.where(finite, counts, 0.0)
    masks = [tf.reshape(counts, [*tf.unstack(tf.shape(counts)), *[1] * (value.shape.rank - 2)]) for value in values]
    values = [tf.where(mask > 0, value, 0.0) for mask, value in zip(masks, values, strict=True)]
    reduce = lambda parts: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, parts)  # noqa: E731
    number, *sums = reduce([tf.reduce_sum(counts), *(tf.reduce_sum(value, axis=[0, 1]) for value in values)])
    means = [tf.math.divide_no_nan(total, number) for total in sums]
    squares = reduce(
        [
            tf.reduce_sum(mask * tf.math.squared_difference(value, mean), axis=[0, 1])
            for mask, value, mean in zip(masks, values, means, strict=True)
        ]
    )
    return number, means, squares, values


def join(
    means: Sequence[tf.Variable],
    variances: Sequence[tf.Variable],
    share: tf.Tensor,
    batch: tuple[tf.Tensor, Sequence[tf.Tensor], Sequence[tf.Tensor]],
) -> None:
    """Adds a global batch to means and variances, in replica context.

    Args:
      means: the variables of the means.
      variances: the variables of the variances.
      share: the batch's share of all values with it: 1 for the first, 0 for none.
      batch: the number of steps that count, and the means and sums of squared deviations, see
        `of_batch`.
    """
    number, new_means, squares = batch
    for mean, variance, new, square in zip(means, variances, new_means, squares, strict=True):
        delta = new - mean
        within = share * tf.math.divide_no_nan(square, number)
        variance.assign((1 - share) * (variance + share * tf.square(delta)) + within)
        mean.assign_add(share * delta)


def grow(largest: tf.Variable, counted: tf.Tensor) -> None:
    """Assigns the largest absolute value so far with those of a global batch, in replica context;
    see `of_batch`.
    """
    context, new = tf.distribute.get_replica_context(), tf.reduce_max(tf.abs(counted), axis=[0, 1])
    # A replica context itself can sum and average only.
    slots = tf.one_hot(context.replica_id_in_sync_group, context.num_replicas_in_sync)
    values = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.tensordot(slots, new, axes=0))
    largest.assign(tf.maximum(largest, tf.reduce_max(values, axis=0)))
