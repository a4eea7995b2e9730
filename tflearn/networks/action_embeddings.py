"""Values of thousands of actions from their vectors, with layers for the observation and for an action."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked_dataclass
from tflearn.core.types import leaf_paths
from tflearn.networks.networks import NetworkOptions, QNetwork


@checked_dataclass(frozen=True, eq=False)
class ActionEmbeddings:
    """Values of thousands of actions from their vectors: what is learned of one action holds for those like it.

    Dulac-Arnold et al. 2015, "Deep Reinforcement Learning in Large Discrete Action Spaces" (arXiv
    1512.07679), has the
    setting: each action has a vector. With a tower of layers for the observation s, one for an
      action's vector e_a, and
    D numbers at the end of each,

      Q(s, a) = state(s)^T action(e_a) / sqrt(D) + bias(s)

    as in recommenders of two towers. Differs from the paper, whose policy (Wolpertinger) makes a
    vector and values its k nearest actions: here all actions are valued, since this is one product
    of matrices; what made candidates beforehand can pass them as the actions, with their vectors in
    the observation.

    Attributes:
      table: floats [number of actions, E], constant, which becomes a part of checkpoints and
        exported policies; or the path of the observation's part with such floats, which may differ
        in each step, such as 'items'.
      units: D, the numbers in which both towers end.
      fc_layer_params: units of fully connected layers, with relu, of the actions' tower before its
        end.
    """

    table: np.ndarray | str
    units: PositiveInt = 64
    fc_layer_params: Sequence[int] = ()


class EmbeddedQNetwork(QNetwork):
    """Observation -> values of the actions, float32 [B, num_actions]; see `ActionEmbeddings`."""

    def __init__(
        self,
        input_tensor_spec: types.NestedTensorSpec,
        action_spec: types.BoundedTensorSpec,
        options: NetworkOptions,
        embeddings: ActionEmbeddings,
        name: str = 'EmbeddedQNetwork',
    ):
        """Makes no variables yet.

        Args:
          input_tensor_spec: the observation's spec.
          action_spec: the spec of one discrete action.
          options: the layers of the observation's tower.
          embeddings: the actions' vectors.
          name: the network's name.

        Raises:
          ValueError: if there is not one vector of floats for each action, or the observation has
            nothing else.
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
        super().__init__(self._divide(input_tensor_spec)[0], action_spec, options, name=name)
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
