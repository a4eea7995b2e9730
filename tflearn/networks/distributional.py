"""A network of the distributions of the actions' returns; see `optimization/distributional.py`."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tf_agents.typing import types

from tflearn.networks import noisy
from tflearn.networks.networks import LastLayers, NetworkOptions, QNetwork


class DistributionalQNetwork(QNetwork):
    """Observation -> values of the actions, float32 [B, num_actions]: the means of their distributions."""

    def __init__(
        self,
        input_tensor_spec: types.TensorSpec,
        action_spec: types.BoundedTensorSpec,
        options: NetworkOptions,
        *,
        num_outputs: int,
        means: Callable[[tf.Tensor], tf.Tensor],
        last: LastLayers = LastLayers(),
        name: str = 'DistributionalQNetwork',
    ):
        """Makes no variables yet.

        Args:
          input_tensor_spec: the observation's spec.
          action_spec: the spec of one discrete action.
          options: the layers before the last ones.
          num_outputs: N, the numbers that are an action's distribution.
          means: returns float32 [..., num_actions] of float32 [..., num_actions, N].
          last: what the last layers are; dueling ones compute the observation's distribution and the actions'
            differences from it.
          name: the network's name.
        """
        self._num_outputs = num_outputs
        super().__init__(input_tensor_spec, action_spec, options, last, name)
        self._means = means

    def _last_layer(self, plain: tf.keras.layers.Dense, last: LastLayers) -> tf.keras.layers.Layer:
        return _Outputs(plain.units, self._num_outputs, last)

    def outputs(self, observation: Any, step_type: tf.Tensor | None = None, training: bool = False) -> tf.Tensor:
        """Returns the actions' distributions, float32 [B, num_actions, N]."""
        features, _ = self._encoder(observation, step_type=step_type, training=training)
        return self._q_value_layer(features)

    def call(self, observation: Any, step_type: Any = None, network_state: Any = (), training: bool = False) -> Any:
        """See `network.Network.call`."""
        return self._means(self.outputs(observation, step_type, training)), network_state


class _Outputs(tf.keras.layers.Layer):
    """Features [..., F] -> float32 [..., num_actions, N], with the dueling layer's equation for each of the N."""

    def __init__(self, num_actions: int, num_outputs: int, last: LastLayers):
        super().__init__(dtype='float32', name='outputs')
        small = tf.keras.initializers.RandomUniform(-0.03, 0.03)

        def make(units: int, name: str, **settings: Any) -> tf.keras.layers.Layer:
            if last.noise:
                return noisy.NoisyDense(units, last.noise, name=name)
            return tf.keras.layers.Dense(units, name=name, **settings)

        self._shape = (num_actions, num_outputs)
        self._actions = make(num_actions * num_outputs, 'actions', kernel_initializer=small)
        self._state = make(num_outputs, 'state') if last.dueling else None

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See the class."""
        flat = self._actions(inputs)
        outputs = tf.reshape(flat, tf.concat([tf.shape(flat)[:-1], self._shape], axis=0))
        if self._state is None:
            return outputs
        return self._state(inputs)[..., tf.newaxis, :] + outputs - tf.reduce_mean(outputs, axis=-2, keepdims=True)
