"""The agents' networks: TF-Agents' networks in the precision of Keras' global policy.

Encoders compute in that precision (TF-Agents' default is float32). The last layer of each network, hence values and
distributions, and all variables are float32. Under the float32 policy these are TF-Agents' networks.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents.ddpg import critic_network
from tf_agents.agents.sac import sac_agent, tanh_normal_projection_network
from tf_agents.networks import (
    actor_distribution_network,
    categorical_projection_network,
    network,
    normal_projection_network,
    q_network,
    value_network,
)
from tf_agents.specs import tensor_spec
from tf_agents.typing import types

from tflearn.agents import encoder
from tflearn.errors import UserValueError
from tflearn.types import leaf_paths

ConvLayerParams = encoder.ConvLayerParams
_IMPOSSIBLE = -1e9  # a logit with a probability of 0, and finite products with it

MakeProjection = Callable[[types.BoundedTensorSpec], network.Network]


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
        dueling: bool = False,
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
          dueling: whether the last layer computes the observation's value and the actions' advantages.
          name: the network's name.
        """
        super().__init__(
            input_tensor_spec,
            action_spec,
            **encoder.network_arguments(input_tensor_spec, conv_layer_params, preprocessing_layers),
            fc_layer_params=tuple(fc_layer_params),
            dtype=tf.keras.mixed_precision.global_policy(),
            name=name,
        )
        self._q_value_layer = _in_float32(self._q_value_layer)
        if dueling:
            self._q_value_layer = _Dueling(self._q_value_layer)
        if make_network is not None:
            self._encoder = encoder.own_network(make_network, input_tensor_spec, 'encoder')


class _Dueling(tf.keras.layers.Layer):
    """Features -> value + advantage - mean advantage of each action, float32.

    Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement Learning" (arXiv 1511.06581, equation 9).
    """

    def __init__(self, advantages: tf.keras.layers.Dense):
        super().__init__(dtype='float32', name='dueling')
        self._advantages, self._value = advantages, tf.keras.layers.Dense(1, dtype='float32', name='value')

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
        self._postprocessing_layers = _in_float32(self._postprocessing_layers)
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


class _Float32Inputs:
    """Casts a projection's inputs to float32, whatever the encoder's precision."""

    def call(self, inputs: tf.Tensor, outer_rank: int, training: bool = False, mask: tf.Tensor | None = None) -> Any:
        """See `DistributionNetwork.call`."""
        return super().call(tf.cast(inputs, tf.float32), outer_rank, training, mask)  # type: ignore[misc]


class _Normal(_Float32Inputs, normal_projection_network.NormalProjectionNetwork):
    pass


class _TanhNormal(_Float32Inputs, tanh_normal_projection_network.TanhNormalProjectionNetwork):
    pass


def normal(action_spec: types.BoundedTensorSpec) -> network.Network:
    """Makes a normal distribution of an action, with a mean within the bounds and an initial deviation of 0.35."""
    return _Normal(action_spec, std_bias_initializer_value=np.log(np.exp(0.35) - 1), name='NormalProjectionNetwork')


def tanh_normal(action_spec: types.BoundedTensorSpec) -> network.Network:
    """Makes a normal distribution that tanh squashes into the bounds, with a log deviation within [-20, 2]."""
    return _TanhNormal(action_spec, std_transform=sac_agent.std_clip_transform, name='TanhNormalProjectionNetwork')


class _MultiCategorical(categorical_projection_network.CategoricalProjectionNetwork):
    """Categorical distributions of several numbers of choices: each has the logits of the largest, some impossible."""

    def __init__(self, sample_spec: types.BoundedTensorSpec, name: str = 'MultiCategoricalProjectionNetwork'):
        """Takes the spec of integers counted from 0."""
        sizes = np.broadcast_to(np.asarray(sample_spec.maximum) + 1, sample_spec.shape)
        largest = tensor_spec.BoundedTensorSpec(
            sample_spec.shape, sample_spec.dtype, 0, sizes.max() - 1, sample_spec.name
        )
        super().__init__(largest, name=name)
        choices = np.arange(sizes.max()) < sizes[..., np.newaxis]  # bool [*shape, largest]
        # The place of each choice in a mask, which has the possible ones only; the impossible ones follow it.
        self._num_choices = int(sizes.sum())
        self._places = np.where(choices, np.cumsum(choices).reshape(choices.shape) - 1, self._num_choices)

    def call(self, inputs: tf.Tensor, outer_rank: int, training: bool = False, mask: tf.Tensor | None = None) -> Any:
        """See `DistributionNetwork.call`. Takes a mask bool [..., number of choices], as of `ActionMask`."""
        distribution, state = super().call(inputs, outer_rank, training)
        if mask is None:
            mask = tf.ones([self._num_choices], tf.bool)
        mask = tf.concat([mask, tf.zeros_like(mask[..., :1])], axis=-1)
        logits = tf.where(tf.gather(mask, self._places, axis=-1), distribution.logits, _IMPOSSIBLE)
        return self.output_spec.build_distribution(logits=logits), state


