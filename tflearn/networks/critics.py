"""Critics: N networks of the values of actions, computed together; each returns M numbers for an action.

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv
1802.09477): the least of two values is overestimated less; Chen et al. 2021, "Randomized Ensembled
Double Q-Learning" (arXiv 2101.05982): many critics; Hiraoka et al. 2022, "Dropout Q-Functions for
Doubly Efficient Reinforcement Learning" (arXiv 2110.02034, figure 3): dropout, then layer
normalization, before each activation.

Letters in shapes: R rows, N critics, M numbers of each.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import tensorflow as tf
from tf_agents.networks import network as network_lib
from tf_agents.typing import types

from tflearn.core.settings import NonNegativeFloat, NonNegativeInt, PositiveInt, Range, checked_dataclass
from tflearn.core.train_step import Draws
from tflearn.networks import encoder
from tflearn.networks.networks import NetworkOptions

# The numbers of a kernel from which on two critics have variables of their own.
_LARGE = 16_384


@checked_dataclass(frozen=True)
class BatchNorm:
    """Batch renormalization of what enters each layer (Ioffe 2017, "Batch Renormalization", arXiv 1702.03275).

    While training, features x have the mean m and the deviation s of the batch of all replicas;
    mean M and deviation S are moving averages, which normalize alone otherwise:

      ((x - m) / s * r + d) * scale + shift,   r = s / S within [1 / max_ratio, max_ratio],
                                               d = (m - M) / S within [-max_shift, max_shift]

    Attributes:
      momentum: the weight of a moving average in its update.
      warmup_steps: train steps until r and d count; before, it is batch normalization (r = 1,
        d = 0).
      max_ratio: the bound of r.
      max_shift: the bound of d.
    """

    momentum: Annotated[float, Range(least=0, below=1)] = 0.99
    warmup_steps: NonNegativeInt = 100_000
    max_ratio: Annotated[float, Range(least=1)] = 3.0
    max_shift: NonNegativeFloat = 5.0


@checked_dataclass(frozen=True)
class CriticOptions:
    """The critics.

    Attributes:
      num: N.
      num_outputs: M, of continuous actions; of a discrete one it is the number of choices.
      dropout_rate: the share of features that are dropped while training, and in the targets,
        before each activation; in [0, 1).
      layer_norm: whether features are normalized before each activation.
      batch_norm: the normalization of what enters each layer; None has none.
      shared_encoder: whether what encodes observations has one set of weights for all critics.
    """

    num: PositiveInt = 2
    num_outputs: PositiveInt = 1
    dropout_rate: Annotated[float, Range(least=0, below=1)] = 0.0
    layer_norm: bool = False
    batch_norm: BatchNorm | None = None
    shared_encoder: bool = False


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
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """The variables that are trained: not those of frozen layers, in networks of one's own."""
        frozen = {variable.ref() for made in self.encoders for variable in made.non_trainable_variables}
        return tuple(variable for variable in super().trainable_variables if variable.ref() not in frozen)

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
        return self.of_features(self.features(observation, training), action, draws, num, training)

    def of_features(
        self,
        features: Sequence[tf.Tensor],
        action: tf.Tensor | None = None,
        draws: Draws | None = None,
        num: int | None = None,
        training: bool = False,
    ) -> tf.Tensor:
        """Returns the same of features, one tensor [R, F] for each critic or one for all."""
        if action is not None:
            features = [tf.concat([each, tf.cast(action, each.dtype)], axis=-1) for each in features]
        num = num or self._options.num
        outputs = list(features)[:num] if len(features) > 1 else [features[0]] * num
        for layer in self._layers:
            outputs = layer(outputs, draws, training)
        return tf.stack(outputs, axis=1)

    def of_actions(self, observation: types.NestedTensor, action: Any, training: bool = False) -> tf.Tensor:
        """Returns the values of one discrete action, or of a vector of floats that is clipped to its bounds, [R, N].

        Floats are clipped before an environment gets them too, while a normal distribution may draw
        others.
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

    The products are apart: one product of stacked matrices takes a fifth longer on a CPU. So are
    large variables of two critics, which need no division then; of others, an optimizer takes less
    time for one stacked variable.
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
        self._batch_norm = options.batch_norm and _BatchNorm(options.batch_norm, (options.num, num_inputs))
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

    def __call__(self, inputs: Sequence[tf.Tensor], draws: Draws | None, training: bool) -> list[tf.Tensor]:
        if self._batch_norm:
            inputs = self._batch_norm(inputs, training)
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


class _BatchNorm(tf.Module):
    """See `BatchNorm`; each critic has statistics and parameters of its own, [N, F]."""

    def __init__(self, options: BatchNorm, shape: tuple[int, int]):
        """Makes the variables; `shape` is [N, F]."""
        super().__init__('batch_norm')
        self._options = options
        self._scale, self._shift = tf.Variable(tf.ones(shape), name='scale'), tf.Variable(tf.zeros(shape), name='shift')
        first = {'trainable': False, 'aggregation': tf.VariableAggregation.ONLY_FIRST_REPLICA}
        self._mean = tf.Variable(tf.zeros(shape), name='mean', **first)
        self._variance = tf.Variable(tf.ones(shape), name='variance', **first)
        self._steps = tf.Variable(0.0, name='steps', **first)

    def __call__(self, inputs: Sequence[tf.Tensor], training: bool) -> list[tf.Tensor]:
        """Takes and returns [R, F] of each critic, which may be the first ones."""
        dtype, features = inputs[0].dtype, tf.cast(tf.stack(inputs), tf.float32)
        scale, shift, mean, variance = (
            each[: len(inputs), tf.newaxis] for each in (self._scale, self._shift, self._mean, self._variance)
        )
        normal = self._of_batch(features, mean, variance) if training else (features - mean) * _inverse(variance)
        return tf.unstack(tf.cast(normal * scale + shift, dtype))

    def _of_batch(self, features: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        """Returns features that are normalized with the statistics of all replicas; updates the moving averages."""
        context, options = tf.distribute.get_replica_context(), self._options
        average = lambda values: context.all_reduce(  # noqa: E731
            tf.distribute.ReduceOp.MEAN, tf.reduce_mean(values, axis=1, keepdims=True)
        )
        own_mean = average(features)
        own_variance = average(tf.square(features - own_mean))
        ratio = tf.clip_by_value(_inverse(variance) / _inverse(own_variance), 1 / options.max_ratio, options.max_ratio)
        offset = tf.clip_by_value((own_mean - mean) * _inverse(variance), -options.max_shift, options.max_shift)
        warm = tf.cast(self._steps >= options.warmup_steps, tf.float32)
        ratio, offset = 1 + tf.stop_gradient(warm * (ratio - 1)), tf.stop_gradient(warm * offset)
        for moving, new in ((self._mean, own_mean), (self._variance, own_variance)):
            averaged = options.momentum * moving + (1 - options.momentum) * new[:, 0]
            moving.assign(tf.where(tf.math.is_finite(averaged), averaged, moving))
        self._steps.assign_add(1.0)
        return (features - own_mean) * _inverse(own_variance) * ratio + offset


def _inverse(variance: tf.Tensor) -> tf.Tensor:
    return tf.math.rsqrt(variance + 1e-3)


def _normalized(inputs: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(inputs, axes=[-1], keepdims=True)
    normal = (inputs - mean) * tf.math.rsqrt(variance + 1e-5)
    return normal * tf.cast(scale, inputs.dtype) + tf.cast(shift, inputs.dtype)


class Targets(tf.Module):
    """Pairs of networks with equal variables, of which the second follows the first."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]], tau: float, period: int = 1):
        """
        Args:
          pairs: the trained networks, and those that follow.
          tau: the weight of the trained ones in an update, in (0, 1]; 1 copies them.
          period: train steps between two updates.
        """
        super().__init__('targets')
        self._trained, self._following = (tuple(networks) for networks in zip(*pairs, strict=True))
        self._tau, self._period = tau, period

    def copy(self) -> None:
        """Makes the targets equal to the trained networks."""
        self._assign(1.0)

    def update(self, train_step: tf.Variable) -> None:
        """Moves the targets towards the trained networks if it is time; in replica context, after a train step."""
        parts = () if self._period == 1 else (tf.equal(train_step % self._period, 0),)

        # Only in cross-replica context may variables be assigned what all replicas share, also in a
        # branch.
        def update(strategy: tf.distribute.Strategy, *due: tf.Tensor) -> None:
            if due:
                first = strategy.experimental_local_results(due[0])[0]
                tf.cond(first, lambda: self._assign(self._tau), lambda: None)
            else:
                self._assign(self._tau)

        tf.distribute.get_replica_context().merge_call(update, parts)

    def _assign(self, tau: float) -> None:
        for trained, target in zip(self._trained, self._following, strict=True):
            for new, old in zip(trained.variables, target.variables, strict=True):
                old.assign((1 - tau) * old + tau * new if tau < 1 else new)
