"""The train step: the one counter that schedules, triggers and file names use; environment steps, for schedules."""

import weakref

import tensorflow as tf

from tflearn.errors import UserValueError, check_at_least


def create_train_step() -> tf.Variable:
    """Returns a new train step: an int64 scalar at 0, counting gradient steps."""
    # One replica's value counts: each replica adds the same one per step.
    return tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        name='train_step',
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


class EnvSteps:
    """The run's environment steps, over all collectors, as far as this process knows; for schedules.

    Attributes:
      variable: int64 scalar, which `set_env_steps` sets.
    """

    def __init__(self) -> None:
        """Begins at 0."""
        self.variable = tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            name='env_steps',
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        _env_steps.add(self)


_env_steps: 'weakref.WeakSet[EnvSteps]' = weakref.WeakSet()


def env_steps_are_used() -> bool:
    """Returns whether a schedule of this process follows the environment steps."""
    return bool(_env_steps)


def set_env_steps(value: int) -> None:
    """Sets the environment steps that schedules of this process follow."""
    for each in list(_env_steps):
        each.variable.assign(value)


def crossed(interval: int, before: int, after: int) -> bool:
    """Returns whether a multiple of `interval` lies in (before, after].

    It keeps no state, so it neither drifts off the multiples nor depends on where a restarted run began.

    Args:
      interval: steps between two events; at least 1.

    Returns:
      True if a multiple of `interval` was reached or passed.

    Raises:
      ValueError: if `interval` is not positive or the steps decrease.
    """
    check_at_least(1, interval=interval)
    if after < before:
        raise UserValueError(f'got before={before}, after={after}; need steps that do not decrease')
    return after // interval > before // interval
