"""Transforms of images: scale, crop, grayscale, resize."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tflearn.core.errors import UserValueError
from tflearn.core.settings import NonNegativeInt, PositiveInt, checked
from tflearn.core.types import with_shape
from tflearn.transforms.transform import ObservationTransform

Method = Literal['area', 'bilinear', 'nearest']

# ITU-R BT.601: the luma of red, green and blue.
_LUMA = (0.299, 0.587, 0.114)


class _ImageTransform(ObservationTransform):
    need = 'an image [height, width, channels] of bytes or floats'

    def fits(self, spec: tf.TensorSpec) -> bool:
        """See `ObservationTransform`."""
        return bool(spec.shape.rank == 3 and (spec.dtype == tf.uint8 or spec.dtype.is_floating))


class Scale(_ImageTransform):
    """Scales images of bytes, 0 to 255, to float32 from `low` to `high`."""

    need = 'an image [height, width, channels] of bytes'

    def __init__(self, low: float = 0.0, high: float = 1.0, paths: Sequence[str] | None = None):
        """
        Args:
          low: what 0 becomes.
          high: what 255 becomes.
          paths: the images' paths; None scales all images of bytes.
        """
        super().__init__(paths)
        if not low < high:
            raise UserValueError(f'got Scale.low={low}, high={high}; need low < high')
        self._low, self._high = low, high

    def fits(self, spec: tf.TensorSpec) -> bool:
        """See `ObservationTransform`."""
        return super().fits(spec) and spec.dtype == tf.uint8

    def transform_leaf_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        """See `ObservationTransform`."""
        return tensor_spec.BoundedTensorSpec(spec.shape, tf.float32, self._low, self._high, spec.name)

    def transform_leaf(self, values: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        """See `ObservationTransform`."""
        return tf.cast(values, tf.float32) * ((self._high - self._low) / 255.0) + self._low


class Crop(_ImageTransform):
    """Cuts images of the same height and width out of images."""

    @checked
    def __init__(
        self,
        height: PositiveInt,
        width: PositiveInt,
        top: NonNegativeInt | None = None,
        left: NonNegativeInt | None = None,
        paths: Sequence[str] | None = None,
    ):
        """
        Args:
          height: the height of what is kept [pixels].
          width: the width of what is kept [pixels].
          top: the first row that is kept; None keeps the middle.
          left: the first column that is kept; None keeps the middle.
          paths: the images' paths; None crops all images.
        """
        super().__init__(paths)
        self._height, self._width, self._top, self._left = height, width, top, left

    def transform_leaf_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        """See `ObservationTransform`.

        Raises:
          ValueError: if an image is too small.
        """
        top, left = self._corner(spec)
        height, width, channels = spec.shape
        if min(top, left) < 0 or top + self._height > height or left + self._width > width:
            raise UserValueError(
                f'got Crop(height={self._height}, width={self._width}) from row {top} and column {left} of the image '
                f'{spec}; need a part of it'
            )
        cut = np.s_[top : top + self._height, left : left + self._width]
        return with_shape(spec, (self._height, self._width, channels), lambda bound: bound[cut])

    def _corner(self, spec: tf.TensorSpec) -> tuple[int, int]:
        height, width, _ = spec.shape
        top = (height - self._height) // 2 if self._top is None else self._top
        return top, (width - self._width) // 2 if self._left is None else self._left

    def transform_leaf(self, values: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        """See `ObservationTransform`."""
        top, left = self._corner(spec)
        return values[..., top : top + self._height, left : left + self._width, :]


class Grayscale(_ImageTransform):
    """Makes images of one channel from images of red, green and blue:
    0.299 red + 0.587 green + 0.114 blue.

    The weights are the luma of ITU-R BT.601. Bytes are rounded to bytes.
    """

    need = 'an image [height, width, 3] of bytes or floats'

    def __init__(self, paths: Sequence[str] | None = None):
        """
        Args:
          paths: the images' paths; None changes all images of three channels.
        """
        super().__init__(paths)

    def fits(self, spec: tf.TensorSpec) -> bool:
        """See `ObservationTransform`."""
        return super().fits(spec) and spec.shape[-1] == 3

    def transform_leaf_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        """See `ObservationTransform`."""
        return with_shape(spec, (*spec.shape[:2], 1), lambda bound: bound[..., :1])

    def transform_leaf(self, values: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        """See `ObservationTransform`."""
        gray = tf.reduce_sum(tf.cast(values, tf.float32) * tf.constant(_LUMA), axis=-1, keepdims=True)
        return _as_dtype(gray, spec.dtype)


class Resize(_ImageTransform):
    """Resizes images; bytes are rounded to bytes."""

    @checked
    def __init__(
        self, height: PositiveInt, width: PositiveInt, method: Method = 'area', paths: Sequence[str] | None = None
    ):
        """
        Args:
          height: the new height [pixels].
          width: the new width [pixels].
          method: 'area' averages the pixels that become one, 'bilinear' interpolates between four,
            'nearest' takes one.
          paths: the images' paths; None resizes all images.
        """
        super().__init__(paths)
        self._size, self._method = (height, width), method

    def transform_leaf_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        """See `ObservationTransform`."""
        return with_shape(spec, (*self._size, spec.shape[-1]), lambda bound: bound[:1, :1])

    def transform_leaf(self, values: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        """See `ObservationTransform`."""
        outer = tf.shape(values)[: values.shape.rank - 3]
        images = tf.cast(tf.reshape(values, [-1, *spec.shape]), tf.float32)
        resized = tf.image.resize(images, self._size, method=self._method)
        shape = [*self._size, spec.shape[-1]]
        resized = tf.reshape(resized, tf.concat([outer, shape], axis=0))
        return _as_dtype(tf.ensure_shape(resized, [*values.shape[:-3], *shape]), spec.dtype)


def _as_dtype(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype.is_integer:
        values = tf.clip_by_value(tf.round(values), 0.0, 255.0)
    return tf.cast(values, dtype)
