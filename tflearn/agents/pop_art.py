"""PopArt: the last layer of a value learns targets of mean 0 and deviation 1, whatever their unit.

van Hasselt et al. 2016, "Learning values across many orders of magnitude" (arXiv 1602.07714,
algorithm 1); Hessel et al. 2018, "Multi-task Deep Reinforcement Learning with PopArt" (arXiv
1809.04474), for actor-critics. With the mean m and the deviation s of the targets, a last layer
n(x) with kernel W and bias b, and the weight beta of a batch:

  V(x) = s n(x) + m
  value loss = ((target - V(x)) / s)^2                       advantages are divided by s as well
  m' = m + beta (mean(target) - m)                           after each train step
  s'^2 = (1 - beta) (s^2 + beta (mean(target) - m)^2) + beta variance(target)
  W' = W s / s',  b' = (s b + m - m') / s'                   so that V(x) stays as it is

Differs from the papers: beta is 1 / t in train step t as long as that is more, so that m and s are
averages over all targets at first; the statistics change after the step, not before. The first step
only begins them: its errors, and its advantages if they are divided by s, count nothing, since
their unit is unknown; W and b, which have learned nothing, stay. Later, what is divided by s is cut
at +- sqrt((1 - beta) / beta), about 58 with the least beta: the bound that normalized targets have
in the first paper (proposition 1), where s includes them. An error beyond it has the gradient of
one at the bound.
"""

import math
from typing import Any

import tensorflow as tf

_STEP = 3e-4  # the least beta, as in the second paper
_LEAST, _MOST = 1e-4, 1e6  # of s, as there
_BOUND = math.sqrt((1 - _STEP) / _STEP)  # of normalized errors


class PopArt(tf.Module):
    """The statistics of a value's targets, which all replicas share."""

    def __init__(self) -> None:
        """Makes the variables, in the strategy's scope."""
        super().__init__('pop_art')
        make = lambda value, name: tf.Variable(value, trainable=False, name=name, dtype=tf.float32)  # noqa: E731
        self.mean, self.deviation, self._count = make(0.0, 'mean'), make(1.0, 'deviation'), make(0.0, 'count')

    def __call__(self, normal: tf.Tensor) -> tf.Tensor:
        """Returns values of what the last layer computes."""
        return self.deviation * normal + self.mean

    @property
    def scale(self) -> tf.Tensor:
        """What errors and advantages are divided by."""
        return tf.where(self._count > 0, self.deviation, float('inf'))

    def scaled(self, errors: tf.Tensor) -> tf.Tensor:
        """Returns errors or advantages divided by the scale, within the bound."""
        normal = errors / self.scale
        # Cut without the gradient's end: a value learns a target that is far away as well.
        held = tf.stop_gradient(normal)
        return tf.clip_by_value(held, -_BOUND, _BOUND) + (normal - held)

    def update(self, layer: Any, mean: tf.Tensor, variance: tf.Tensor, due: tf.Tensor) -> dict[str, tf.Tensor]:
        """Adds the targets of a train step, in replica context, and corrects the layer.

        Args:
          layer: the last layer, with `kernel` and `bias`.
          mean: of the targets, float32 scalar, over the global batch.
          variance: of the targets, alike.
          due: whether they count, bool scalar. If they are not finite, nothing changes either.

        Returns:
          Metrics: `value_mean` and `value_deviation` after it.
        """
        due &= tf.math.is_finite(variance)

        # Only in cross-replica context may variables be assigned what all replicas share; see
        # `Targets`.
        def change(strategy: tf.distribute.Strategy, *values: tf.Tensor) -> None:
            self._change(layer, *(strategy.experimental_local_results(value)[0] for value in values))

        tf.distribute.get_replica_context().merge_call(change, (mean, variance, due))
        return {'value_mean': tf.identity(self.mean), 'value_deviation': tf.identity(self.deviation)}

    def _change(self, layer: Any, mean: tf.Tensor, variance: tf.Tensor, due: tf.Tensor) -> None:
        before, step, shift = self.deviation.read_value(), tf.maximum(_STEP, 1 / (self._count + 1)), mean - self.mean
        moved = tf.where(due, step * shift, 0.0)
        square = (1 - step) * (tf.square(before) + step * tf.square(shift)) + step * variance
        after = tf.where(due, tf.clip_by_value(tf.sqrt(square), _LEAST, _MOST), before)
        factor, offset = tf.unstack(tf.where(self._count > 0, [before / after, moved / after], [1.0, 0.0]))
        layer.kernel.assign(factor * layer.kernel)
        layer.bias.assign(factor * layer.bias - offset)
        self.mean.assign_add(moved)
        self.deviation.assign(after)
        self._count.assign_add(tf.cast(due, tf.float32))
