"""ResNet: the deep convolutional network of IMPALA, as a layer for an image."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class ResNet(tf.keras.layers.Layer):
    """Image [B, height, width, channels] -> features [B, units], by convolutions with residual connections.

    Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
    Actor-Learner Architectures" (arXiv 1802.01561, figure 3, the large network without its memory).
    Bytes are scaled to numbers from 0 to 1.
    """

    def __init__(self, filters: Sequence[int] = (16, 32, 32), units: int = 256, **kwargs: Any):
        """
        Args:
          filters: the filters of each section, which halves height and width.
          units: units of the fully connected layer after them.
          **kwargs: Keras' arguments of a layer.
        """
        super().__init__(**kwargs)
        self._filters, self._units = tuple(filters), units
        convolution = tf.keras.layers.Conv2D
        self._first = [convolution(number, 3, padding='same') for number in filters]
        self._pools = [tf.keras.layers.MaxPool2D(3, 2, padding='same') for _ in filters]
        self._blocks = [[convolution(number, 3, padding='same') for _ in range(4)] for number in filters]
        self._last = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(units, 'relu')])

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), 'filters': self._filters, 'units': self._units}

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See the class."""
        features = tf.cast(inputs, self.compute_dtype) / (255 if inputs.dtype == tf.uint8 else 1)
        for first, pool, block in zip(self._first, self._pools, self._blocks, strict=True):
            features = pool(first(features))
            for one, two in (block[:2], block[2:]):
                features += two(tf.nn.relu(one(tf.nn.relu(features))))
        return self._last(tf.nn.relu(features))
