"""The agents' networks: TF-Agents' networks in the precision of Keras' global policy.

Encoders compute in that precision (TF-Agents' default is float32). The last layer of each network, hence values and
distributions, and all variables are float32. Under the float32 policy these are TF-Agents' networks.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents.ddpg import critic_network
from tf_agents.networks import actor_distribution_network, network, q_network
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.types import leaf_paths
from tflearn.networks import encoder, heads, noisy


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
        conv_layer_params: encoder.ConvLayerParams | None = None,
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


@dataclasses.dataclass(frozen=True, eq=False)
class ActionEmbeddings:
    """Values of thousands of actions from their vectors: what is learned of one action holds for those like it.

    Dulac-Arnold et al. 2015, "Deep Reinforcement Learning in Large Discrete Action Spaces" (arXiv 1512.07679), has the
    setting: each action has a vector. With a tower of layers for the observation s, one for an action's vector e_a, and
    D numbers at the end of each,

      Q(s, a) = state(s)^T action(e_a) / sqrt(D) + bias(s)

    as in recommenders of two towers. Differs from the paper, whose policy (Wolpertinger) makes a vector and values its
    k nearest actions: here all actions are valued, since this is one product of matrices; what made candidates
    beforehand can pass them as the actions, with their vectors in the observation.

    Attributes:
      table: floats [number of actions, E], constant, which becomes a part of checkpoints and exported policies; or the
        path of the observation's part with such floats, which may differ in each step, such as 'items'.
      units: D, the numbers in which both towers end.
      fc_layer_params: units of fully connected layers, with relu, of the actions' tower before its end.
    """

    table: np.ndarray | str
    units: int = 64
    fc_layer_params: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.units < 1:
            raise UserValueError(f'got units={self.units}; need at least 1')


class EmbeddedQNetwork(QNetwork):
    """Observation -> values of the actions, float32 [B, num_actions]; see `ActionEmbeddings`."""

    def __init__(
        self,
        input_tensor_spec: types.NestedTensorSpec,
        action_spec: types.BoundedTensorSpec,
        embeddings: ActionEmbeddings,
        name: str = 'EmbeddedQNetwork',
        **encoding: Any,
    ):
        """Makes no variables yet.

        Args:
          input_tensor_spec: the observation's spec.
          action_spec: the spec of one discrete action.
          embeddings: the actions' vectors.
          name: the network's name.
          **encoding: `QNetwork`'s other arguments, without `last`.

        Raises:
          ValueError: if there is not one vector of floats for each action, or the observation has nothing else.
        """
        table = embeddings.table
        path = table if isinstance(table, str) else None
        self._divide, vectors = _divider(input_tensor_spec, path)
        shape, dtype = (np.shape(table), np.asarray(table).dtype) if vectors is None else (vectors.shape, vectors.dtype)
        num_actions = int(action_spec.maximum) + 1
        if len(shape) != 2 or shape[0] != num_actions or not tf.as_dtype(dtype).is_floating:
            raise UserValueError(
                f'got action_embeddings of shape {tuple(shape)}, {dtype}; need floats [{num_actions}, E]: a vector for '
                'each action'
            )
        super().__init__(self._divide(input_tensor_spec)[0], action_spec, name=name, **encoding)
        self._input_tensor_spec = input_tensor_spec
        self._q_value_layer = _Towers(embeddings)

    def call(self, observation: Any, step_type: Any = None, network_state: Any = (), training: bool = False) -> Any:
        """See `network.Network.call`."""
        rest, vectors = self._divide(observation)
        features, network_state = self._encoder(
            rest, step_type=step_type, network_state=network_state, training=training
        )
        return self._q_value_layer(features, vectors), network_state


def _divider(spec: types.NestedTensorSpec, path: str | None) -> tuple[Callable[[Any], tuple[Any, Any]], Any]:
    """Returns what divides observations into other parts and that at `path`, and its spec, or None."""
    if path is None:
        return lambda observation: (observation, None), None
    paths = leaf_paths(spec)
    if path not in paths or len(paths) == 1:
        raise UserValueError(
            f"got action_embeddings '{path}' and an observation with the parts {', '.join(paths)}; need one of several "
            'parts'
        )
    index = paths.index(path)
    others = [other for other in paths if other != path]

    def divide(observation: Any) -> tuple[Any, Any]:
        leaves = tf.nest.flatten(observation)
        vectors = leaves.pop(index)
        return dict(zip(others, leaves, strict=True)), vectors

    return divide, tf.nest.flatten(spec)[index]


class _Towers(tf.keras.layers.Layer):
    """(Features [B, F], vectors [B, K, E] or None for those of the table) -> values, float32 [B, K]."""

    def __init__(self, embeddings: ActionEmbeddings):
        super().__init__(dtype='float32', name='towers')
        dense = tf.keras.layers.Dense
        self._units = embeddings.units
        self._state = dense(self._units, dtype='float32', name='state')
        self._bias = dense(1, dtype='float32', name='bias')
        hidden = [
            dense(units, 'relu', dtype='float32', name=f'action_{i}')
            for i, units in enumerate(embeddings.fc_layer_params)
        ]
        self._action = tf.keras.Sequential([*hidden, dense(self._units, dtype='float32', name='action')])
        self._table = None
        if not isinstance(embeddings.table, str):
            table = np.asarray(embeddings.table, np.float32)
            constant = tf.keras.initializers.Constant(table)
            self._table = self.add_weight('table', table.shape, initializer=constant, trainable=False)

    def call(self, features: tf.Tensor, vectors: tf.Tensor | None = None) -> tf.Tensor:
        """See the class."""
        features = tf.cast(features, tf.float32)
        state = self._state(features) / math.sqrt(self._units)
        if vectors is None:
            products = tf.matmul(state, self._action(self._table), transpose_b=True)
        else:
            products = tf.linalg.matvec(self._action(tf.cast(vectors, tf.float32)), state)
        return products + self._bias(features)


class CriticNetwork(critic_network.CriticNetwork):
    """(Observation, action) -> value of the action, float32 [B]."""

    def __init__(
        self,
        input_tensor_spec: tuple[types.NestedTensorSpec, types.TensorSpec],
        fc_layer_params: Sequence[int],
        conv_layer_params: encoder.ConvLayerParams | None = None,
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
    conv_layer_params: encoder.ConvLayerParams | None = None,
    preprocessing_layers: encoder.Layers | None = None,
    make_network: encoder.MakeNetwork | None = None,
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
      continuous: makes the last layer for a tensor of floats: `normal` or `tanh_normal`.
      masked: whether the network takes a mask of legal actions.
    """
    made = actor_distribution_network.ActorDistributionNetwork(
        observation_spec,
        action_spec,
        **encoder.network_arguments(observation_spec, conv_layer_params, preprocessing_layers),
        fc_layer_params=tuple(fc_layer_params),
        dtype=tf.keras.mixed_precision.global_policy(),
        discrete_projection_net=heads.made_in_float32(functools.partial(heads.categorical, masked=masked)),
        continuous_projection_net=heads.made_in_float32(continuous),
    )
    if make_network is not None:
        made._encoder = encoder.own_network(make_network, observation_spec, 'encoder')
    return made
