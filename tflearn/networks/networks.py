"""The agents' networks: TF-Agents' networks in the precision of Keras' global policy.

Encoders compute in that precision (TF-Agents' default is float32). The last layer of each network,
hence values and distributions, and all variables are float32. Under the float32 policy these are
TF-Agents' networks.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf
from tf_agents.keras_layers import dynamic_unroll_layer
from tf_agents.networks import actor_distribution_network, encoding_network, lstm_encoding_network, network, q_network
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.settings import checked_dataclass
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks import encoder, heads, noisy, own_heads, spec_checks
from tflearn.networks.gtrxl import GTrXL, GTrXLOptions


@checked_dataclass(frozen=True)
class NetworkOptions:
    """The layers between the observation and the last ones of an agent's networks.

    An algorithm that has no use for a field refuses another value than its default.

    Attributes:
      fc_layer_params: units of the fully connected layers; None has the algorithm's.
      critic_fc_layer_params: units of each critic's fully connected layers, after the concatenation
        of observation and continuous action; or of the value's own, in an algorithm without
        critics. None has those of `fc_layer_params`, or the algorithm's.
      activation: Keras' name of the activation function of these layers, such as 'relu', 'tanh',
        'gelu' or 'swish'; None is the algorithm's.
      lstm_size: units of the layers of `memory` after them; None is a network without memory. With
        memory, set `Slicing.store_policy_state`; otherwise each sequence starts with a state of
        zeros.
      shared: whether policy and value share these layers; otherwise the value has its own.
      conv_layer_params: (filters, kernel size, stride) of convolutions, for images [height, width,
        channels]; None has none for a single image, and those of `encoder.CONVOLUTIONS` for images
        in a nest.
      preprocessing_layers: Keras layers of one's own for leaves of the observation, by path, such
        as 'arm.position'.
      make_network: makes a network of one's own from observations to features, in place of all
        these layers, or, if it has no state, of those before the memory; see `encoder.own_network`.
        It is called for each network, once for policy and value if `shared`. If `shared`, it may
        also return a pair, for a Discrete or MultiDiscrete action: the logits of all choices [B,
        n], the first integer's first, and the value [B]; no layers follow it then. None makes the
        layers above.
      memory: the kind of the layers of memory: LSTM (Hochreiter and Schmidhuber 1997), GRU (Cho et
        al. 2014, arXiv 1406.1078), or GTrXL, attention to the last steps (Parisotto et al. 2019,
        arXiv 1910.06764).
      gtrxl: window and heads of a GTrXL.
      previous_action: whether the networks of an agent with memory also see the action of the step
        before, in the observation's part `previous_action`, float32 [n]: one-hot integers, and
        floats in [-1, 1]; zeros in an episode's first step.
      previous_reward: the same of the reward of the step before, `previous_reward`, float32.
      make_head: makes the distribution of each tensor of floats of an action that a policy draws,
        in place of the algorithm's normal one; see `own_heads`, which has some.
    """

    fc_layer_params: Sequence[int] | None = None
    critic_fc_layer_params: Sequence[int] | None = None
    activation: str | None = None
    lstm_size: Sequence[int] | None = None
    shared: bool = False
    conv_layer_params: encoder.ConvLayerParams | None = None
    preprocessing_layers: encoder.Layers | None = None
    make_network: encoder.MakeNetwork | None = None
    memory: Literal['lstm', 'gru', 'gtrxl'] = 'lstm'
    gtrxl: GTrXLOptions = GTrXLOptions()
    previous_action: bool = False
    previous_reward: bool = False
    make_head: own_heads.MakeHead | None = None

    def completed(
        self,
        specs: EnvironmentSpecs,
        algorithm: str,
        unused: Sequence[str] = ('lstm_size', 'shared', 'make_head'),
        **defaults: Any,
    ) -> 'NetworkOptions':
        """Returns the layers of an algorithm.

        Args:
          specs: the environment's specs.
          algorithm: the algorithm's name, for messages.
          unused: the fields that the algorithm has no use for.
          **defaults: what takes the place of None.

        Raises:
          ValueError: for an observation that the algorithm cannot learn from, or a field without a
            use.
        """
        spec_checks.check_observation(specs.observation, algorithm, self.conv_layer_params, self.preprocessing_layers)
        for name in unused:
            if getattr(self, name):
                raise UserValueError(
                    f'got NetworkOptions.{name}={getattr(self, name)!r}; {algorithm} has no use for it; remove it, or '
                    'choose another algorithm'
                )
        encoder.check_keras('NetworkOptions.activation', self.activation or 'relu', tf.keras.activations, 'gelu')
        if self.make_head and not any(leaf.dtype.is_floating for leaf in tf.nest.flatten(specs.action)):
            raise UserValueError(
                f'got NetworkOptions.make_head for the action {specs.action}; need floats for it; set it to None'
            )
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        made = dataclasses.replace(self, **missing)
        if made.memory != 'lstm' and not made.lstm_size:
            raise UserValueError(f"got memory='{made.memory}' without lstm_size; need its units; set both")
        has_memory = 'lstm_size' not in unused and (made.lstm_size or made.make_network)
        if (made.previous_action or made.previous_reward) and not has_memory:
            raise UserValueError(
                f'got previous_action={made.previous_action}, previous_reward={made.previous_reward} in {algorithm} '
                'without memory; need one: set lstm_size in an algorithm that takes it, or remove them'
            )
        if made.memory == 'gtrxl':
            made.gtrxl.check(made.lstm_size or ())
        elif made.gtrxl != GTrXLOptions():
            raise UserValueError(f"got gtrxl={made.gtrxl} with memory='{made.memory}'; need 'gtrxl'; set memory to it")
        return made

    @property
    def activation_function(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """The activation function."""
        function: Callable[[tf.Tensor], tf.Tensor] = tf.keras.activations.get(self.activation or 'relu')
        return function

    def head(self, usual: heads.MakeProjection) -> heads.MakeProjection:
        """Returns what makes the last layer for floats of an action, in float32: `make_head`'s, else the usual one."""
        own = self.make_head and functools.partial(own_heads.Head, make_head=self.make_head)
        return heads.made_in_float32(own or usual)

    def of_critic(self) -> 'NetworkOptions':
        """Returns these options with the critic's layers in place of the others."""
        units = self.fc_layer_params if self.critic_fc_layer_params is None else self.critic_fc_layer_params
        return dataclasses.replace(self, fc_layer_params=units)

    def arguments(self, observation_spec: types.NestedTensorSpec) -> dict[str, Any]:
        """Returns the arguments with which a TF-Agents network encodes an observation; `encoder` has more."""
        made = encoder.network_arguments(observation_spec, self.conv_layer_params, self.preprocessing_layers)
        return {**made, 'activation_fn': self.activation_function}

    def make_encoder(
        self,
        observation_spec: types.NestedTensorSpec,
        name: str,
        with_memory: bool = False,
        num_choices: int | None = None,
        **more: Any,
    ) -> network.Network:
        """Makes a network from the observation, which `encoder` encodes, to features.

        Args:
          observation_spec: the observation's spec.
          name: the network's name.
          with_memory: whether a network of one's own may have a state.
          num_choices: see `encoder.own_network`.
          **more: further arguments of TF-Agents' network.
        """
        units = tuple(self.fc_layer_params or ())
        if self.make_network is not None:
            made = encoder.own_network(self.make_network, observation_spec, name, with_memory, num_choices)
        else:
            arguments = {**self.arguments(observation_spec), 'name': name, **more}
            if self.lstm_size and self.memory != 'gtrxl':
                return _rnn(observation_spec, units, self, **arguments)
            policy = tf.keras.mixed_precision.global_policy()
            made = encoding_network.EncodingNetwork(observation_spec, fc_layer_params=units, dtype=policy, **arguments)
        return _WithMemory(made, self) if self.lstm_size and not made.state_spec else made


