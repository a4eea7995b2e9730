"""The regularizer of conservative Q-learning (CQL), for discrete and continuous actions.

Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning" (arXiv 2006.04779):
CQL(H), equation 4; the estimate for continuous actions and the adapted weight are of appendix F and
equation 30.

  gap = log integral of exp(Q(s, a)) da - Q(s, a of the data)

Nakamoto et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning"
(arXiv 2303.05479), lets values of the policy's actions fall no lower than the data's return R(s)
from there on: max(Q(s, a), R(s)) stands in place of Q(s, a) in the integral (equation 5.1).
"""

import math

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.settings import NonNegativeFloat, PositiveInt, checked_dataclass


@checked_dataclass(frozen=True)
class Conservative:
    """The regularizer for continuous actions.

    Attributes:
      weight: the weight of the values of actions that the data do not have; the paper's is 5 for
        most robots. 0 has none.
      target_gap: the gap to which the weight is adapted, the paper's tau, which has 5 and 10; it
        begins at `weight`. None keeps the weight.
      num_actions: the number N of uniform actions, and of those of the policy, for each item.
      calibrated: whether it is Cal-QL's, for training that goes on in the environment. Then an
        item's first step is trained, and the rewards of all its steps are the return: set
        `Slicing.pad_episodes`, and `Slicing.sequence_length` to an episode's longest duration + 1;
        shorter items have less of the return.
    """

    weight: NonNegativeFloat = 0.0
    target_gap: float | None = None
    num_actions: PositiveInt = 10
    calibrated: bool = False

    def __post_init__(self) -> None:
        if self.target_gap is not None and not (self.weight > 0 and math.isfinite(self.target_gap)):
            raise UserValueError(
                f'got Conservative.target_gap={self.target_gap!r} with weight={self.weight!r}; need a number, and a '
                'weight above 0 to begin with'
            )
        if self.calibrated and not self.weight:
            raise UserValueError('got Conservative.calibrated=True with weight=0.0; need a weight above 0')


def gap(values: tf.Tensor, own: tf.Tensor, log_densities: tf.Tensor | None = None) -> tf.Tensor:
    """Returns how far values of other actions are above those of the data's actions, float32 [B].

    Args:
      values: float32 [B, K], the values of all K choices, or of K actions that were drawn.
      own: float32 [B], the values of the data's actions.
      log_densities: float32 [B, K], the logs of the densities that the actions were drawn from: the
        integral over actions is then the mean of exp(value) / density. None: they are all choices,
        and it is the sum.
    """
    if log_densities is None:
        return tf.reduce_logsumexp(values, axis=-1) - own
    return tf.reduce_logsumexp(values - log_densities, axis=-1) - math.log(values.shape[-1]) - own


def calibrated(values: tf.Tensor, returns: tf.Tensor) -> tf.Tensor:
    """Returns max(Q(s, a), R(s)) of the policy's actions; values of uniform ones stay, as in the authors' code.

    Args:
      values: float32 [B, 2 N, critics], first those of the uniform actions.
      returns: float32 [B], the discounted returns of the data from there on.
    """
    uniform, own = tf.split(values, 2, axis=1)
    return tf.concat([uniform, tf.maximum(own, returns[:, tf.newaxis, tf.newaxis])], axis=1)
