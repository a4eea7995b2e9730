"""N critics of continuous actions and their targets, computed together; each returns M numbers for an action.

Chen et al. 2021, "Randomized Ensembled Double Q-Learning" (arXiv 2101.05982): many critics; Hiraoka et al. 2022,
"Dropout Q-Functions for Doubly Efficient Reinforcement Learning" (arXiv 2110.02034, figure 3): dropout, then layer
normalization, before each relu.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.train_step import Draws
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks import encoder
from tflearn.networks.twin_critics import WithTargets


@dataclasses.dataclass(frozen=True)
class Critics:
    """The critics.

    Attributes:
      num: N.
      fc_layer_params: units of each critic's fully connected layers, after the concatenation of observation and action.
      num_outputs: M.
      dropout_rate: the share of features that are dropped while training, and in the targets, before each relu; in
        [0, 1).
      layer_norm: whether features are normalized before each relu.
    """

    num: int = 2
    fc_layer_params: Sequence[int] = (256, 256)
    num_outputs: int = 1
    dropout_rate: float = 0.0
    layer_norm: bool = False

    def __post_init__(self) -> None:
        if self.num < 1 or self.num_outputs < 1:
            raise UserValueError(f'got num={self.num!r}, num_outputs={self.num_outputs!r} of critics; need 1 or more')
        if not 0 <= self.dropout_rate < 1:
            raise UserValueError(f'got dropout_rate={self.dropout_rate!r}; need a number of at least 0 and below 1')


class CriticEnsemble(WithTargets):
    """See the module. Observations and actions are [B, ...]."""

    def __init__(self, specs: EnvironmentSpecs, options: Critics, encoding: Mapping[str, Any], tau: float):
        """Makes the variables, in the strategy's scope.

        Args:
          specs: the environment's specs.
          options: the critics.
          encoding: how observations enter them: conv_layer_params, preprocessing_layers, make_network. What that has of
            weights is shared by the critics.
          tau: the weight of the critics in an update of their targets, in (0, 1].

        Raises:
          ValueError: if tau is out of its bounds.
        """
        critics, targets = (_Network(options, _make_encoder(specs.observation, **encoding)) for _ in range(2))
        super().__init__((critics,), (targets,), tau)
        observation, action = (
            tf.nest.map_structure(lambda leaf: tf.zeros((1, *leaf.shape), leaf.dtype), spec)
            for spec in (specs.observation, tf.nest.flatten(specs.action)[0])
        )
        for made in (critics, targets):
            made(observation, action, False, None)

    def values(self, observation: types.NestedTensor, action: tf.Tensor, training: bool, draws: Draws) -> tf.Tensor:
        """Returns the critics' numbers, float32 [B, N, M], with dropout if `training`."""
        outputs: tf.Tensor = self._critics[0](observation, action, training, draws)
        return outputs

    def target_values(self, observation: types.NestedTensor, action: tf.Tensor, draws: Draws) -> tf.Tensor:
        """Returns the targets' numbers, float32 [B, N, M], with dropout."""
        outputs: tf.Tensor = self._targets[0](observation, action, True, draws)
        return outputs


def _make_encoder(
    spec: types.NestedTensorSpec,
    conv_layer_params: encoder.ConvLayerParams | None = None,
    preprocessing_layers: encoder.Layers | None = None,
    make_network: encoder.MakeNetwork | None = None,
) -> Any:
    """Returns what makes features [B, F] of observations."""
    if make_network is not None:
        return encoder.own_network(make_network, spec, 'encoder')
    return encoder.NestEncoder(spec, conv_layer_params, preprocessing_layers)


class _Network(tf.Module):
    """The N networks: layers whose kernels are [N, inputs, units]."""

    def __init__(self, options: Critics, encode: Any):
        super().__init__('critics')
        self._options, self._encode = options, encode
        self._layers: list[_Layer] = []

    def __call__(self, observation: Any, action: tf.Tensor, training: bool, draws: Draws | None) -> tf.Tensor:
        features = self._encode(observation)
        if isinstance(features, tuple):  # of a network: with its state, which is empty
            features = features[0]
        joined = tf.concat([tf.cast(features, tf.float32), tf.cast(action, tf.float32)], axis=-1)
        if not self._layers:
            sizes = [joined.shape[-1], *self._options.fc_layer_params, self._options.num_outputs]
            pairs = itertools.pairwise(sizes)
            self._layers = [_Layer(self._options, *pair, last=i == len(sizes) - 2) for i, pair in enumerate(pairs)]
        outputs = joined[tf.newaxis]  # [1, B, inputs], which matmul repeats for each critic
        for layer in self._layers:
            outputs = layer(outputs, draws if training else None)
        return tf.transpose(outputs, [1, 0, 2])


class _Layer(tf.Module):
    def __init__(self, options: Critics, num_inputs: int, units: int, last: bool):
        super().__init__('layer')
        bound = (6 / (num_inputs + units)) ** 0.5  # Glorot and Bengio 2010
        self._kernel = tf.Variable(tf.random.uniform((options.num, num_inputs, units), -bound, bound), name='kernel')
        self._bias = tf.Variable(tf.zeros((options.num, 1, units)), name='bias')
        self._dropout_rate, self._last = options.dropout_rate, last
        self._scale = self._shift = None
        if options.layer_norm and not last:
            self._scale = tf.Variable(tf.ones((options.num, 1, units)), name='scale')
            self._shift = tf.Variable(tf.zeros((options.num, 1, units)), name='shift')

    def __call__(self, inputs: tf.Tensor, draws: Draws | None) -> tf.Tensor:
        outputs = inputs @ self._kernel + self._bias
        if self._last:
            return outputs
        if draws and self._dropout_rate:
            kept = tf.cast(draws.uniform(tf.shape(outputs)) >= self._dropout_rate, tf.float32)
            outputs *= kept / (1 - self._dropout_rate)
        if self._scale is not None:
            mean, variance = tf.nn.moments(outputs, axes=[-1], keepdims=True)
            outputs = (outputs - mean) * tf.math.rsqrt(variance + 1e-5) * self._scale + self._shift
        return tf.nn.relu(outputs)
