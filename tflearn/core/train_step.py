"""The train step: the one counter that schedules, triggers and file names use,
and the seed of what train steps draw.

Also the environment steps, for schedules.
"""

import itertools
import math
import threading
import weakref
from collections.abc import Sequence

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.moments import variable
from tflearn.core.settings import PositiveInt, checked

_LARGEST_SEED = 2**31 - 1


def create_train_step() -> tf.Variable:
    """Returns a new train step: an int64 scalar at 0, counting gradient steps."""
    # One replica's value counts: each replica adds the same one per step.
    return variable(0, 'train_step', tf.int64)


class Draws:
    """What a train step draws, by the agent's seed and the train step alone,
    so that XLA draws the same.

    Each draw is another one, in each train step and on each replica. The integers are TensorFlow's
    stateless ones (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"); the floats
    are not, which XLA makes otherwise.
    """

    def __init__(self, train_step: tf.Variable):
        """Draws the agent's seed from TensorFlow's global generator, which a run's seed sets."""
        self._train_step = train_step
        self._numbers = threading.local()  # replicas are traced in threads of their own
        with tf.init_scope():
            self._seed = int(tf.random.uniform((), maxval=_LARGEST_SEED, dtype=tf.int32))

    def restart(self) -> None:
        """Counts draws from zero; to be called where the tracing of a train step, or of a loss,
        begins.
        """
        self._numbers.next = itertools.count().__next__

    def seed(self) -> tf.Tensor:
        """Returns the next draw's seed, int32 [2], for stateless random functions."""
        context = tf.distribute.get_replica_context()
        replica = 0 if context is None else tf.cast(context.replica_id_in_sync_group, tf.int32)
        number = (self._seed + 0x10001 * self._numbers.next()) % _LARGEST_SEED
        return tf.stack([tf.bitwise.bitwise_xor(tf.constant(number), replica), tf.cast(self._train_step, tf.int32)])

    def uniform(self, shape: Sequence[int] | tf.Tensor) -> tf.Tensor:
        """Returns float32 numbers in [0, 1)."""
        bits = tf.random.stateless_uniform(shape, self.seed(), minval=None, maxval=None, dtype=tf.uint32)
        return tf.cast(tf.bitwise.right_shift(bits, 8), tf.float32) * 2.0**-24

    def normal(self, shape: Sequence[int] | tf.Tensor) -> tf.Tensor:
        """Returns float32 standard normal numbers (Box and Muller 1958)."""
        first, second = tf.unstack(self.uniform(tf.concat([[2], shape], axis=0)))
        return tf.sqrt(-2 * tf.math.log1p(-first)) * tf.cos(2 * math.pi * second)


class EnvSteps:
    """The run's environment steps, over all collectors, as far as this process knows;
    for schedules.

    Attributes:
      variable: int64 scalar, which `set_env_steps` sets.
    """

    def __init__(self) -> None:
        """Begins at 0."""
        self.variable = variable(0, 'env_steps', tf.int64)
        _env_steps.add(self)


_env_steps: 'weakref.WeakSet[EnvSteps]' = weakref.WeakSet()


def env_steps_are_used() -> bool:
    """Returns whether a schedule of this process follows the environment steps."""
    return bool(_env_steps)


def set_env_steps(value: int) -> None:
    """Sets the environment steps that schedules of this process follow."""
    for each in list(_env_steps):
        each.variable.assign(value)


@checked
def crossed(interval: PositiveInt, before: int, after: int) -> bool:
    """Returns whether a multiple of `interval` lies in (before, after].

    It keeps no state, so it neither drifts off the multiples nor depends on where a restarted run
    began.

    Args:
      interval: steps between two events; at least 1.

    Returns:
      True if a multiple of `interval` was reached or passed.

    Raises:
      ValueError: if `interval` is not positive or the steps decrease.
    """
    if after < before:
        raise UserValueError(f'got before={before}, after={after}; need steps that do not decrease')
    return after // interval > before // interval
