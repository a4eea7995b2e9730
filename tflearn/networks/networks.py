"""The agents' networks: TF-Agents' networks in the precision of Keras' global policy.

Encoders compute in that precision (TF-Agents' default is float32). The last layer of each network, hence values and
distributions, and all variables are float32. Under the float32 policy these are TF-Agents' networks.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.agents.ddpg import critic_network
from tf_agents.networks import actor_distribution_network, network, q_network, value_network
from tf_agents.typing import types

from tflearn.networks import encoder, heads, noisy

ConvLayerParams = encoder.ConvLayerParams


@dataclasses.dataclass(frozen=True)
class LastLayers:
    """What the last layers of a network of values are.

    Attributes:
      dueling: whether they compute the observation's value and the actions' advantages.
      noise: makes the fully connected layers and the last one noisy, in float32; None does not.
    """

    dueling: bool = False
    noise: noisy.Noise | None = None


class QNetwork(q_network.QNetwork):
    """Observation -> values of the actions, float32 [B, num_actions]."""

    _q_value_layer: tf.keras.layers.Layer

    def __init__(
        self,
        input_tensor_spec: types.TensorSpec,
        action_spec: types.BoundedTensorSpec,
        conv_layer_params: ConvLayerParams | None = None,
        fc_layer_params: Sequence[int] = (),
        preprocessing_layers: encoder.Layers | None = None,
        make_network: encoder.MakeNetwork | None = None,
        last: LastLayers = LastLayers(),
        name: str = 'QNetwork',
    ):
        """Makes no variables yet.

        Args:
          input_tensor_spec: the observation's spec; `encoder` encodes observations.
          action_spec: the spec of one discrete action.
          conv_layer_params: (filters, kernel size, stride) of convolutions of images [height, width, channels].
          fc_layer_params: units of the fully connected layers.
          preprocessing_layers: layers of one's own for leaves of the observation, by path.
          make_network: see `encoder.own_network`.
          last: what the last layers are.
          name: the network's name.
        """
        super().__init__(
            input_tensor_spec,
            action_spec,
            **encoder.network_arguments(input_tensor_spec, conv_layer_params, preprocessing_layers),
            fc_layer_params=() if last.noise else tuple(fc_layer_params),
            dtype=tf.keras.mixed_precision.global_policy(),
            name=name,
        )
        self._q_value_layer = self._last_layer(heads.in_float32(self._q_value_layer), last)
        if last.noise:
            self._q_value_layer = noisy.Layers(fc_layer_params, last.noise, self._q_value_layer)
        if make_network is not None:
            self._encoder = encoder.own_network(make_network, input_tensor_spec, 'encoder')

    def _last_layer(self, plain: tf.keras.layers.Dense, last: LastLayers) -> tf.keras.layers.Layer:
        values = noisy.NoisyDense(plain.units, last.noise, name='values') if last.noise else plain
        if not last.dueling:
            return values
        return Dueling(values, noisy.NoisyDense(1, last.noise, name='value') if last.noise else None)


class Dueling(tf.keras.layers.Layer):
    """Features -> value + advantage - mean advantage of each action, float32.

    Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement Learning" (arXiv 1511.06581, equation 9).
    """

    def __init__(self, advantages: tf.keras.layers.Layer, value: tf.keras.layers.Layer | None = None):
        super().__init__(dtype='float32', name='dueling')
        self._advantages = advantages
        self._value = value or tf.keras.layers.Dense(1, dtype='float32', name='value')

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See the class."""
        advantages = self._advantages(inputs)
        return self._value(inputs) + advantages - tf.reduce_mean(advantages, axis=-1, keepdims=True)


class ValueNetwork(value_network.ValueNetwork):
    """Observation -> value, float32 [B]."""

    _postprocessing_layers: tf.keras.layers.Dense

    def __init__(
        self,
        input_tensor_spec: types.NestedTensorSpec,
        fc_layer_params: Sequence[int],
        conv_layer_params: ConvLayerParams | None = None,
        preprocessing_layers: encoder.Layers | None = None,
        make_network: encoder.MakeNetwork | None = None,
        name: str = 'ValueNetwork',
    ):
        """Makes no variables yet.

        Args:
          input_tensor_spec: the observation's spec; `encoder` encodes observations.
          fc_layer_params: units of the fully connected layers, with tanh.
          conv_layer_params: convolutions of images; see `QNetwork`.
          preprocessing_layers: layers of one's own for leaves of the observation, by path.
          make_network: see `encoder.own_network`.
          name: the network's name.
        """
        super().__init__(
            input_tensor_spec,
            **encoder.network_arguments(input_tensor_spec, conv_layer_params, preprocessing_layers),
            fc_layer_params=tuple(fc_layer_params),
            activation_fn=tf.keras.activations.tanh,
            dtype=tf.keras.mixed_precision.global_policy(),
            name=name,
        )
        self._postprocessing_layers = heads.in_float32(self._postprocessing_layers)
        if make_network is not None:
            self._encoder = encoder.own_network(make_network, input_tensor_spec, 'encoder')


