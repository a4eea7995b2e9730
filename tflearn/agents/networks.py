"""The agents' networks: TF-Agents' networks in the precision of Keras' global policy.

Encoders compute in that precision (TF-Agents' default is float32). The last layer of each network, hence values and
distributions, and all variables are float32. Under the float32 policy these are TF-Agents' networks.
"""

from collections.abc import Callable, Collection, Sequence
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

ConvLayerParams = Sequence[tuple[int, int, int]]
MakeProjection = Callable[[types.BoundedTensorSpec], network.Network]


class QNetwork(q_network.QNetwork):
    """Observation -> values of the actions, float32 [B, num_actions]."""

    _q_value_layer: tf.keras.layers.Dense

    def __init__(
        self,
        input_tensor_spec: types.TensorSpec,
        action_spec: types.BoundedTensorSpec,
        conv_layer_params: ConvLayerParams | None = None,
        fc_layer_params: Sequence[int] = (),
        name: str = 'QNetwork',
    ):
        """Makes no variables yet.

        Args:
          input_tensor_spec: the observation's spec; `encoder` encodes observations.
          action_spec: the spec of one discrete action.
          conv_layer_params: (filters, kernel size, stride) of convolutions of an image [height, width, channels].
          fc_layer_params: units of the fully connected layers.
          name: the network's name.
        """
        super().__init__(
            input_tensor_spec,
            action_spec,
            **encoder.network_arguments(input_tensor_spec),
            conv_layer_params=conv_layer_params,
            fc_layer_params=tuple(fc_layer_params),
            dtype=tf.keras.mixed_precision.global_policy(),
            name=name,
        )
        self._q_value_layer = _in_float32(self._q_value_layer)


class ValueNetwork(value_network.ValueNetwork):
    """Observation -> value, float32 [B]."""

    _postprocessing_layers: tf.keras.layers.Dense

    def __init__(
        self, input_tensor_spec: types.NestedTensorSpec, fc_layer_params: Sequence[int], name: str = 'ValueNetwork'
    ):
        """Makes no variables yet.

        Args:
          input_tensor_spec: the observation's spec; `encoder` encodes observations.
          fc_layer_params: units of the fully connected layers, with tanh.
          name: the network's name.
        """
        super().__init__(
            input_tensor_spec,
            **encoder.network_arguments(input_tensor_spec),
            fc_layer_params=tuple(fc_layer_params),
            activation_fn=tf.keras.activations.tanh,
            dtype=tf.keras.mixed_precision.global_policy(),
            name=name,
        )
        self._postprocessing_layers = _in_float32(self._postprocessing_layers)


class CriticNetwork(critic_network.CriticNetwork):
    """(Observation, action) -> value of the action, float32 [B]."""

    def __init__(
        self,
        input_tensor_spec: tuple[types.TensorSpec, types.TensorSpec],
        fc_layer_params: Sequence[int],
        name: str = 'CriticNetwork',
    ):
        """Makes no variables yet.

        Args:
          input_tensor_spec: the specs of the observation, one tensor, which `encoder` encodes, and of the action.
          fc_layer_params: units of the fully connected layers, after the concatenation of both.
          name: the network's name.
        """
        last_layer = tf.keras.layers.Dense(1, kernel_initializer='glorot_uniform', name='value', dtype='float32')
        super().__init__(
            input_tensor_spec,
            joint_fc_layer_params=tuple(fc_layer_params),
            kernel_initializer='glorot_uniform',
            last_layer=last_layer,
            name=name,
        )
        self._observation_layer = encoder.make_layer(tf.nest.flatten(input_tensor_spec[0])[0])

    def call(
        self, inputs: tuple[tf.Tensor, tf.Tensor], step_type: Any, network_state: Any = (), training: bool = False
    ) -> Any:
        """See `network.Network.call`. Takes (observation, action)."""
        observation, action = inputs
        if self._observation_layer is not None:
            observation = self._observation_layer(tf.nest.flatten(observation)[0])
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


