"""Smoothing: a bandit over some centres of a number's range takes numbers, each choice drawn evenly around its centre.

Krishnamurthy, Langford, Slivkins and Zhang 2019, "Contextual Bandits with Continuous Actions:
Smoothing, Zooming, and Adapting" (arXiv 1902.01520); Majzoubi et al. 2020, "Efficient Contextual
Bandits with Continuous Actions" (arXiv 2006.06040), CATS. With K centres c of a range of width R,
and the window of each, of the numbers within the bandwidth h of it and within the range, a policy
with the probabilities p of the centres has the density

  pi(a | x) = (1 - epsilon) sum over c of p_c(x) 1{|a - c| <= h} / |window of c|  +  epsilon / R

which is known of every number, so that a server logs it, and estimates and the gate have weights
pi / mu. The value of a centre is that of an even draw from its window: a decision with the number a,
which was logged with the density mu(a), counts for each centre whose window has a, with the weight
1 / (R mu(a)), 1 for one that was drawn evenly from the whole range.

Differs from the papers: a regression of the rewards for each centre in place of a tree of
classifiers, which CATS has to be fast with many centres; and the weights are those of the
regression, not factors of the rewards, which spread more.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, PositiveFloat, PositiveInt, checked_dataclass


@checked_dataclass(frozen=True)
class Smoothing:
    """How a number is chosen by centres; see the module.

    Attributes:
      num_centres: K; they divide the range evenly, each in the middle of its part.
      bandwidth: h, in the unit of the number; None is half a part, so that no windows overlap.
      epsilon: the share of numbers that the collect policy draws evenly from the whole range.
    """

    num_centres: PositiveInt = 16
    bandwidth: PositiveFloat | None = None
    epsilon: Fraction = 0.05


class Windows:
    """The windows of a number's centres.

    Attributes:
      spec: the spec of the number.
      epsilon: see `Smoothing`.
      num: the number of windows.
    """

    def __init__(self, spec: Any, options: Smoothing):
        """Raises ValueError for any other action than one number within finite bounds."""
        is_number = not tf.nest.is_nested(spec) and spec.dtype == tf.float32 and not spec.shape.rank
        low, high = (float(getattr(spec, name, math.inf)) if is_number else 0.0 for name in ('minimum', 'maximum'))
        # The bounds of an action without any are those of its dtype.
        if not low < high < tf.float32.max or low <= tf.float32.min:
            raise UserValueError(
                f'got smoothing for the action {spec}; need one number of float32, without dimensions, with finite '
                'bounds; leave smoothing out'
            )
        self.spec, self.num, self.epsilon = spec, options.num_centres, options.epsilon
        part = (high - low) / self.num
        self._centres = low + part * (np.arange(self.num) + 0.5)
        reach = part / 2 if options.bandwidth is None else options.bandwidth
        ends = np.stack([self._centres - reach, self._centres + reach])
        self._low, self._high = np.clip(ends, low, high).astype(np.float32)
        self._range = np.float32(low), np.float32(high)

    def nearest(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns the index of the centre that is the nearest to each number, int64 [N]."""
        return tf.argmin(tf.abs(numbers[:, tf.newaxis] - tf.constant(self._centres, tf.float32)), axis=1)

    def weights(self, numbers: tf.Tensor, log_densities: tf.Tensor) -> tf.Tensor:
        """Returns how much each decision counts for each centre, float64 [N, K].

        Args:
          numbers: float32 [N].
          log_densities: the logged ones, float32 [N].
        """
        numbers = numbers[:, tf.newaxis]
        is_within = tf.cast((self._low <= numbers) & (numbers <= self._high), tf.float64)
        size = math.log(float(self._range[1]) - float(self._range[0]))
        return is_within * tf.exp(-size - tf.cast(log_densities, tf.float64))[:, tf.newaxis]

    def distribution(self, logits: tf.Tensor, epsilon: float) -> 'Smoothed':
        """Returns the distribution of the number by the log-probabilities of centres, float32 [B, K]."""
        low, high = self._low, self._high
        if epsilon:  # even draws are those of one more window
            even = tf.fill([tf.shape(logits)[0], 1], math.log(epsilon))
            logits = tf.concat([tf.math.log_softmax(logits) + tf.math.log(1 - epsilon), even], axis=1)
            low, high = np.append(low, self._range[0]), np.append(high, self._range[1])
        ends = (tf.broadcast_to(each, tf.shape(logits)) for each in (low, high))
        return Smoothed(tfp.distributions.Categorical(logits), tfp.distributions.Uniform(*ends))


class Smoothed(tfp.distributions.MixtureSameFamily):
    """Even draws from windows, whose mode is the middle of the likeliest one."""

    def _mode(self) -> tf.Tensor:
        likeliest = tf.argmax(self.mixture_distribution.logits_parameter(), axis=-1)
        return tf.gather(self.components_distribution.mean(), likeliest, batch_dims=1)


class SmoothedPolicy(tf_policy.TFPolicy):
    """Draws a number from the window of a centre that another policy chooses."""

    def __init__(self, policy: tf_policy.TFPolicy, windows: Windows, collects: bool):
        """
        Args:
          policy: the policy that chooses among the centres.
          windows: their windows.
          collects: whether it also draws from the whole range, and records log-densities.
        """
        super().__init__(policy.time_step_spec, windows.spec, emit_log_probability=collects, name=policy.name)
        self._centres, self._epsilon = policy, windows.epsilon if collects else 0.0
        self._windows = lambda: windows  # in a function, since TensorFlow would wrap it

    def _variables(self) -> Any:
        return self._centres.variables()

    def _distribution(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        chosen, windows = self._centres.distribution(time_step, policy_state).action, self._windows()
        if isinstance(chosen, tfp.distributions.Deterministic):
            logits = tf.math.log(tf.one_hot(chosen.mode(), windows.num))
        else:
            logits = chosen.logits_parameter()
        return policy_step.PolicyStep(windows.distribution(logits, self._epsilon), policy_state)
