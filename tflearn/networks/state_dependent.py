"""Generalized state-dependent exploration (gSDE): noise by weights that stay the same for some steps.

Raffin et al. 2021, "Smooth Exploration for Robotic Reinforcement Learning" (CoRL, arXiv
2005.05719), section 3. With the features z of the policy's last layer, and learned deviations sigma
of noise weights W:

  action = mean + z W             W_fa = sigma_fa e_fa, e ~ N(0, 1), drawn again after some steps
  action ~ N(mean, z^2 sigma^2)   the distribution in the losses, as if each step had noise of its own

As in Stable-Baselines3, the gradient of a distribution that is not squashed does not pass from its
variance to z.
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.agents.sac import tanh_normal_projection_network
from tf_agents.distributions import utils as distribution_utils
from tf_agents.networks import network, normal_projection_network, utils
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveFloat, PositiveInt, checked_dataclass
from tflearn.networks import noisy

_LEAST_VARIANCE = 1e-6


@checked_dataclass(frozen=True)
class StateDependentNoise:
    """How a policy explores by noise that depends on the observation.

    Attributes:
      interval_steps: environment steps after which the noise's weights are drawn again, as they are
        in each episode; None keeps them for an episode.
      initial_deviation: the initial deviation of an action in [-1, 1], or before it is squashed,
        where the root mean square of the features is 1. (A weight's is this over the root of their
        number.)
    """

    interval_steps: PositiveInt | None = 4
    initial_deviation: PositiveFloat = 1.0


class StateDependentNormal(tfp.distributions.MultivariateNormalDiag):
    """The distribution of actions [..., A], with the parameters of a normal one; `make` makes it."""

    _features: tf.Tensor
    _sigma: tf.Tensor

    @classmethod
    def make(cls, loc: tf.Tensor, features: tf.Tensor, sigma: tf.Tensor) -> 'StateDependentNormal':
        """Takes the means [..., A], the features [..., F], and the deviations of the weights [F, A]; float32."""
        made = cls(loc, tf.sqrt(tf.linalg.matmul(tf.square(features), tf.square(sigma)) + _LEAST_VARIANCE))
        made._features, made._sigma = features, sigma
        return made

    def of_noise(self, noise: tf.Tensor) -> tf.Tensor:
        """Returns the actions [..., A] of standard normal noise, float32 [..., F, A]."""
        return self.mean() + tf.reduce_sum(self._features[..., tf.newaxis] * self._sigma * noise, axis=-2)


class _Sigma(tf.keras.layers.Layer):
    """Features [B, F] -> the deviations of the noise's weights, float32 [F, A]."""

    def __init__(self, num_actions: int, initial_deviation: float):
        super().__init__(dtype='float32', name='sigma')
        self._num_actions, self._initial_deviation = num_actions, initial_deviation

    def build(self, input_shape: tf.TensorShape) -> None:
        """Makes the weights' deviations, as logarithms."""
        num_features = int(input_shape[-1])
        self.noise_shape = (num_features, self._num_actions)
        initial = tf.keras.initializers.Constant(math.log(self._initial_deviation) - math.log(num_features) / 2)
        self._log_sigma = self.add_weight('log_sigma', self.noise_shape, initializer=initial)

    def call(self, features: tf.Tensor) -> tf.Tensor:
        """See the class."""
        return tf.exp(self._log_sigma)