def actor(
    observation_spec: types.NestedTensorSpec,
    action_spec: types.NestedTensorSpec,
    fc_layer_params: Sequence[int],
    *,
    activation: Callable[[tf.Tensor], tf.Tensor] = tf.keras.activations.relu,
    continuous: MakeProjection = normal,
) -> network.Network:
    """Makes a network: observation -> distribution of the action, float32.

    Args:
      observation_spec: the observation's spec; `encoder` encodes observations.
      action_spec: the action's spec.
      fc_layer_params: units of the fully connected layers.
      activation: the activation function of these layers.
      continuous: makes the last layer for a tensor of floats: `normal` or `tanh_normal`.
    """
    return actor_distribution_network.ActorDistributionNetwork(
        observation_spec,
        action_spec,
        **encoder.network_arguments(observation_spec),
        fc_layer_params=tuple(fc_layer_params),
        activation_fn=activation,
        dtype=tf.keras.mixed_precision.global_policy(),
        discrete_projection_net=_made_in_float32(categorical_projection_network.CategoricalProjectionNetwork),
        continuous_projection_net=_made_in_float32(continuous),
    )


def projections(action_spec: types.NestedTensorSpec, continuous: MakeProjection = normal) -> Any:
    """Makes a network for each tensor of the action: features -> distribution of the tensor, float32.

    Args:
      action_spec: the action's spec.
      continuous: makes the networks for floats; those for integers are categorical.
    """
    discrete = categorical_projection_network.CategoricalProjectionNetwork
    return tf.nest.map_structure(
        lambda spec: _made_in_float32(discrete if tensor_spec.is_discrete(spec) else continuous)(spec), action_spec
    )


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
    spec: types.NestedTensorSpec, algorithm: str, conv_layer_params: Any = None, nested: bool = False
) -> None:
    """Checks the observation's spec.

    Args:
      spec: the observation's spec.
      algorithm: the algorithm's name, for the message.
      conv_layer_params: the network's convolutions; None has none.
      nested: whether the algorithm's networks take nested observations.

    Raises:
      ValueError: for an observation that the algorithm cannot learn from.
    """
    if not nested and tf.nest.is_nested(spec):
        raise UserValueError(
            f'got the nested observation {spec}; {algorithm} needs one tensor; join its parts in the environment, for '
            'instance with gymnasium.wrappers.FlattenObservation, or choose PPO, IMPALA or APPO'
        )
    if conv_layer_params and (tf.nest.is_nested(spec) or not _is_image(spec)):
        raise UserValueError(
            f'got conv_layer_params for the observation {spec}; need images [height, width, channels] of uint8 or '
            'floats, or conv_layer_params=None'
        )


def check_policy_gradient_action(
    spec: types.NestedTensorSpec, algorithm: str, nests: Collection[type] = (dict, tuple, list)
) -> None:
    """Checks the action's spec for an algorithm that learns a distribution of the action, discrete or continuous.

    Args:
      spec: the action's spec.
      algorithm: the algorithm's name, for the message.
      nests: the types of nests that the algorithm supports.

    Raises:
      ValueError: for an action that it cannot learn.
    """
    if tf.nest.is_nested(spec) and not isinstance(spec, tuple(nests)):
        raise UserValueError(
            f'got the action {spec}, a {type(spec).__name__}; {algorithm} needs one tensor or a dict; wrap the '
            'environment so that it has one'
        )
    for leaf in tf.nest.flatten(spec):
        if leaf.dtype.is_floating:
            check_bounded(leaf, algorithm)
            continue
        numbers = np.unique(np.asarray(leaf.maximum) - leaf.minimum + 1)
        if len(numbers) > 1:
            raise UserValueError(
                f'got the action {leaf} with {", ".join(map(str, numbers))} choices; {algorithm} needs equally many in '
                'each dimension; wrap the environment so that it has one Discrete action, or equal ones'
            )
        if np.any(leaf.minimum):
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


def _is_image(spec: types.TensorSpec) -> bool:
    return bool(spec.shape.rank == 3 and (spec.dtype == tf.uint8 or spec.dtype.is_floating))
