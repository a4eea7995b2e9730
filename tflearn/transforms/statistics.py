"""Mean and variance of values: of all so far, of the newest batches,
or with exponentially falling weights.

A learner updates them with its batches, in replica context; all replicas get the same numbers,
those of the global batch. Chan et al. 1979, "Updating formulae and a pairwise algorithm for
computing sample variances".
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import tensorflow as tf

from tflearn.core import moments
from tflearn.core.settings import PositiveInt, Range, checked_dataclass


class _Moments(tf.Module):
    """The mean and the variance of each element of some tensors; 0 and 1 before the first update.

    Attributes:
      means: float32 variables of the tensors' shapes.
      variances: float32 variables of the tensors' shapes.
      largest: a float32 variable of the largest absolute value, where a transform keeps one here.
    """

    largest: tf.Variable

    def __init__(self, specs: Sequence[tf.TensorSpec], name: str):
        """Makes the variables, in the strategy's scope."""
        super().__init__(name)
        self.means = [moments.variable(tf.zeros(spec.shape), 'mean') for spec in specs]
        self.variances = [moments.variable(tf.ones(spec.shape), 'variance') for spec in specs]

    def update(self, values: Sequence[tf.Tensor], counts: tf.Tensor) -> list[tf.Tensor]:
        """Adds the values of the global batch, in replica context;
        see `moments.of_batch`, also of the result.
        """
        number, means, squares, counted = moments.of_batch(values, counts)
        moments.join(self.means, self.variances, self._share(number), (number, means, squares))
        return counted

    def _share(self, number: tf.Tensor) -> tf.Tensor:
        """Returns the weight of a batch of so many values, with all before it, and counts them."""
        raise NotImplementedError


class _RunningMoments(_Moments):
    def __init__(self, specs: Sequence[tf.TensorSpec], name: str):
        super().__init__(specs, name)
        self._count = moments.variable(tf.zeros(()), 'count')

    def _share(self, number: tf.Tensor) -> tf.Tensor:
        total = self._count + number
        self._count.assign(total)
        return tf.math.divide_no_nan(number, total)


class _EmaMoments(_Moments):
    def __init__(self, specs: Sequence[tf.TensorSpec], name: str, rate: float):
        super().__init__(specs, name)
        self._rate = rate
        self._started = moments.variable(tf.zeros(()), 'started')

    def _share(self, number: tf.Tensor) -> tf.Tensor:
        rate = tf.where(self._started > 0, self._rate, 1.0)
        self._started.assign(tf.where(number > 0, 1.0, self._started))
        return tf.where(number > 0, rate, 0.0)


class _WindowMoments(_Moments):
    def __init__(self, specs: Sequence[tf.TensorSpec], name: str, num_batches: int):
        super().__init__(specs, name)
        rings = [tf.zeros((num_batches, *spec.shape)) for spec in specs]
        self._counts = moments.variable(tf.zeros((num_batches,)), 'counts')
        self._batch_means = [moments.variable(ring, 'batch_means') for ring in rings]
        self._batch_squares = [moments.variable(ring, 'batch_squares') for ring in rings]
        self._next = moments.variable(tf.constant(0, tf.int64), 'next')

    def update(self, values: Sequence[tf.Tensor], counts: tf.Tensor) -> list[tf.Tensor]:
        """See `_Moments`."""
        number, means, squares, counted = moments.of_batch(values, counts)
        size = self._counts.shape[0]
        is_slot = (tf.range(size, dtype=tf.int64) == self._next % size) & (number > 0)
        self._next.assign_add(tf.cast(number > 0, tf.int64))
        rings = [self._counts, *self._batch_means, *self._batch_squares]
        for ring, value in zip(rings, [number, *means, *squares], strict=True):
            slot = tf.reshape(is_slot, [size, *[1] * (ring.shape.rank - 1)])
            ring.assign(tf.where(slot, value[tf.newaxis], ring))
        total = tf.reduce_sum(self._counts)
        new_means, variances = [], []
        for batch_means, batch_squares in zip(self._batch_means, self._batch_squares, strict=True):
            weights = tf.reshape(self._counts, [size, *[1] * (batch_means.shape.rank - 1)])
            mean = tf.math.divide_no_nan(tf.reduce_sum(weights * batch_means, axis=0), total)
            between = weights * tf.math.squared_difference(batch_means, mean)
            variances.append(tf.math.divide_no_nan(tf.reduce_sum(batch_squares + between, axis=0), total))
            new_means.append(mean)
        for variable, value in zip([*self.means, *self.variances], [*new_means, *variances], strict=True):
            variable.assign(tf.where(number > 0, value, variable))
        return counted


Moments = _RunningMoments | _EmaMoments | _WindowMoments


@dataclasses.dataclass(frozen=True)
class Running:
    """Mean and variance of all values so far."""

    def make(self, specs: Sequence[tf.TensorSpec], name: str) -> Moments:
        """Makes the variables for tensors of these specs, in the strategy's scope."""
        return _RunningMoments(specs, name)


@checked_dataclass(frozen=True)
class Ema:
    """Mean and variance with weights that fall exponentially:
    a batch counts `rate`, all before it 1 - `rate`.

    Attributes:
      rate: the newest batch's weight, in (0, 1].
    """

    rate: Annotated[float, Range(above=0, most=1)] = 0.01

    def make(self, specs: Sequence[tf.TensorSpec], name: str) -> Moments:
        """Makes the variables for tensors of these specs, in the strategy's scope."""
        return _EmaMoments(specs, name, self.rate)


@checked_dataclass(frozen=True)
class Window:
    """Mean and variance of the values in the newest batches.

    Attributes:
      num_batches: the number of these batches.
    """

    num_batches: PositiveInt = 100

    def make(self, specs: Sequence[tf.TensorSpec], name: str) -> Moments:
        """Makes the variables for tensors of these specs, in the strategy's scope."""
        return _WindowMoments(specs, name, self.num_batches)


Statistics = Running | Ema | Window