def categorical(action_spec: types.BoundedTensorSpec, masked: bool = False) -> network.Network:
    """Makes a categorical distribution of each integer of an action, all counted from 0; `masked` takes a mask."""
    if masked or np.unique(action_spec.maximum).size > 1:
        return _MultiCategorical(action_spec)
    return categorical_projection_network.CategoricalProjectionNetwork(action_spec)


def actor(
    observation_spec: types.NestedTensorSpec,
    action_spec: types.NestedTensorSpec,
    fc_layer_params: Sequence[int],
    *,
    conv_layer_params: ConvLayerParams | None = None,
    preprocessing_layers: encoder.Layers | None = None,
    make_network: encoder.MakeNetwork | None = None,
    activation: Callable[[tf.Tensor], tf.Tensor] = tf.keras.activations.relu,
    continuous: MakeProjection = normal,
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
        discrete_projection_net=_made_in_float32(functools.partial(categorical, masked=masked)),
        continuous_projection_net=_made_in_float32(continuous),
    )
    if make_network is not None:
        made._encoder = encoder.own_network(make_network, observation_spec, 'encoder')
    return made


def projections(action_spec: types.NestedTensorSpec, masked: bool = False) -> Any:
    """Makes a network for each tensor of the action: features -> distribution of the tensor, float32.

    Args:
      action_spec: the action's spec.
      masked: whether the network, for integers, takes a mask of legal actions.
    """

    def projection(spec: types.BoundedTensorSpec) -> network.Network:
        return categorical(spec, masked) if tensor_spec.is_discrete(spec) else normal(spec)

    return tf.nest.map_structure(_made_in_float32(projection), action_spec)


def _in_float32(layer: tf.keras.layers.Dense) -> tf.keras.layers.Dense:
    """Returns a float32 layer with the settings of `layer`, which has no variables yet."""
    if layer.compute_dtype == 'float32':
        return layer
    return tf.keras.layers.Dense(
        layer.units,
        layer.activation,
        kernel_initializer=layer.kernel_initializer,
        bias_initializer=layer.bias_initializer,
        name=layer.name,
        dtype='float32',
    )


def _made_in_float32(make: MakeProjection) -> MakeProjection:
    """Returns `make` with layers that compute in float32."""

    def made(spec: types.BoundedTensorSpec) -> Any:
        before = tf.keras.mixed_precision.global_policy()
        tf.keras.mixed_precision.set_global_policy('float32')
        try:
            return make(spec)
        finally:
            tf.keras.mixed_precision.set_global_policy(before)

    return made


def check_observation(
    spec: types.NestedTensorSpec,
    algorithm: str,
    conv_layer_params: Any = None,
    preprocessing_layers: encoder.Layers | None = None,
) -> None:
    """Checks the observation's spec.

    Args:
      spec: the observation's spec.
      algorithm: the algorithm's name, for the message.
      conv_layer_params: the network's convolutions; None has none.
      preprocessing_layers: layers of one's own for leaves of the observation, by path.

    Raises:
      ValueError: for an observation that the algorithm cannot learn from, or a path that no leaf has.
    """
    leaves = dict(zip(leaf_paths(spec), tf.nest.flatten(spec), strict=True))
    if not leaves:
        raise UserValueError(f'got the observation {spec} without tensors; {algorithm} needs at least one')
    for path, leaf in leaves.items():
        if leaf.dtype == tf.string:
            raise UserValueError(
                f"got the observation '{path}' of text; {algorithm} needs numbers; let the environment return the "
                'index of each text in a list, as a Discrete space'
            )
    encoder.check_layers(spec, preprocessing_layers or {})
    if conv_layer_params and not any(map(encoder.is_image, leaves.values())):
        raise UserValueError(
            f'got conv_layer_params for the observation {spec}; need images [height, width, channels] of uint8 or '
            'floats, or conv_layer_params=None'
        )


def check_policy_gradient_action(spec: types.NestedTensorSpec, algorithm: str) -> None:
    """Checks the action's spec for an algorithm that learns a distribution of the action, discrete or continuous.

    Args:
      spec: the action's spec.
      algorithm: the algorithm's name, for the message.

    Raises:
      ValueError: for an action that it cannot learn.
    """
    for leaf in tf.nest.flatten(spec):
        if leaf.dtype.is_floating:
            check_bounded(leaf, algorithm)
        elif np.any(leaf.minimum):
            raise UserValueError(
                f'got the action {leaf}; {algorithm} needs discrete actions counted from 0; wrap the environment so '
                'that it has them'
            )


def check_bounded(spec: types.BoundedTensorSpec, algorithm: str) -> None:
    """Checks that actions of floats have finite bounds.

    Raises:
      ValueError: if a bound, or the range between them, is not finite.
    """
    with np.errstate(over='ignore', invalid='ignore'):
        bounded = np.isfinite(np.asarray(spec.maximum) - spec.minimum).all()
    if not bounded:
        raise UserValueError(
            f'got the action {spec}; {algorithm} needs bounded actions; rescale them in the environment'
        )
