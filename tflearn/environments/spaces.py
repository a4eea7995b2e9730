"""gymnasium spaces as TF-Agents specs, and batches of their elements to and fro.

Every discrete space becomes int64 counted from 0, whatever its own dtype and start; a Box keeps its dtype, except that
float64 becomes float32. Dict and Tuple become nests.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium import spaces
from tf_agents.specs import tensor_spec
from tf_agents.typing import types

Convert = Callable[[Any], Any]


def to_spec(space: spaces.Space, name: str) -> types.NestedTensorSpec:
    """Returns the spec of one element of `space`: bounded tensor specs in the space's nest.

    Args:
      space: a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of these.
      name: 'observation' or 'action'; names the leaf, or the leaves as `name/key`.

    Raises:
      ValueError: if the space is of another kind.
    """
    if isinstance(space, spaces.Dict):
        return {key: to_spec(part, f'{name}/{key}') for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(to_spec(part, f'{name}/{i}') for i, part in enumerate(space))
    minimum, maximum, dtype = _bounds(space, name)
    return tensor_spec.BoundedTensorSpec(space.shape, dtype, minimum, maximum, name)


def _bounds(space: Any, name: str) -> tuple[Any, Any, tf.DType]:
    if isinstance(space, spaces.Discrete):
        return 0, np.asarray(space.n) - 1, tf.int64
    if isinstance(space, spaces.MultiDiscrete):
        return 0, space.nvec - 1, tf.int64
    if isinstance(space, spaces.MultiBinary):
        return 0, 1, tf.int64
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in 'iuf':
        dtype = np.dtype(np.float32 if space.dtype == np.float64 else space.dtype)
        with np.errstate(over='ignore'):  # beyond float32 there is no bound to speak of
            low, high = space.low.astype(dtype), space.high.astype(dtype)
        if low.size and (low == low.flat[0]).all() and (high == high.flat[0]).all():
            low, high = low.flat[0], high.flat[0]  # one number reads better than 28224 equal ones
        return low, high, tf.as_dtype(dtype)
    raise ValueError(
        f'got the {name} space {space}; need a Box of numbers, Discrete, MultiDiscrete or MultiBinary, or a Dict or '
        'Tuple of these; wrap the environment so that it has one'
    )


def reader(space: spaces.Space) -> Convert:
    """Returns a function from a batch of elements, as gymnasium's vector environments give it, to arrays of the spec.

    The arrays are new ones: gymnasium writes the next step into the memory of this one.
    """
    if isinstance(space, spaces.Dict):
        readers = {key: reader(part) for key, part in space.items()}
        return lambda batch: {key: read(batch[key]) for key, read in readers.items()}
    if isinstance(space, spaces.Tuple):
        parts = tuple(reader(part) for part in space)
        return lambda batch: tuple(read(value) for read, value in zip(parts, batch, strict=True))
    dtype = _bounds(space, 'observation')[2].as_numpy_dtype
    if (start := _start(space)) is not None:
        return lambda batch: np.subtract(batch, start, dtype=dtype)
    return lambda batch: np.array(batch, dtype, order='C')


def writer(space: spaces.Space, num_environments: int) -> Convert:
    """Returns a function from arrays [B, ...] of the spec to a batch of elements for gymnasium's vector environments.

    It checks shapes and dtypes, and raises ValueError where they are others. Bounds are `check_bounds`'s.
    """
    if isinstance(space, spaces.Dict):
        writers = {key: writer(part, num_environments) for key, part in space.items()}
        return lambda batch: {key: write(batch[key]) for key, write in writers.items()}
    if isinstance(space, spaces.Tuple):
        parts = tuple(writer(part, num_environments) for part in space)
        return lambda batch: tuple(write(value) for write, value in zip(parts, batch, strict=True))
    return _leaf_writer(space, num_environments)


def _leaf_writer(space: Any, num_environments: int) -> Convert:
    shape = (num_environments, *space.shape)
    dtype = np.dtype(_bounds(space, 'action')[2].as_numpy_dtype)
    start = _start(space)
    narrowed = isinstance(space, spaces.Box) and space.dtype != dtype

    def write(batch: Any) -> np.ndarray:
        batch = np.asarray(batch)
        if batch.shape != shape or batch.dtype != dtype:
            raise ValueError(f'got an action with shape {batch.shape}, {batch.dtype}; need {shape}, {dtype}')
        if start is not None:
            return batch + start
        if narrowed:  # the bounds in float32 may lie a rounding error outside those in float64
            return np.clip(batch.astype(space.dtype), space.low, space.high)
        return batch.astype(space.dtype, copy=False)

    return write


def _start(space: spaces.Space) -> Any | None:
    """Returns what a discrete space counts from, or None where that is 0."""
    start = getattr(space, 'start', None)
    return start if start is not None and np.any(start) else None


def check_bounds(action: Any, spec: types.NestedTensorSpec) -> None:
    """Checks actions [B, ...] against the bounds of their spec.

    Raises:
      ValueError: naming the leaf that leaves its bounds (NaN does).
    """
    for leaf, leaf_spec in zip(tf.nest.flatten(action), tf.nest.flatten(spec), strict=True):
        within = (leaf >= leaf_spec.minimum) & (leaf <= leaf_spec.maximum)
        if not within.all():
            bounds = f'{leaf_spec.minimum} to {leaf_spec.maximum}'
            raise ValueError(f'got {leaf[~within][0]} in {leaf_spec.name}; need values from {bounds}')
