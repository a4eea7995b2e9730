"""Smoothing: a bandit over some centres of a number's range takes numbers, each choice drawn evenly around its centre.
So does one over the centres of a vector's box, which are the grid of those of its numbers.

Krishnamurthy, Langford, Slivkins and Zhang 2019, "Contextual Bandits with Continuous Actions:
Smoothing, Zooming, and Adapting" (arXiv 1902.01520); Majzoubi et al. 2020, "Efficient Contextual
Bandits with Continuous Actions" (arXiv 2006.06040), CATS. With K centres c of a range of width R,
and the window of each, of the numbers within the bandwidth h of it and within the range, a policy
with the probabilities p of the centres has the density

  pi(a | x) = (1 - epsilon) sum over c of p_c(x) 1{|a - c| <= h} / |window of c|  +  epsilon / R

(of a vector |a - c| is the greatest of its numbers', and R the box's volume), which is known of every
number, so that a server logs it, and estimates and the gate have weights
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

_MOST_CENTRES = 4_096  # of a grid; each has a regression of its own


@checked_dataclass(frozen=True)
class Smoothing:
    """How a number is chosen by centres; see the module.

    Attributes:
      num_centres: K; they divide the range evenly, each in the middle of its part. Of a vector each
        number has so many.
      bandwidth: h, in the unit of the number, of a vector of each; None is half a part, so that no
        windows overlap.
      epsilon: the share of numbers that the collect policy draws evenly from the whole range.
    """

    num_centres: PositiveInt = 16
    bandwidth: PositiveFloat | None = None
    epsilon: Fraction = 0.05


class Windows:
    """The windows of the centres of a number, or of a vector of D numbers.

    Attributes:
      spec: the spec of the action.
      epsilon: see `Smoothing`.
      num: the number of windows, K.
    """

    def __init__(self, spec: Any, options: Smoothing):
        """Raises ValueError for any other action than a number or a vector within finite bounds, and for a grid that
        is too large.
        """
        is_vector = not tf.nest.is_nested(spec) and spec.dtype == tf.float32 and spec.shape.rank in (0, 1)
        shape = tuple(spec.shape) if is_vector else (0,)
        low, high = (
            np.ravel(np.broadcast_to(getattr(spec, name, math.inf), shape)) if is_vector else np.zeros(shape)
            for name in ('minimum', 'maximum')
        )
        low, high = low.astype(np.float64), high.astype(np.float64)
        # The bounds of an action without any are those of its dtype.
        limit = float(tf.float32.max)
        if not low.size or not np.all((low > -limit) & (low < high) & (high < limit)):
            raise UserValueError(
                f'got smoothing for the action {spec}; need one number of float32, or a vector, with finite bounds; '
                'leave smoothing out'
            )
        self.spec, self.num, self.epsilon = spec, options.num_centres ** len(low), options.epsilon
        if self.num > _MOST_CENTRES:
            raise UserValueError(
                f'got Smoothing.num_centres={options.num_centres} for each of {len(low)} numbers, a grid of '
                f'{self.num:,}; need at most {_MOST_CENTRES:,}; take fewer centres, or fewer numbers'
            )
        self._part = (high - low) / options.num_centres
        places = np.stack(np.meshgrid(*[np.arange(options.num_centres)] * len(low), indexing='ij'), axis=-1)
        self._centres = low + self._part * (places.reshape(self.num, len(low)) + 0.5)
        reach = self._part / 2 if options.bandwidth is None else options.bandwidth
        ends = np.stack([self._centres - reach, self._centres + reach])
        self._low, self._high = np.clip(ends, low, high).astype(np.float32)
        self._range = low.astype(np.float32), high.astype(np.float32)

    def nearest(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns the index of the centre that is the nearest to each action, int64 [N]."""
        away = tf.abs(self._by_centre(actions) - tf.constant(self._centres, tf.float32))
        return tf.argmin(tf.reduce_max(away / tf.constant(self._part, tf.float32), axis=2), axis=1)

    def weights(self, actions: tf.Tensor, log_densities: tf.Tensor) -> tf.Tensor:
        """Returns how much each decision counts for each centre, float64 [N, K].

        Args:
          actions: float32, those of N decisions.
          log_densities: the logged ones, float32, N in all.
        """
        actions = self._by_centre(actions)
        is_within = tf.reduce_all((self._low <= actions) & (actions <= self._high), axis=2)
        size = float(np.log(self._range[1].astype(float) - self._range[0]).sum())
        weights = tf.exp(-size - tf.cast(tf.reshape(log_densities, [-1, 1]), tf.float64))
        return tf.cast(is_within, tf.float64) * weights

    def _by_centre(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of actions, [N, 1, D]."""
        return tf.reshape(actions, [-1, 1, self._low.shape[1]])

    def distribution(self, logits: tf.Tensor, epsilon: float) -> 'Smoothed':
        """Returns the distribution of the action by the log-probabilities of centres, float32 [B, K]."""
        low, high = self._low, self._high
        if epsilon:  # even draws are those of one more window
            even = tf.fill([tf.shape(logits)[0], 1], math.log(epsilon))
            logits = tf.concat([tf.math.log_softmax(logits) + tf.math.log(1 - epsilon), even], axis=1)
            low, high = (np.append(each, [end], axis=0) for each, end in zip((low, high), self._range, strict=True))
        if not self.spec.shape.rank:
            low, high = low[:, 0], high[:, 0]
        shape = tf.concat([tf.shape(logits)[:1], low.shape], axis=0)
        windows = tfp.distributions.Uniform(*(tf.broadcast_to(each, shape) for each in (low, high)))
        if self.spec.shape.rank:
            windows = tfp.distributions.Independent(windows, 1)
        return Smoothed(tfp.distributions.Categorical(logits), windows)


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
