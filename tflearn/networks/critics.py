"""Critics: N networks of the values of actions, computed together; each returns M numbers for an action.

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv 1802.09477): the least of
two values is overestimated less; Chen et al. 2021, "Randomized Ensembled Double Q-Learning" (arXiv 2101.05982): many
critics; Hiraoka et al. 2022, "Dropout Q-Functions for Doubly Efficient Reinforcement Learning" (arXiv 2110.02034,
figure 3): dropout, then layer normalization, before each activation.

Letters in shapes: R rows, N critics, M numbers of each.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.networks import network as network_lib
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.train_step import Draws
from tflearn.networks import encoder
from tflearn.networks.networks import NetworkOptions

# The numbers of a kernel from which on two critics have variables of their own.
_LARGE = 16_384


@dataclasses.dataclass(frozen=True)
class CriticOptions:
    """The critics.

    Attributes:
      num: N.
      num_outputs: M, of continuous actions; of a discrete one it is the number of choices.
      dropout_rate: the share of features that are dropped while training, and in the targets, before each activation;
        in [0, 1).
      layer_norm: whether features are normalized before each activation.
      shared_encoder: whether what encodes observations has one set of weights for all critics.
    """

    num: int = 2
    num_outputs: int = 1
    dropout_rate: float = 0.0
    layer_norm: bool = False
    shared_encoder: bool = False

    def __post_init__(self) -> None:
        if self.num < 1 or self.num_outputs < 1:
            raise UserValueError(f'got num={self.num!r}, num_outputs={self.num_outputs!r} of critics; need 1 or more')
        if not 0 <= self.dropout_rate < 1:
            raise UserValueError(f'got dropout_rate={self.dropout_rate!r}; need a number of at least 0 and below 1')


class Critics(tf.Module):
    """See the module. Without an action spec of floats, they value all choices of a discrete action."""

    def __init__(
        self,
        observation_spec: types.NestedTensorSpec,
        action_spec: types.BoundedTensorSpec,
        network: NetworkOptions,
        options: CriticOptions = CriticOptions(),
        name: str = 'critics',
    ):
        """Makes the variables, in the strategy's scope.

        Args:
          observation_spec: the spec of what the critics see.
          action_spec: the spec of a vector of floats, or of one discrete action, counted from 0.
          network: the critics' layers; with memory, it is before the action.
          options: the critics.
          name: the module's name.
        """
        super().__init__(name)
        self.is_discrete, self._options = action_spec.dtype.is_integer, options
        self._action_spec = action_spec
        critic = network.of_critic()
        first, size = _make_encoder(observation_spec, network)
        # One for each critic, or one for all.
        more = 0 if options.shared_encoder or not first.variables else options.num - 1
        self.encoders = [first, *(_make_encoder(observation_spec, network)[0] for _ in range(more))]
        size += 0 if self.is_discrete else action_spec.shape[0]
        outputs = int(action_spec.maximum) + 1 if self.is_discrete else options.num_outputs
        sizes = [size, *(critic.fc_layer_params or ()), outputs]
        pairs = list(itertools.pairwise(sizes))
        self._layers = [_Layer(options, *pair, critic.activation_function) for pair in pairs[:-1]]
        self._layers.append(_Layer(options, *pairs[-1]))

    @property
    def losses(self) -> list[tf.Tensor]:
        """The regularization losses of networks of one's own."""
        return [loss for made in self.encoders for loss in made.losses]

    def features(self, observation: types.NestedTensor, training: bool = False) -> list[tf.Tensor]:
        """Returns what the encoders, one for each critic or one for all, make of observations [R, ...]."""
        made = [
            each(observation, step_type=(), training=training)[0]
            if isinstance(each, network_lib.Network)
            else each(observation)
            for each in self.encoders
        ]
        return [tf.cast(features, encoder.compute_dtype()) for features in made]

    def __call__(
        self,
        observation: types.NestedTensor,
        action: tf.Tensor | None = None,
        training: bool = False,
        draws: Draws | None = None,
        num: int | None = None,
    ) -> tf.Tensor:
        """Returns the numbers of actions, float32 [R, N, M]; of a discrete action, the values of all choices.

        Args:
          observation: nest of [R, ...].
          action: floats [R, A]; None for a discrete action.
          training: whether networks behave as while training.
          draws: draws what is dropped; None drops nothing.
          num: how many critics to compute, the first ones; None computes all.
        """
        return self.of_features(self.features(observation, training), action, draws, num)

    def of_features(
        self,
        features: Sequence[tf.Tensor],
        action: tf.Tensor | None = None,
        draws: Draws | None = None,
        num: int | None = None,
    ) -> tf.Tensor:
        """Returns the same of features, one tensor [R, F] for each critic or one for all."""
        if action is not None:
            features = [tf.concat([each, tf.cast(action, each.dtype)], axis=-1) for each in features]
        num = num or self._options.num
        outputs = list(features)[:num] if len(features) > 1 else [features[0]] * num
        for layer in self._layers:
            outputs = layer(outputs, draws)
        return tf.stack(outputs, axis=1)

    def of_actions(self, observation: types.NestedTensor, action: Any, training: bool = False) -> tf.Tensor:
        """Returns the values of one discrete action, or of a vector of floats that is clipped to its bounds, [R, N].

        Floats are clipped before an environment gets them too, while a normal distribution may draw others.
        """
        if self.is_discrete:
            values = self(observation, training=training)
            return tf.gather(values, action, axis=2, batch_dims=1)
        bounded = tf.clip_by_value(action, self._action_spec.minimum, self._action_spec.maximum)
        return tf.squeeze(self(observation, bounded, training), axis=2)


