"""Targets and losses of an ensemble of critics:
truncated quantiles (TQC), or the minimum of some (REDQ, DroQ).

Kuznetsov et al. 2020, "Controlling Overestimation Bias with Truncated Mixture of Continuous
Distributional Quantile Critics" (arXiv 2005.04269); Chen et al. 2021, "Randomized Ensembled Double
Q-Learning" (arXiv 2101.05982).

Letters in shapes: B items of a batch, N critics, M numbers of each for an action.
"""

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.settings import NonNegativeInt, PositiveInt, checked_dataclass
from tflearn.core.train_step import Draws
from tflearn.optimization.distributional import Quantiles


@checked_dataclass(frozen=True)
class Truncated:
    """Quantiles of the returns of all critics together,
    without the greatest ones (TQC, equations 10 to 13).

    Attributes:
      num_quantiles: M.
      num_dropped: the paper's d, how many are left out for each critic; the more, the lower are the
        values.
    """

    num_quantiles: PositiveInt = 25
    num_dropped: NonNegativeInt = 2

    def __post_init__(self) -> None:
        if self.num_dropped >= self.num_quantiles:
            raise UserValueError(
                f'got num_dropped={self.num_dropped!r} of num_quantiles={self.num_quantiles!r}; need '
                'fewer than the quantiles'
            )

    def bootstraps(self, values: tf.Tensor, draws: Draws) -> tf.Tensor:
        """Returns the least (M - d) N of all quantiles, float32 [B, (M - d) N],
        of the targets' values [B, N, M].
        """
        del draws  # all critics count
        num_critics, num_quantiles = values.shape[1:]
        pooled = tf.sort(tf.reshape(values, [-1, num_critics * num_quantiles]), axis=1)
        return pooled[:, : (num_quantiles - self.num_dropped) * num_critics]

    def value(self, values: tf.Tensor) -> tf.Tensor:
        """Returns what an actor maximizes, float32 [B]."""
        return tf.reduce_mean(values, axis=[1, 2])

    def losses(self, values: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Returns the quantile Huber losses, float32 [B]:
        sums over the critics, means over pairs of their quantiles.

        Args:
          values: float32 [B, N, M].
          targets: float32 [B, targets].
        """
        nothing = tf.zeros(tf.shape(targets)[:1])
        quantiles = Quantiles(self.num_quantiles)
        each = [quantiles.losses(one, targets, nothing, nothing + 1.0) for one in tf.unstack(values, axis=1)]
        return tf.add_n(each) / self.num_quantiles


@checked_dataclass(frozen=True)
class Least:
    """The least value of some critics, drawn again for each batch (REDQ, algorithm 1).

    Attributes:
      num_critics: how many are drawn, the paper's M; all of them if there are no more.
      for_actor: whether an actor maximizes the least value of all critics, as SAC's, instead of
        their mean.
    """

    num_critics: PositiveInt = 2
    for_actor: bool = False

    def bootstraps(self, values: tf.Tensor, draws: Draws) -> tf.Tensor:
        """Returns float32 [B, 1], of the targets' values [B, N, 1]."""
        if self.num_critics < values.shape[1]:
            order = tf.argsort(draws.uniform(values.shape[1:2]))
            drawn = order[: self.num_critics]
            values = tf.gather(values, drawn, axis=1)
        return tf.reduce_min(values, axis=1)

    def value(self, values: tf.Tensor) -> tf.Tensor:
        """Returns what an actor maximizes, float32 [B]."""
        return (tf.reduce_min if self.for_actor else tf.reduce_mean)(values, axis=[1, 2])

    def losses(self, values: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Returns the squared errors, float32 [B], summed over the critics;
        see `Truncated.losses`.
        """
        return tf.reduce_sum(tf.square(targets[:, tf.newaxis, :] - values), axis=[1, 2])


Rule = Truncated | Least


def errors(values: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Returns the mean difference of critics' values from their target, float32 [B];
    see `Truncated.losses`.
    """
    differences = tf.reduce_mean(targets, axis=1)[:, tf.newaxis] - tf.reduce_mean(values, axis=2)
    return tf.reduce_mean(tf.abs(differences), axis=1)
