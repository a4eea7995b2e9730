"""The loss of an actor-critic with V-trace: coefficients, bounds, reward clipping."""

from typing import Literal

import tensorflow as tf

from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveFloat, checked_dataclass
from tflearn.optimization.schedules import Schedule

Reduction = Literal['mean', 'sum']


@checked_dataclass(frozen=True)
class ImpalaLoss:
    """The loss: policy_coefficient * policy + value_coefficient * value - entropy_coefficient * entropy.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      rho_bar: the bound of the ratios in the values' errors (see `vtrace.py`); None is no bound.
      c_bar: the bound of the ratios with which errors are traced back; None is no bound.
      pg_rho_bar: the bound of the ratios in the advantages; None is no bound.
      lambda_: from 0 (one step) to 1 (to the end of the sequence).
      policy_coefficient: the coefficient of - advantage * log pi(a | x).
      value_coefficient: the coefficient of half the squared error of the value.
      entropy_coefficient: the coefficient of the policy's entropy, or a schedule of the train step.
      reward_clipping: the bound of a reward's absolute value; 'soft_asymmetric' squashes large rewards, and multiplies
        negative ones by 0.3, as the paper's code does; None does not change rewards.
      reduction: 'mean' over the valid steps of the global batch, or their 'sum', as in the paper. It changes the scale
        of learning rate and gradient clipping.
    """

    gamma: Fraction = 0.99
    rho_bar: PositiveFloat | None = 1.0
    c_bar: PositiveFloat | None = 1.0
    pg_rho_bar: PositiveFloat | None = 1.0
    lambda_: Fraction = 1.0
    policy_coefficient: NonNegativeFloat = 1.0
    value_coefficient: NonNegativeFloat = 0.5
    entropy_coefficient: NonNegativeFloat | Schedule = 0.01
    reward_clipping: PositiveFloat | Literal['soft_asymmetric'] | None = None
    reduction: Reduction = 'mean'

    def clip(self, rewards: tf.Tensor) -> tf.Tensor:
        """Returns rewards clipped or squashed according to `reward_clipping`."""
        if self.reward_clipping is None:
            return rewards
        if self.reward_clipping == 'soft_asymmetric':
            squashed = 5.0 * tf.tanh(rewards / 5.0)
            return tf.where(rewards < 0, 0.3 * squashed, squashed)
        return tf.clip_by_value(rewards, -self.reward_clipping, self.reward_clipping)

    def entropy_weight(self, train_step: tf.Tensor) -> tf.Tensor | float:
        """Returns the entropy's coefficient at a train step."""
        return self.entropy_coefficient(train_step) if callable(self.entropy_coefficient) else self.entropy_coefficient
