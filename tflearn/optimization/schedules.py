"""Schedules: train step -> value (a learning rate, an epsilon)."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Finite, PositiveFloat, PositiveInt, checked
from tflearn.core.train_step import EnvSteps

Schedule = Callable[[tf.Tensor], tf.Tensor]


def at(value: Any, train_step: tf.Tensor) -> Any:
    """Returns the value of a schedule at a train step; another value as it is."""
    return value(train_step) if callable(value) else value


def constant(value: float) -> Schedule:
    """Returns a constant schedule (float32 scalar)."""
    return lambda step: tf.constant(value, tf.float32)


@checked
def linear(start: float, end: float, steps: PositiveInt) -> Schedule:
    """Returns a schedule that is linear from `start` at train step 0 to `end` at train step `steps`, then constant.

    Args:
      start: the value at step 0.
      end: the value from step `steps` on.
      steps: train steps; at least 1.

    Returns:
      A function from the train step (integer scalar) to a float32 scalar.

    Raises:
      ValueError: if `steps` is below 1.
    """

    def value(step: tf.Tensor) -> tf.Tensor:
        share = tf.minimum(tf.cast(step, tf.float32) / steps, 1.0)
        return start + (end - start) * share

    return value


@checked
def exponential(start: PositiveFloat, end: PositiveFloat, steps: PositiveInt) -> Schedule:
    """Returns a schedule that is exponential from `start` at train step 0 to `end` at `steps`,
    then constant.

    Args:
      start: the value at step 0; above 0.
      end: the value from step `steps` on; above 0.
      steps: train steps; at least 1.

    Returns:
      A function from the train step (integer scalar) to a float32 scalar.

    Raises:
      ValueError: if a value is not positive or `steps` is below 1.
    """

    def value(step: tf.Tensor) -> tf.Tensor:
        share = tf.minimum(tf.cast(step, tf.float32) / steps, 1.0)
        return start * tf.pow(end / start, share)

    return value


def piecewise(points: Sequence[tuple[int, float]]) -> Schedule:
    """Returns a schedule that is linear between points,
    and constant before the first and after the last one.

    Args:
      points: (train step, value) with increasing train steps.

    Returns:
      A function from the train step (integer scalar) to a float32 scalar.

    Raises:
      ValueError: if there are no points, or their train steps do not increase.
    """
    steps, values = [float(step) for step, _ in points], [value for _, value in points]
    if not steps or any(after <= before for before, after in itertools.pairwise(steps)):
        raise UserValueError(f'got points={points!r}; need (train step, value) pairs with increasing train steps')

    def value(step: tf.Tensor) -> tf.Tensor:
        result = tf.constant(values[0], tf.float32)
        for i, (start, end) in enumerate(itertools.pairwise(steps)):
            share = tf.clip_by_value((tf.cast(step, tf.float32) - start) / (end - start), 0.0, 1.0)
            result += (values[i + 1] - values[i]) * share
        return result

    return value


@checked
def power(factor: PositiveFloat, exponent: Finite) -> Schedule:
    """Returns the schedule factor * step^exponent; at train step 0 it is that of step 1.

    Args:
      factor: the value at step 1.
      exponent: 0.5 grows with the root of the steps.

    Returns:
      A function from the train step (integer scalar) to a float32 scalar.
    """
    return lambda step: factor * tf.pow(tf.cast(tf.maximum(step, 1), tf.float32), exponent)


def in_epochs(schedule: Schedule) -> Schedule:
    """Returns a schedule that stays the same in each epoch, and epochs that double:
    1, 2-3, 4-7, ... train steps.

    It has the value of the epoch's first step, as FALCON's gamma has (Simchi-Levi and Xu 2020, arXiv
    2003.12699, algorithm 1).
    """
    # From 2^0 to 2^62: counted, since a logarithm may be rounded to below a power.
    starts = tf.constant([2**i for i in range(63)], tf.int64)

    def value(step: tf.Tensor) -> tf.Tensor:
        begun = tf.where(starts <= tf.cast(step, tf.int64), starts, 0)
        return schedule(tf.reduce_max(begun))

    return value


def by_env_steps(schedule: Schedule) -> Schedule:
    """Returns a schedule of the run's environment steps, instead of train steps.

    The learner knows them from the collectors' reports, which come once a second, and they stay the
    same during one call of the compiled program (`Intervals.steps_per_call`); a collector knows
    them from the newest weights.

    Args:
      schedule: a function of environment steps, such as `linear(1.0, 0.05, 1_000_000)`.

    Returns:
      A function that takes the train step, and does not use it.
    """
    env_steps = EnvSteps()

    def value(step: tf.Tensor) -> tf.Tensor:
        del step
        return schedule(env_steps.variable.read_value())

    return value


class LearningRate(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A schedule for Keras optimizers, whose number of iterations is the train step."""

    def __init__(self, schedule: Schedule):
        super().__init__()
        self._schedule = schedule

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return self._schedule(step)

    def get_config(self) -> dict:
        """Keras calls it when it copies an optimizer."""
        return {'schedule': self._schedule}