def _rnn(spec: Any, units: Sequence[int], options: NetworkOptions, **arguments: Any) -> network.Network:
    """Makes fully connected layers, and LSTM or GRU layers after them, in float32."""
    layer = tf.keras.layers.LSTMCell if options.memory == 'lstm' else tf.keras.layers.GRUCell
    cells = [layer(size, dtype='float32', implementation=2) for size in options.lstm_size or ()]
    cell = cells[0] if len(cells) == 1 else tf.keras.layers.StackedRNNCells(cells)
    return lstm_encoding_network.LSTMEncodingNetwork(
        spec,
        input_fc_layer_params=units,
        output_fc_layer_params=(),
        rnn_construction_fn=functools.partial(dynamic_unroll_layer.DynamicUnroll, cell),
        **arguments,
    )


class _WithMemory(network.Network):
    """Layers of memory after a network without memory."""

    def __init__(self, features: network.Network, options: NetworkOptions):
        spec = features.create_variables()
        if options.memory == 'gtrxl':
            memory: network.Network = GTrXL(spec, options.lstm_size or (), options.gtrxl)
        else:
            memory = _rnn(spec, (), options)
        super().__init__(features.input_tensor_spec, memory.state_spec, name=features.name)
        self._features, self._memory = features, memory

    def call(self, inputs: Any, step_type: Any = None, network_state: Any = (), training: bool = False) -> Any:
        """See `network.Network.call`."""
        features, _ = self._features(inputs, step_type, (), training=training)
        return self._memory(features, step_type, network_state, training=training)