class CriticNetwork(critic_network.CriticNetwork):
    """(Observation, action) -> value of the action, float32 [B]."""

    def __init__(
        self,
        input_tensor_spec: tuple[types.NestedTensorSpec, types.TensorSpec],
        fc_layer_params: Sequence[int],
        conv_layer_params: ConvLayerParams | None = None,
        preprocessing_layers: encoder.Layers | None = None,
        make_network: encoder.MakeNetwork | None = None,
        name: str = 'CriticNetwork',
    ):
        """Makes no variables yet.

        Args:
          input_tensor_spec: the specs of the observation, which `encoder` encodes, and of the action.
          fc_layer_params: units of the fully connected layers, after the concatenation of both.
          conv_layer_params: convolutions of images; see `QNetwork`.
          preprocessing_layers: layers of one's own for leaves of the observation, by path.
          make_network: see `encoder.own_network`.
          name: the network's name.
        """
        observation_spec, action_spec = input_tensor_spec
        leaves = tf.nest.flatten(observation_spec)
        is_vector = not tf.nest.is_nested(observation_spec) and leaves[0].shape.rank < 2 and not preprocessing_layers
        last_layer = tf.keras.layers.Dense(1, kernel_initializer='glorot_uniform', name='value', dtype='float32')
        super().__init__(
            # TF-Agents' network takes one tensor: here the features of a nest.
            (leaves[0], action_spec),
            joint_fc_layer_params=tuple(fc_layer_params),
            kernel_initializer='glorot_uniform',
            last_layer=last_layer,
            name=name,
        )
        self._input_tensor_spec = input_tensor_spec
        if make_network is not None:
            self._observation_layer = encoder.own_network(make_network, observation_spec, 'encoder')
        elif is_vector:
            self._observation_layer = encoder.make_layer(leaves[0])
        else:
            self._observation_layer = encoder.NestEncoder(observation_spec, conv_layer_params, preprocessing_layers)

    def call(
        self, inputs: tuple[tf.Tensor, tf.Tensor], step_type: Any, network_state: Any = (), training: bool = False
    ) -> Any:
        """See `network.Network.call`. Takes (observation, action)."""
        observation, action = inputs
        if self._observation_layer is not None:
            observation = self._observation_layer(observation)
            if isinstance(observation, tuple):  # of a network: with its state, which is empty
                observation = observation[0]
        return super().call((observation, action), step_type, network_state, training=training)


def actor(
    observation_spec: types.NestedTensorSpec,
    action_spec: types.NestedTensorSpec,
    fc_layer_params: Sequence[int],
    *,
    conv_layer_params: ConvLayerParams | None = None,
    preprocessing_layers: encoder.Layers | None = None,
    make_network: encoder.MakeNetwork | None = None,
    activation: Callable[[tf.Tensor], tf.Tensor] = tf.keras.activations.relu,
    continuous: heads.MakeProjection = heads.normal,
    masked: bool = False,
) -> network.Network:
    """Makes a network: observation -> distribution of the action, float32.

    Args:
      observation_spec: the observation's spec; `encoder` encodes observations.
      action_spec: the action's spec.
      fc_layer_params: units of the fully connected layers.
      conv_layer_params: convolutions of images; see `QNetwork`.
      preprocessing_layers: layers of one's own for leaves of the observation, by path.
      make_network: see `encoder.own_network`.
      activation: the activation function of these layers.
      continuous: makes the last layer for a tensor of floats: `normal` or `tanh_normal`.
      masked: whether the network takes a mask of legal actions.
    """
    made = actor_distribution_network.ActorDistributionNetwork(
        observation_spec,
        action_spec,
        **encoder.network_arguments(observation_spec, conv_layer_params, preprocessing_layers),
        fc_layer_params=tuple(fc_layer_params),
        activation_fn=activation,
        dtype=tf.keras.mixed_precision.global_policy(),
        discrete_projection_net=heads.made_in_float32(functools.partial(heads.categorical, masked=masked)),
        continuous_projection_net=heads.made_in_float32(continuous),
    )
    if make_network is not None:
        made._encoder = encoder.own_network(make_network, observation_spec, 'encoder')
    return made