def make(
    observation_spec: types.NestedTensorSpec,
    action_spec: types.NestedTensorSpec,
    network: NetworkOptions,
    options: CriticOptions = CriticOptions(),
) -> tuple[Critics, Critics]:
    """Makes critics, and those of their targets; see `Critics`. The action is of one tensor."""
    (action,) = tf.nest.flatten(action_spec)
    trained, targets = (
        Critics(observation_spec, action, network, options, name) for name in ('critics', 'target_critics')
    )
    return trained, targets


def _make_encoder(spec: types.NestedTensorSpec, network: NetworkOptions) -> tuple[Any, int]:
    """Returns what makes features [R, F] of observations, and F."""
    if network.make_network is None and not network.lstm_size:
        made = encoder.NestEncoder(spec, network.conv_layer_params, network.preprocessing_layers)
        example = tf.nest.map_structure(lambda leaf: tf.zeros((1, *leaf.shape), leaf.dtype), spec)
        return made, made(example).shape[-1]
    made = network.make_encoder(spec, 'encoder', with_memory=bool(network.lstm_size))
    return made, made.create_variables(spec).shape[-1]


class _Layer(tf.Module):
    """One layer of all critics, whose inputs [R, inputs] and outputs [R, units] are lists of N.

    The products are apart: one product of stacked matrices takes a fifth longer on a CPU. So are large variables of two
    critics, which need no division then; of others, an optimizer takes less time for one stacked variable.
    """

    def __init__(
        self,
        options: CriticOptions,
        num_inputs: int,
        units: int,
        activation: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ):
        """Without an activation it is the last one, in float32."""
        super().__init__('layer')
        bound = (6 / (num_inputs + units)) ** 0.5  # Glorot and Bengio 2010
        self._num = options.num
        self._kernels = self._make('kernel', lambda shape: tf.random.uniform(shape, -bound, bound), num_inputs, units)
        self._biases = self._make('bias', tf.zeros, units)
        self._dropout_rate, self._activation = options.dropout_rate, activation
        self._dtype = tf.float32 if activation is None else encoder.compute_dtype()
        self._scales: list[tf.Variable] = []
        if options.layer_norm and activation:
            self._scales, self._shifts = self._make('scale', tf.ones, units), self._make('shift', tf.zeros, units)

    def _make(self, name: str, initial: Callable[[Sequence[int]], tf.Tensor], *shape: int) -> list[tf.Variable]:
        """Returns a variable for each critic, or one for all."""
        if self._num == 1 or (self._num == 2 and math.prod(shape) >= _LARGE):
            return [tf.Variable(initial(shape), name=name) for _ in range(self._num)]
        return [tf.Variable(initial((self._num, *shape)), name=name)]

    def each(self, variables: Sequence[tf.Variable]) -> Sequence[tf.Tensor]:
        """Returns the values of each critic, of variables of this layer."""
        return variables if len(variables) == self._num else tf.unstack(variables[0])

    def __call__(self, inputs: Sequence[tf.Tensor], draws: Draws | None) -> list[tf.Tensor]:
        parts = zip(inputs, self.each(self._kernels), self.each(self._biases), strict=False)  # inputs may be fewer
        cast = lambda values: tf.cast(values, self._dtype)  # noqa: E731
        outputs = [tf.nn.bias_add(cast(each) @ cast(kernel), cast(bias)) for each, kernel, bias in parts]
        if self._activation is None:
            return outputs
        if draws and self._dropout_rate:
            kept = draws.uniform(tf.concat([[len(outputs)], tf.shape(outputs[0])], axis=0)) >= self._dropout_rate
            factors = tf.unstack(tf.cast(kept, self._dtype) / (1 - self._dropout_rate), len(outputs))
            outputs = [output * factor for output, factor in zip(outputs, factors, strict=True)]
        if self._scales:
            scaled = zip(outputs, self.each(self._scales), self.each(self._shifts), strict=False)
            outputs = [_normalized(*each) for each in scaled]
        return [self._activation(output) for output in outputs]


def _normalized(inputs: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(inputs, axes=[-1], keepdims=True)
    normal = (inputs - mean) * tf.math.rsqrt(variance + 1e-5)
    return normal * tf.cast(scale, inputs.dtype) + tf.cast(shift, inputs.dtype)