class QNetwork(q_network.QNetwork):
    """Observation -> values of the actions, float32 [B, num_actions]."""

    _q_value_layer: tf.keras.layers.Layer

    def __init__(
        self,
        input_tensor_spec: types.TensorSpec,
        action_spec: types.BoundedTensorSpec,
        options: NetworkOptions,
        dueling: bool = False,
        noise: noisy.Noise | None = None,
        name: str = 'QNetwork',
    ):
        """Makes no variables yet.

        Args:
          input_tensor_spec: the observation's spec; `encoder` encodes observations.
          action_spec: the spec of one discrete action.
          options: the layers before the last ones.
          dueling: whether the last layers compute the observation's value and the actions'
            advantages.
          noise: makes the fully connected layers and the last one noisy, in float32; None does not.
          name: the network's name.
        """
        units = tuple(options.fc_layer_params or ())
        super().__init__(
            input_tensor_spec,
            action_spec,
            **options.arguments(input_tensor_spec),
            fc_layer_params=() if noise else units,
            dtype=tf.keras.mixed_precision.global_policy(),
            name=name,
        )
        self._q_value_layer = self._last_layer(heads.in_float32(self._q_value_layer), dueling, noise)
        if noise:
            self._q_value_layer = noisy.Layers(units, noise, self._q_value_layer)
        if options.make_network is not None:
            self._encoder = options.make_encoder(input_tensor_spec, 'encoder')

    def _last_layer(
        self, plain: tf.keras.layers.Dense, dueling: bool, noise: noisy.Noise | None
    ) -> tf.keras.layers.Layer:
        values = noisy.NoisyDense(plain.units, noise, name='values') if noise else plain
        if not dueling:
            return values
        return Dueling(values, noisy.NoisyDense(1, noise, name='value') if noise else None)


