"""Actors that return actions instead of distributions, with critics and the policy that explores: TD3's and DDPG's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.networks import encoding_network, network
from tf_agents.policies import actor_policy
from tf_agents.typing import types

from tflearn.core.types import EnvironmentSpecs
from tflearn.networks import encoder
from tflearn.networks.networks import CriticNetwork

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
        fc_layer_params: Sequence[int],
        conv_layer_params: encoder.ConvLayerParams | None = None,
        preprocessing_layers: encoder.Layers | None = None,
        make_network: encoder.MakeNetwork | None = None,
        name: str = 'DeterministicActor',
    ):
        """Makes no variables yet.

        Args:
          observation_spec: the observation's spec; `encoder` encodes observations.
          action_spec: a nest of specs of floats with finite bounds.
          fc_layer_params: units of the fully connected layers.
          conv_layer_params: convolutions of images; see `networks.QNetwork`.
          preprocessing_layers: layers of one's own for leaves of the observation, by path.
          make_network: see `encoder.own_network`.
          name: the network's name.
        """
        super().__init__(observation_spec, state_spec=(), name=name)
        if make_network is not None:
            self._encoder = encoder.own_network(make_network, observation_spec, 'encoder')
        else:
            self._encoder = encoding_network.EncodingNetwork(
                observation_spec,
                **encoder.network_arguments(observation_spec, conv_layer_params, preprocessing_layers),
                fc_layer_params=tuple(fc_layer_params),
                kernel_initializer='glorot_uniform',
                dtype=tf.keras.mixed_precision.global_policy(),
            )
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
    """The agent's networks, each with a copy of other weights for the targets."""

    actor: DeterministicActor
    critics: tuple[CriticNetwork, ...]
    target_actor: DeterministicActor
    target_critics: tuple[CriticNetwork, ...]


def make_networks(
    specs: EnvironmentSpecs,
    actor_units: Sequence[int],
    critic_units: Sequence[int],
    num_critics: int,
    encoding: Mapping[str, Any],
) -> Networks:
    """Makes the agent's networks and their variables, within the strategy's scope.

    Args:
      specs: the environment's specs.
      actor_units: units of the actor's fully connected layers.
      critic_units: units of each critic's fully connected layers.
      num_critics: the number of critics.
      encoding: how observations enter each of them, as further arguments of `networks.CriticNetwork`.
    """
    numbers = sum(leaf.shape.num_elements() for leaf in tf.nest.flatten(specs.action))
    joined = tf.TensorSpec((numbers,), tf.float32, 'action')

    def actor(name: str) -> DeterministicActor:
        return DeterministicActor(specs.observation, specs.action, actor_units, **encoding, name=name)

    def critics(name: str) -> tuple[CriticNetwork, ...]:
        return tuple(
            CriticNetwork((specs.observation, joined), critic_units, **encoding, name=f'{name}{i + 1}')
            for i in range(num_critics)
        )

    made = Networks(actor('Actor'), critics('Critic'), actor('TargetActor'), critics('TargetCritic'))
    for made_network in tf.nest.flatten(made):
        made_network.create_variables()
    return made


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
