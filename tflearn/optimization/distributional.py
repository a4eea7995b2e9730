"""Distributions of returns instead of their means, for DQN's values.

Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning" (arXiv 1707.06887):
C51, `Categorical`; Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile
Regression" (arXiv 1710.10044): QR-DQN, `Quantiles`. A network's N numbers for each action are the
distribution of its return; the action's value is their mean.
"""

import math
from typing import Annotated

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveFloat, PositiveInt, Range, checked_dataclass


@checked_dataclass(frozen=True)
class Quantiles:
    """N quantiles of equal probability (QR-DQN).

    Attributes:
      num: N.
      kappa: the bound of the Huber loss (equation 10), in the unit of returns.
    """

    num: PositiveInt = 200
    kappa: PositiveFloat = 1.0

    def means(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the values, float32 [...], of a network's outputs [..., N]."""
        return tf.reduce_mean(outputs, axis=-1)

    def losses(
        self, outputs: tf.Tensor, next_outputs: tf.Tensor, rewards: tf.Tensor, discounts: tf.Tensor
    ) -> tf.Tensor:
        """Returns the quantile Huber losses, float32 [B]:
        sums over the quantiles, means over those of the target.

        Args:
          outputs: float32 [B, N], of the items' actions.
          next_outputs: float32 [B, N], of the next observations' best actions, by the target
            network.
          rewards: float32 [B].
          discounts: float32 [B], of the next observations' returns.
        """
        targets = rewards[:, tf.newaxis] + discounts[:, tf.newaxis] * next_outputs
        # [B, quantile, target].
        errors = tf.stop_gradient(targets)[:, tf.newaxis, :] - outputs[:, :, tf.newaxis]
        sizes = tf.abs(errors)
        huber = tf.where(sizes <= self.kappa, 0.5 * tf.square(errors), self.kappa * (sizes - 0.5 * self.kappa))
        middles = (tf.range(self.num, dtype=tf.float32) + 0.5) / self.num
        weights = tf.abs(middles[:, tf.newaxis] - tf.cast(errors < 0, tf.float32))
        return tf.reduce_sum(tf.reduce_mean(weights * huber / self.kappa, axis=2), axis=1)


@checked_dataclass(frozen=True)
class Categorical:
    """Probabilities of N returns, the atoms, at equal distances (C51).

    Attributes:
      num: N.
      min_return: the first atom; returns below it count as it.
      max_return: the last atom; returns above it count as it.
    """

    num: Annotated[int, Range(least=2)] = 51
    min_return: float = -10.0
    max_return: float = 10.0

    def __post_init__(self) -> None:
        if not -math.inf < self.min_return < self.max_return < math.inf:
            raise UserValueError(
                f'got Categorical with min_return={self.min_return!r}, max_return={self.max_return!r}; need two '
                'numbers of which the second is greater'
            )

    @property
    def _atoms(self) -> tf.Tensor:
        return tf.linspace(tf.cast(self.min_return, tf.float32), self.max_return, self.num)

    def means(self, outputs: tf.Tensor) -> tf.Tensor:
        """See `Quantiles.means`. The outputs are logits."""
        return tf.reduce_sum(tf.nn.softmax(outputs) * self._atoms, axis=-1)

    def losses(
        self, outputs: tf.Tensor, next_outputs: tf.Tensor, rewards: tf.Tensor, discounts: tf.Tensor
    ) -> tf.Tensor:
        """Returns cross entropies with the targets, projected on the atoms (algorithm 1);
        see `Quantiles.losses`.
        """
        atoms, width = self._atoms, (self.max_return - self.min_return) / (self.num - 1)
        moved = rewards[:, tf.newaxis] + discounts[:, tf.newaxis] * atoms
        moved = tf.clip_by_value(moved, self.min_return, self.max_return)
        # Each moved atom divides its probability between the two atoms around it.
        shares = tf.maximum(1.0 - tf.abs(moved[:, tf.newaxis, :] - atoms[:, tf.newaxis]) / width, 0.0)
        targets = tf.reduce_sum(shares * tf.nn.softmax(next_outputs)[:, tf.newaxis, :], axis=2)
        return tf.nn.softmax_cross_entropy_with_logits(tf.stop_gradient(targets), outputs)


Distribution = Quantiles | Categorical