class Dueling(tf.keras.layers.Layer):
    """Features -> value + advantage - mean advantage of each action, float32.

    Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement Learning" (arXiv
    1511.06581, equation 9).
    """

    def __init__(self, advantages: tf.keras.layers.Layer, value: tf.keras.layers.Layer | None = None):
        super().__init__(dtype='float32', name='dueling')
        self._advantages = advantages
        self._value = value or tf.keras.layers.Dense(1, dtype='float32', name='value')

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See the class."""
        advantages = self._advantages(inputs)
        return self._value(inputs) + advantages - tf.reduce_mean(advantages, axis=-1, keepdims=True)


def actor(
    observation_spec: types.NestedTensorSpec,
    action_spec: types.NestedTensorSpec,
    options: NetworkOptions,
    continuous: heads.MakeProjection = heads.normal,
    masked: bool = False,
) -> network.Network:
    """Makes a network: observation -> distribution of the action, float32.

    Args:
      observation_spec: the observation's spec; `encoder` encodes observations.
      action_spec: the action's spec.
      options: the layers before the last ones.
      continuous: makes the last layer for a tensor of floats, `normal` or `tanh_normal`, unless
        there is a `make_head`.
      masked: whether the network takes a mask of legal actions.
    """
    made = actor_distribution_network.ActorDistributionNetwork(
        observation_spec,
        action_spec,
        **options.arguments(observation_spec),
        fc_layer_params=tuple(options.fc_layer_params or ()),
        dtype=tf.keras.mixed_precision.global_policy(),
        discrete_projection_net=heads.made_in_float32(functools.partial(heads.categorical, masked=masked)),
        continuous_projection_net=options.head(continuous),
    )
    if options.make_network is not None:
        made._encoder = options.make_encoder(observation_spec, 'encoder')
    return made


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
        dueling: bool = False,
        noise: noisy.Noise | None = None,
        name: str = 'DistributionalQNetwork',
    ):
        """Makes no variables yet.

        Args:
          input_tensor_spec: the observation's spec.
          action_spec: the spec of one discrete action.
          options: the layers before the last ones.
          num_outputs: N, the numbers that are an action's distribution.
          means: returns float32 [..., num_actions] of float32 [..., num_actions, N].
          dueling: whether the last layers compute the observation's distribution and the actions'
            differences from it.
          noise: see `QNetwork`.
          name: the network's name.
        """
        self._num_outputs = num_outputs
        super().__init__(input_tensor_spec, action_spec, options, dueling, noise, name)
        self._means = means

    def _last_layer(
        self, plain: tf.keras.layers.Dense, dueling: bool, noise: noisy.Noise | None
    ) -> tf.keras.layers.Layer:
        return _Outputs(plain.units, self._num_outputs, dueling, noise)

    def outputs(self, observation: Any, step_type: tf.Tensor | None = None, training: bool = False) -> tf.Tensor:
        """Returns the actions' distributions, float32 [B, num_actions, N]."""
        features, _ = self._encoder(observation, step_type=step_type, training=training)
        return self._q_value_layer(features)

    def call(self, observation: Any, step_type: Any = None, network_state: Any = (), training: bool = False) -> Any:
        """See `network.Network.call`."""
        return self._means(self.outputs(observation, step_type, training)), network_state


class _Outputs(tf.keras.layers.Layer):
    """Features [..., F] -> float32 [..., num_actions, N], with the dueling layer's equation for each of the N."""

    def __init__(self, num_actions: int, num_outputs: int, dueling: bool, noise: noisy.Noise | None):
        super().__init__(dtype='float32', name='outputs')
        small = tf.keras.initializers.RandomUniform(-0.03, 0.03)

        def make(units: int, name: str, **settings: Any) -> tf.keras.layers.Layer:
            if noise:
                return noisy.NoisyDense(units, noise, name=name)
            return tf.keras.layers.Dense(units, name=name, **settings)

        self._shape = (num_actions, num_outputs)
        self._actions = make(num_actions * num_outputs, 'actions', kernel_initializer=small)
        self._state = make(num_outputs, 'state') if dueling else None

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See the class."""
        flat = self._actions(inputs)
        outputs = tf.reshape(flat, tf.concat([tf.shape(flat)[:-1], self._shape], axis=0))
        if self._state is None:
            return outputs
        return self._state(inputs)[..., tf.newaxis, :] + outputs - tf.reduce_mean(outputs, axis=-2, keepdims=True)


class DeterministicActor(network.Network):
    """Observation -> action, a nest of floats within their bounds, of the specs' dtypes, [B, ...].

    The last layer's weights are uniform in +-0.003 before training, as in Lillicrap et al. 2016,
    "Continuous control with deep reinforcement learning" (arXiv 1509.02971, section 7), so that
    tanh does not start where it is flat.
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
            # tanh is 1 at 20. oneDNN would fuse it with the layer, but not in all programs, and
            # round differently.
            sums = tf.clip_by_value(layer(features), -20.0, 20.0)
            shares = tf.tanh(tf.reshape(sums, tf.concat([tf.shape(sums)[:-1], spec.shape], axis=0)))
            middle, half = (spec.maximum + spec.minimum) / 2, (spec.maximum - spec.minimum) / 2
            actions.append(middle + half * tf.cast(shares, spec.dtype))
        return tf.nest.pack_sequence_as(self._action_spec, actions), network_state
