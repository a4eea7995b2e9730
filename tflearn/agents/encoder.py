"""Encodes observations for networks: each leaf of the observation by its kind.

  kind        which tensors                                    encoded as
  bytes       uint8 of rank 1 or more (images)                 numbers from 0 to 1; convolutions may follow
  categories  other integers with bounds, uint8 scalars        one-hot vectors; if there are more than ONE_HOT_SIZE
                                                               categories in total, rows of a trained table
  numbers     floats, zeros and ones, integers without bounds  unchanged

Bounds that are those of the dtype do not count as bounds. A category out of its bounds is encoded as zeros, but
environments and exported policies reject it before.

The leaves of a nested observation are encoded one by one and then concatenated. Convolutions take only one image.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.typing import types

from tflearn.errors import UserValueError
from tflearn.types import integer_bounds

ONE_HOT_SIZE = 1_000
EMBEDDING_SIZE = 64
MAX_CATEGORIES = 100_000


class Pixels(tf.keras.layers.Layer):
    """Scales bytes, 0 to 255, to numbers from 0 to 1."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Takes uint8 of any shape; returns the layer's compute dtype."""
        return tf.cast(inputs, self.compute_dtype) / 255


class _Categories(tf.keras.layers.Layer):
    """Encodes categories, integers [B, ...], as features [B, num_features].

    Attributes:
      sizes: the number of categories of each integer.
    """

    def __init__(self, minimum: Sequence[int], sizes: Sequence[int], **kwargs: Any):
        """Takes the first category and the number of categories of each integer, in row-major order."""
        super().__init__(**kwargs)
        self._minimum, self.sizes = tuple(minimum), tuple(sizes)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, since TF-Agents' networks copy their layers."""
        return {**super().get_config(), 'minimum': self._minimum, 'sizes': self.sizes}

    def _indices(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns int64 [B, number of integers], counted from 0; -1 if out of bounds."""
        flat = tf.cast(tf.reshape(inputs, [-1, len(self.sizes)]), tf.int64)
        counted = flat - tf.constant(self._minimum, tf.int64)
        return tf.where((counted >= 0) & (counted < tf.constant(self.sizes, tf.int64)), counted, -1)


class OneHot(_Categories):
    """Encodes each integer as a one-hot vector; float [B, sum(sizes)]."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See the class."""
        most = max(self.sizes)
        hot = tf.reshape(
            tf.one_hot(self._indices(inputs), most, dtype=self.compute_dtype), [-1, len(self.sizes) * most]
        )
        used = np.flatnonzero(np.arange(most) < np.asarray(self.sizes)[:, np.newaxis])
        return hot if used.size == hot.shape[1] else tf.gather(hot, used, axis=1)


class Embedding(_Categories):
    """Encodes each category as a row of a trained table; float [B, number of integers * EMBEDDING_SIZE]."""

    def build(self, input_shape: Any) -> None:
        """Makes the table, float32 [sum(sizes), EMBEDDING_SIZE]."""
        initializer = tf.keras.initializers.RandomNormal(stddev=EMBEDDING_SIZE**-0.5)
        self._table = self.add_weight('table', [sum(self.sizes), EMBEDDING_SIZE], initializer=initializer)
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See the class."""
        indices = self._indices(inputs)
        first_rows = tf.constant(np.cumsum([0, *self.sizes[:-1]]), tf.int64)
        rows = tf.gather(self._table, tf.maximum(indices, 0) + first_rows)
        known = tf.cast(indices >= 0, rows.dtype)[..., tf.newaxis]
        return tf.reshape(rows * known, [-1, len(self.sizes) * EMBEDDING_SIZE])


def is_categorical(spec: types.TensorSpec) -> bool:
    """Returns whether a leaf of the observation contains categories."""
    if spec.dtype == tf.uint8 and spec.shape.rank:
        return False
    bounds = integer_bounds(spec)
    return bounds is not None and not (np.all(bounds[0] == 0) and np.all(bounds[1] <= 1))


def make_layer(spec: types.TensorSpec) -> tf.keras.layers.Layer | None:
    """Returns the layer that encodes a leaf of the observation; None if it is not encoded.

    Raises:
      ValueError: for more than MAX_CATEGORIES categories.
    """
    if spec.dtype == tf.uint8 and spec.shape.rank:
        return Pixels()
    if not is_categorical(spec):
        return None
    minimum, maximum = integer_bounds(spec)  # type: ignore[misc]
    sizes = [int(high) - int(low) + 1 for low, high in zip(minimum.flat, maximum.flat, strict=True)]  # not of int64
    if sum(sizes) > MAX_CATEGORIES:
        raise UserValueError(
            f'got {sum(sizes)} categories in the observation {spec}; need at most {MAX_CATEGORIES}; if its integers '
            'are quantities, let the environment return floats'
        )
    layer = OneHot if sum(sizes) <= ONE_HOT_SIZE else Embedding
    return layer([int(number) for number in minimum.flat], sizes)


def network_arguments(observation_spec: types.NestedTensorSpec) -> dict[str, Any]:
    """Returns the arguments with which a TF-Agents network encodes an observation.

    Raises:
      ValueError: for more than MAX_CATEGORIES categories.
    """
    layers = [make_layer(leaf) for leaf in tf.nest.flatten(observation_spec)]
    if tf.nest.is_nested(observation_spec):
        flat = [layer or tf.keras.layers.Flatten() for layer in layers]
        return {
            'preprocessing_layers': tf.nest.pack_sequence_as(observation_spec, flat),
            'preprocessing_combiner': _Joined() if len(flat) > 1 else None,
        }
    return {'preprocessing_layers': layers[0], 'preprocessing_combiner': None}


class _Joined(tf.keras.layers.Layer):
    """Concatenates features of several leaves, [B, ...] each, to one vector [B, num_features]."""

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """See the class."""
        flat = [tf.reshape(leaf, [tf.shape(leaf)[0], np.prod(leaf.shape[1:], dtype=int)]) for leaf in inputs]
        return tf.concat([tf.cast(leaf, self.compute_dtype) for leaf in flat], axis=1)
