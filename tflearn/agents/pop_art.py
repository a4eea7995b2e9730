"""PopArt: the last layer of a value learns targets of mean 0 and deviation 1, whatever their unit.

van Hasselt et al. 2016, "Learning values across many orders of magnitude" (arXiv 1602.07714, algorithm 1); Hessel et
al. 2018, "Multi-task Deep Reinforcement Learning with PopArt" (arXiv 1809.04474), for actor-critics. With the mean m
and the deviation s of the targets, a last layer n(x) with kernel W and bias b, and the weight beta of a batch:

  V(x) = s n(x) + m
  value loss = ((target - V(x)) / s)^2                       advantages are divided by s as well
  m' = m + beta mean(target - m)                             after each train step
  s'^2 = (1 - beta) s^2 + beta mean((target - m)^2) - (m' - m)^2
  W' = W s / s',  b' = (s b + m - m') / s'                   so that V(x) stays as it is

Differs from the papers: beta is 1 / t in train step t as long as that is more, so that m and s are averages over all
targets at first; the statistics change after the step, not before. The first step only begins them: its errors and
advantages, whose unit is unknown, count nothing, and W and b, which have learned nothing, stay.
"""

from typing import Any

import tensorflow as tf

_STEP = 3e-4  # the least beta, as in the second paper
_LEAST, _MOST = 1e-4, 1e6  # of s, as there
_SHIFT, _SQUARE = 'value_shift', 'value_square'  # metrics of rows, of which the means are over the global batch


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

    def metrics(self, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns metrics of rows, of which `update` takes the means."""
        shifts = targets - self.mean
        return {_SHIFT: shifts, _SQUARE: tf.square(shifts)}

    def update(self, layer: Any, extra: dict[str, tf.Tensor], taken: tf.Tensor | None) -> dict[str, tf.Tensor]:
        """Adds the targets of a train step, in replica context, and corrects the layer.

        Args:
          layer: the last layer, with `kernel` and `bias`.
          extra: the train step's metrics, means over the global batch.
          taken: whether it was taken; None is always. Without a valid row, or with targets that are not finite, nothing
            changes either.

        Returns:
          The metrics, with `value_mean` and `value_deviation` after it.
        """
        shift, square = extra.pop(_SHIFT), extra.pop(_SQUARE)
        due = tf.math.is_finite(square) & (extra['valid_share'] > 0) & (True if taken is None else taken)

        # Only in cross-replica context may variables be assigned what all replicas share; see `Targets`.
        def change(strategy: tf.distribute.Strategy, *values: tf.Tensor) -> None:
            self._change(layer, *(strategy.experimental_local_results(value)[0] for value in values))

        tf.distribute.get_replica_context().merge_call(change, (shift, square, due))
        return extra | {'value_mean': tf.identity(self.mean), 'value_deviation': tf.identity(self.deviation)}

    def _change(self, layer: Any, shift: tf.Tensor, square: tf.Tensor, due: tf.Tensor) -> None:
        before, step = self.deviation.read_value(), tf.maximum(_STEP, 1 / (self._count + 1))
        moved = tf.where(due, step * shift, 0.0)
        variance = (1 - step) * tf.square(before) + step * square - tf.square(moved)
        after = tf.where(due, tf.clip_by_value(tf.sqrt(tf.maximum(variance, 0.0)), _LEAST, _MOST), before)
        factor, offset = tf.unstack(tf.where(self._count > 0, [before / after, moved / after], [1.0, 0.0]))
        layer.kernel.assign(factor * layer.kernel)
        layer.bias.assign(factor * layer.bias - offset)
        self.mean.assign_add(moved)
        self.deviation.assign(after)
        self._count.assign_add(tf.cast(due, tf.float32))
