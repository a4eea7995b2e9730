"""Networks with memory, whose state is stored with the data, and is reset where an episode starts.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2,
ICLR), section 3: sequences that start in the middle of an episode start with the stored state; an
older network made it, so the first steps of a sequence may serve only to let the state recover
(burn-in).
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.networks import network
from tf_agents.typing import types

from tflearn.networks import heads, networks

POLICY_STATE = 'policy_state'  # the key of a row's policy info: the state before its step


def stored_state(experience: Any) -> Any:
    """Returns the state [B, ...] with which sequences, a Trajectory [B, T, ...] with stored states, start."""
    return tf.nest.map_structure(lambda leaf: leaf[:, 0], experience.policy_info[POLICY_STATE])


class RecurrentQNetwork(network.Network):
    """Observations [B, ...] or [B, T, ...] -> values of the actions, float32 [..., num_actions], with memory."""

    def __init__(
        self,
        observation_spec: types.NestedTensorSpec,
        action_spec: types.BoundedTensorSpec,
        features: network.Network,
        dueling: bool = False,
        name: str = 'QNetwork',
    ):
        """Makes the variables, in the strategy's scope.

        Args:
          observation_spec: the observation's spec, without a mask.
          action_spec: the spec of one discrete action, counted from 0.
          features: observations -> features, with a state; see `NetworkOptions.make_encoder`.
          dueling: whether the last layer computes the observation's value and the actions'
            advantages.
          name: the network's name.
        """
        super().__init__(input_tensor_spec=observation_spec, state_spec=features.state_spec, name=name)
        self._features = features
        values = tf.keras.layers.Dense(int(action_spec.maximum) + 1, dtype='float32', name='values')
        self._values = networks.Dueling(values) if dueling else values
        self.create_variables(observation_spec)

    def call(
        self, observation: types.NestedTensor, step_type: Any = None, network_state: Any = (), training: bool = False
    ) -> tuple[tf.Tensor, Any]:
        """See `network.Network.call`."""
        features, state = self._features(observation, step_type, network_state, training=training)
        return self._values(tf.cast(features, tf.float32)), state


def after_burn_in(
    made: network.Network,
    inputs: types.NestedTensor,
    step_type: tf.Tensor,
    state: Any,
    burn_in_steps: int,
    training: bool = False,
) -> Any:
    """Returns a network's outputs for the steps after the burn-in, which has no gradient.

    Args:
      made: a network with memory.
      inputs: its inputs, a nest of [B, T, ...].
      step_type: int32 [B, T].
      state: the state before the first step, [B, ...]; () is the initial state.
      burn_in_steps: how many first steps only change the state.
      training: see `network.Network.call`.

    Returns:
      The outputs, a nest of [B, T - burn_in_steps, ...].
    """
    part = lambda begin, end: tf.nest.map_structure(lambda leaf: leaf[:, begin:end], inputs)  # noqa: E731
    if burn_in_steps:
        _, state = made(part(0, burn_in_steps), step_type[:, :burn_in_steps], state, training=training)
        state = tf.nest.map_structure(tf.stop_gradient, state)
    return made(part(burn_in_steps, None), step_type[:, burn_in_steps:], state, training=training)[0]


class RecurrentActor(network.Network):
    """Observations [B, ...] or [B, T, ...] -> the distribution of an action, with memory."""

    def __init__(
        self,
        observation_spec: types.NestedTensorSpec,
        action_spec: types.NestedTensorSpec,
        features: network.Network,
        make_head: heads.MakeProjection,
        fc_layer_params: Sequence[int] = (),
        activation: Any = 'relu',
        name: str = 'actor',
    ):
        """Makes the variables, in the strategy's scope.

        Args:
          observation_spec: the observation's spec.
          action_spec: the action's spec, of one vector of floats.
          features: observations -> features, with a state; see `NetworkOptions.make_encoder`.
          make_head: makes the last layer, in float32, of the action's spec.
          fc_layer_params: units of the fully connected layers after the memory.
          activation: the activation function of these.
          name: the network's name.
        """
        super().__init__(input_tensor_spec=observation_spec, state_spec=features.state_spec, name=name)
        self._features = features
        self._layers_after = [tf.keras.layers.Dense(units, activation) for units in fc_layer_params]
        self._action_spec = action_spec
        self._head = make_head(tf.nest.flatten(action_spec)[0])
        self.create_variables(observation_spec)

    def call(
        self, observation: types.NestedTensor, step_type: Any = None, network_state: Any = (), training: bool = False
    ) -> tuple[Any, Any]:
        """See `network.Network.call`."""
        features, state = self._features(observation, step_type, network_state, training=training)
        for layer in self._layers_after:
            features = layer(features, training=training)
        distribution, _ = self._head(features, features.shape.rank - 1, training=training)
        return tf.nest.pack_sequence_as(self._action_spec, [distribution]), state