class Head(network.DistributionNetwork):
    """Features -> the distribution of a vector of floats.

    Attributes:
      options: the noise.
    """

    def __init__(self, action_spec: types.BoundedTensorSpec, options: StateDependentNoise, squashes: bool = False):
        """
        Args:
          action_spec: the action's spec, float32 [A].
          options: the noise.
          squashes: whether tanh squashes what is drawn into the bounds, or only the mean.
        """
        kind = tanh_normal_projection_network.TanhNormalProjectionNetwork
        plain = kind if squashes else normal_projection_network.NormalProjectionNetwork
        super().__init__(None, (), plain(action_spec).output_spec, 'StateDependentHead')
        self.options, self._squashes, self._action_spec = options, squashes, action_spec
        num_actions = action_spec.shape.num_elements()
        initial = tf.keras.initializers.VarianceScaling(1.0 if squashes else 0.1)  # as without such noise
        self._means = tf.keras.layers.Dense(num_actions, kernel_initializer=initial, name='means')
        self._sigma = _Sigma(num_actions, options.initial_deviation)

    @property
    def noise_shape(self) -> tuple[int, int]:
        """The numbers of features and of actions, when there are variables."""
        shape: tuple[int, int] = self._sigma.noise_shape
        return shape

    def call(self, inputs: tf.Tensor, outer_rank: int, training: bool = False, mask: None = None) -> Any:
        """See `DistributionNetwork.call`."""
        del mask
        squash = utils.BatchSquash(outer_rank)
        features = tf.cast(squash.flatten(inputs), tf.float32)
        means, sigma = self._means(features, training=training), self._sigma(features)
        if not self._squashes:
            means = normal_projection_network.tanh_squash_to_spec(means, self._action_spec)
            features = tf.stop_gradient(features)
        normal = StateDependentNormal.make(squash.unflatten(means), squash.unflatten(features), sigma)
        squashed = distribution_utils.scale_distribution_to_spec
        return squashed(normal, self._action_spec) if self._squashes else normal, ()


def check(action_spec: types.NestedTensorSpec, algorithm: str) -> None:
    """Checks that an action has floats, and that all of them are in vectors.

    Raises:
      ValueError: if that is not so.
    """
    floats = [leaf for leaf in tf.nest.flatten(action_spec) if leaf.dtype.is_floating]
    if not floats or any(leaf.shape.rank != 1 for leaf in floats):
        raise UserValueError(
            f'got state_dependent_noise for the action {action_spec}; {algorithm} needs vectors of floats for it; '
            'set it to None'
        )


def exploring(policy: tf_policy.TFPolicy, actor: network.Network) -> tf_policy.TFPolicy:
    """Returns the policy that collects by state-dependent noise, or `policy` if its network has no such head.

    Raises:
      ValueError: if it has one, and memory.
    """
    heads = [each for each in actor.submodules if isinstance(each, Head)]
    if heads and actor.state_spec:
        raise UserValueError('got state_dependent_noise for a network with memory; need one of them; set it to None')
    return ExploringPolicy(policy, heads) if heads else policy


class ExploringPolicy(noisy.NoisePolicy):
    """Acts by the noise of its state: of each step's features e, float32 [F, A], and `steps` since they were drawn."""

    def __init__(self, policy: tf_policy.TFPolicy, heads: Sequence[Head]):
        """Takes a policy without memory, and its network's heads, which have one kind of features."""
        self._interval_steps = heads[0].options.interval_steps
        numbers = sum(head.noise_shape[1] for head in heads)
        noise = tf.TensorSpec((heads[0].noise_shape[0], numbers), tf.float32, 'noise')
        super().__init__(policy, {'noise': noise, 'steps': tf.TensorSpec((), tf.int32, 'steps')}, 'exploring_policy')

    def _action(self, time_step: Any, policy_state: Any, seed: Any) -> policy_step.PolicyStep:
        step, noise, steps = self._policy.distribution(time_step), policy_state['noise'], policy_state['steps']
        if self._interval_steps is not None:
            due = steps >= self._interval_steps
            noise = tf.where(due[:, tf.newaxis, tf.newaxis], tf.random.normal(tf.shape(noise)), noise)
            steps = tf.where(due, 0, steps)
        taken = 0

        def acted(distribution: tfp.distributions.Distribution) -> tf.Tensor:
            nonlocal taken
            if isinstance(distribution, distribution_utils.SquashToSpecNormal):
                return distribution._squashed_distribution.bijector.forward(acted(distribution.input_distribution))
            if not isinstance(distribution, StateDependentNormal):
                return distribution.sample()
            begin, taken = taken, taken + distribution.event_shape[0]
            return distribution.of_noise(noise[..., begin:taken])

        action = tf.nest.map_structure(acted, step.action)
        return step._replace(action=action, state={'noise': noise, 'steps': steps + 1})

    def _distribution(self, time_step: Any, policy_state: Any) -> policy_step.PolicyStep:
        return self._policy.distribution(time_step)._replace(state=policy_state)
