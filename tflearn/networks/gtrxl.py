"""GTrXL: a gated transformer over the last steps of an episode, as a memory.

Parisotto et al. 2019, "Stabilizing Transformers for Reinforcement Learning" (arXiv 1910.06764,
section 3); attention by relative positions: Dai et al. 2019, "Transformer-XL" (arXiv 1901.02860,
section 3.3). With the inputs x of a layer, of which the memory has the last M before step t, a
layer is

  y_t = gate(x_t, relu(attention(norm(x_t), over norm(x_t-M), ..., norm(x_t))))
  output_t = gate(y_t, relu(mlp(norm(y_t))))
  gate(x, y) = (1 - z) x + z tanh(W_g y + U_g (r x))   r = sigmoid(W_r y + U_r x), z = sigmoid(W_z y + U_z x - b)

No gradient flows into the memory. A step of a training sequence attends to the M steps before it
too, and to none of another episode, so a sequence has the outputs that acting had step by step.
Computes in float32.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.networks import network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked_dataclass

_Dense = functools.partial(tf.keras.layers.Dense, dtype='float32')
_Product = functools.partial(_Dense, use_bias=False)
_GATE_BIAS = 2.0  # at first a gate passes nearly x alone, which is what makes training stable (section 3.2)


@checked_dataclass(frozen=True)
class GTrXLOptions:
    """What a GTrXL has besides its layers' units.

    Attributes:
      window_steps: M, the steps before the present one that each layer remembers [environment
        steps]. The state has M numbers for each unit of each layer, and rows of the replay store
        it.
      num_heads: the attention heads of a layer, of which the units are a multiple.
    """

    window_steps: PositiveInt = 16
    num_heads: PositiveInt = 4

    def check(self, units: Sequence[int]) -> None:
        """Checks the units of the layers.

        Raises:
          ValueError: if they differ, or are no positive multiple of the heads.
        """
        if len(set(units)) != 1 or units[0] < 1 or units[0] % self.num_heads:
            raise UserValueError(
                f'got lstm_size={tuple(units)} of a GTrXL with num_heads={self.num_heads}; need the same units in all '
                'layers, a multiple of the heads'
            )


class GTrXL(network.Network):
    """Vectors [B, F] or [B, T, F] -> features, float32 [..., units].

    The state has `embeddings`, float32 [B, layers, M, units], and `steps`, int32 [B]: how many of
    them, the last ones, are of the present episode; the others are 0.
    """

    def __init__(self, spec: types.TensorSpec, units: Sequence[int], options: GTrXLOptions, name: str = 'GTrXL'):
        """Makes no variables yet.

        Args:
          spec: the spec of the vectors, of floats.
          units: those of each layer.
          options: window and heads; see `GTrXLOptions.check` for what they need.
          name: the network's name.
        """
        self._window = options.window_steps
        embeddings = tf.TensorSpec([len(units), self._window, units[0]], tf.float32, 'embeddings')
        super().__init__(spec, {'embeddings': embeddings, 'steps': tf.TensorSpec([], tf.int32, 'steps')}, name=name)
        self._first = _Dense(units[0])
        self._blocks = [_Layer(units[0], options.num_heads, self._window) for _ in units]

    def call(self, inputs: tf.Tensor, step_type: Any = None, network_state: Any = (), training: bool = False) -> Any:
        """See `network.Network.call`."""
        has_time = inputs.shape.rank == 3
        if not has_time:
            inputs, step_type = inputs[:, tf.newaxis], step_type[:, tf.newaxis]
        outputs = self._first(tf.cast(inputs, tf.float32))
        state = network_state or tensor_spec.zero_spec_nest(self.state_spec, outer_dims=[tf.shape(inputs)[0]])
        window, length = self._window, inputs.shape[1] or tf.shape(inputs)[1]
        # The episodes of the sequences are counted; that of the memory is 0, and what is empty
        # there has -1.
        episodes = tf.cumsum(tf.cast(tf.equal(step_type, ts.StepType.FIRST), tf.int32), axis=1)
        of_memory = -tf.cast(tf.range(window) < window - state['steps'][:, tf.newaxis], tf.int32)
        of_keys = tf.concat([of_memory, episodes], axis=1)
        distances = window + tf.range(length)[:, tf.newaxis] - tf.range(window + length)
        mask = (distances >= 0) & (distances <= window) & (of_keys[:, tf.newaxis] == episodes[..., tf.newaxis])
        embeddings = []
        for layer, memory in zip(self._blocks, tf.unstack(state['embeddings'], axis=1), strict=True):
            known = tf.concat([tf.stop_gradient(memory), outputs], axis=1)
            embeddings.append(known[:, -window:])
            outputs = layer(known, mask)
        kept = tf.cast(of_keys[:, -window:] == episodes[:, -1:], tf.int32)
        remembered = tf.stack(embeddings, axis=1) * tf.cast(kept, tf.float32)[:, tf.newaxis, :, tf.newaxis]
        state = {'embeddings': remembered, 'steps': tf.reduce_sum(kept, axis=1)}
        return outputs if has_time else outputs[:, 0], state


class _Layer(tf.keras.layers.Layer):
    """One layer: what it knows [B, M + T, units], of which the last T are its inputs, mask -> [B, T, units]."""

    def __init__(self, units: int, num_heads: int, window: int):
        super().__init__(dtype='float32')
        self._window, self._attention = window, _RelativeAttention(units, num_heads, window)
        self._norms = [tf.keras.layers.LayerNormalization(dtype='float32') for _ in range(2)]
        self._gates = [_Gate(units), _Gate(units)]
        self._mlp = tf.keras.Sequential([_Dense(2 * units, 'relu'), _Dense(units, 'relu')])

    def call(self, known: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """See the class; the mask is bool [B, T, M + T]."""
        attended = tf.nn.relu(self._attention(self._norms[0](known), mask))
        outputs = self._gates[0](known[:, self._window :], attended)
        return self._gates[1](outputs, self._mlp(self._norms[1](outputs)))


class _Gate(tf.keras.layers.Layer):
    """The gate (x, y) of the module."""

    def __init__(self, units: int):
        super().__init__(dtype='float32')
        self._of_x, self._of_y, self._of_reset = _Product(2 * units), _Product(3 * units), _Product(units)
        self._bias = self.add_weight('bias', [units], initializer=tf.keras.initializers.Constant(_GATE_BIAS))

    def call(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """See the class."""
        reset_x, update_x = tf.split(self._of_x(x), 2, axis=-1)
        reset_y, update_y, new = tf.split(self._of_y(y), 3, axis=-1)
        update = tf.sigmoid(update_y + update_x - self._bias)
        return (1.0 - update) * x + update * tf.tanh(new + self._of_reset(tf.sigmoid(reset_y + reset_x) * x))


class _RelativeAttention(tf.keras.layers.Layer):
    """Attention of the last T of [B, M + T, units] to those of them in a mask [B, T, M + T], from 0 to M steps away."""

    def __init__(self, units: int, num_heads: int, window: int):
        super().__init__(dtype='float32')
        self._units, self._num_heads, self._window = units, num_heads, window
        self._query, self._key, self._value, self._position, self._last = (_Product(units) for _ in range(5))
        names = 'content_bias', 'position_bias'
        self._biases = [self.add_weight(name, [num_heads, units // num_heads]) for name in names]
        angles = np.arange(window, -1, -1)[:, np.newaxis] * 1e4 ** (-np.arange(0, units, 2) / units)
        self._encoded = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :units].astype(np.float32)

    def call(self, inputs: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """See the class."""
        size = self._units // self._num_heads
        heads = lambda rows: tf.reshape(rows, [-1, tf.shape(rows)[-2], self._num_heads, size])  # noqa: E731
        query, positions = heads(self._query(inputs[:, self._window :])), heads(self._position(self._encoded))[0]
        content, position = (query + bias for bias in self._biases)
        logits = tf.einsum('bthd,bshd->bhts', content, heads(self._key(inputs)))
        logits += _by_keys(tf.einsum('bthd,mhd->bhtm', position, positions))
        logits = tf.where(mask[:, tf.newaxis], logits * size**-0.5, logits.dtype.min)
        mixed = tf.einsum('bhts,bshd->bthd', tf.nn.softmax(logits), heads(self._value(inputs)))
        return self._last(tf.reshape(mixed, [-1, tf.shape(mixed)[1], self._units]))


def _by_keys(logits: tf.Tensor) -> tf.Tensor:
    """Returns [B, H, T, M + T], by keys, of [B, H, T, M + 1], by distances from M to 0: row t begins at column t."""
    batch, heads, length, columns = tf.unstack(tf.shape(logits))
    padded = tf.pad(logits, [[0, 0], [0, 0], [0, 0], [0, length]])
    rows = tf.reshape(padded, [batch, heads, -1])[..., : length * (columns + length - 1)]
    return tf.reshape(rows, [batch, heads, length, columns + length - 1])
