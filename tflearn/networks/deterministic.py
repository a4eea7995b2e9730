"""Actors that return actions instead of distributions, with critics and the policy that explores: TD3's and DDPG's."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.networks import network
from tf_agents.policies import actor_policy
from tf_agents.typing import types

from tflearn.core.types import EnvironmentSpecs
from tflearn.networks import critics as critics_lib
from tflearn.networks.critics import CriticOptions, Critics
from tflearn.networks.networks import NetworkOptions

Noise = float | Callable[[], tf.Tensor]  # a deviation, or a function that returns the present one


class DeterministicActor(network.Network):
    """Observation -> action, a nest of floats within their bounds, of the specs' dtypes, [B, ...].

    The last layer's weights are uniform in +-0.003 before training, as in Lillicrap et al. 2016, "Continuous control
    with deep reinforcement learning" (arXiv 1509.02971, section 7), so that tanh does not start where it is flat.
    """

    def __init__(
        self,
        observation_spec: types.NestedTensorSpec,
        action_spec: types.NestedTensorSpec,
        options: NetworkOptions,
        name: str = 'DeterministicActor',
    ):
        """Makes no variables yet.

        Args:
          observation_spec: the observation's spec; `encoder` encodes observations.
          action_spec: a nest of specs of floats with finite bounds.
          options: the layers before the last ones.
          name: the network's name.
        """
        super().__init__(observation_spec, state_spec=(), name=name)
        self._encoder = options.make_encoder(observation_spec, 'encoder', kernel_initializer='glorot_uniform')
        self._action_spec = action_spec
        self._last_layers = [
            tf.keras.layers.Dense(
                leaf.shape.num_elements(),
                kernel_initializer=tf.keras.initializers.RandomUniform(-0.003, 0.003),
                name='action',
                dtype='float32',
            )
            for leaf in tf.nest.flatten(action_spec)
        ]

    def call(self, observation: Any, step_type: Any = None, network_state: Any = (), training: bool = False) -> Any:
        """See `network.Network.call`."""
        features, _ = self._encoder(observation, step_type=step_type, training=training)
        actions = []
        for layer, spec in zip(self._last_layers, tf.nest.flatten(self._action_spec), strict=True):
            # tanh is 1 at 20. oneDNN would fuse it with the layer, but not in all programs, and round differently.
            sums = tf.clip_by_value(layer(features), -20.0, 20.0)
            shares = tf.tanh(tf.reshape(sums, tf.concat([tf.shape(sums)[:-1], spec.shape], axis=0)))
            middle, half = (spec.maximum + spec.minimum) / 2, (spec.maximum - spec.minimum) / 2
            actions.append(middle + half * tf.cast(shares, spec.dtype))
        return tf.nest.pack_sequence_as(self._action_spec, actions), network_state


class Networks(NamedTuple):
    """The agent's networks, and those of the targets, which have weights of their own."""

    actor: DeterministicActor
    critics: Critics
    target_actor: DeterministicActor
    target_critics: Critics

    @property
    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """The trained networks, each with that of the targets."""
        return zip(self[:2], self[2:], strict=True)


def make_networks(specs: EnvironmentSpecs, network: NetworkOptions, options: CriticOptions) -> Networks:
    """Makes the agent's networks and their variables, within the strategy's scope."""
    actors = [DeterministicActor(specs.observation, specs.action, network, name) for name in ('Actor', 'TargetActor')]
    for actor in actors:
        actor.create_variables()
    numbers = sum(leaf.shape.num_elements() for leaf in tf.nest.flatten(specs.action))
    joined = tf.TensorSpec((numbers,), tf.float32, 'action')
    critics, target_critics = critics_lib.make(specs.observation, joined, network, options)
    return Networks(actors[0], critics, actors[1], target_critics)


class NoisyPolicy(actor_policy.ActorPolicy):
    """Adds normal noise to an actor's action, and clips the sum to the bounds."""

    def __init__(self, specs: EnvironmentSpecs, actor: DeterministicActor, noise: Noise):
        """
        Args:
          specs: the environment's specs.
          actor: observation -> action.
          noise: the deviation, as a share of half the range of each action.
        """
        super().__init__(specs.time_step, specs.action, actor, training=False)
        self._noise = noise

    def _apply_actor_network(self, *args: Any, **kwargs: Any) -> Any:
        actions, state = super()._apply_actor_network(*args, **kwargs)
        noise = self._noise() if callable(self._noise) else self._noise

        def distribution(mean: tf.Tensor, spec: types.BoundedTensorSpec) -> tfp.distributions.Distribution:
            half = tf.constant((spec.maximum - spec.minimum) / 2, spec.dtype)
            deviation = tf.cast(noise, spec.dtype) * half * tf.ones_like(mean)
            return tfp.distributions.Independent(tfp.distributions.Normal(mean, deviation), spec.shape.rank)

        return tf.nest.map_structure(distribution, actions, self.action_spec), state
