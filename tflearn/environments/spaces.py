"""gymnasium spaces as TF-Agents specs, and the conversion of batches of their elements.

Every discrete space becomes int64, counted from its start, whatever its dtype; a Box keeps its
dtype, except that float64 and float16 become float32, and integers that TensorFlow draws and
computes little with a larger one. Dict and Tuple become nests.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium import spaces
from tf_agents.specs import tensor_spec
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.types import integer_bounds
from tflearn.environments import gathering

Convert = Callable[[Any], Any]

_DTYPES = {
    np.dtype(one): np.dtype(other)
    for one, other in {
        'float64': 'float32',
        'float16': 'float32',
        'bool': 'int64',
        'int8': 'int32',
        'int16': 'int32',
        'uint16': 'int32',
        'uint32': 'int64',
        'uint64': 'int64',
    }.items()
}


def to_spec(space: spaces.Space, name: str) -> types.NestedTensorSpec:
    """Returns the spec of one element of `space`: bounded tensor specs in the space's nest.

    Args:
      name: 'observation' or 'action', the name of the leaf, or the prefix of the leaves' names
        `name/key`.

    Raises:
      ValueError: if the space is of another kind.
    """
    gathering.check_space(space, name)
    if isinstance(space, spaces.Dict):
        return {key: to_spec(part, f'{name}/{key}') for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(to_spec(part, f'{name}/{i}') for i, part in enumerate(space))
    minimum, maximum, dtype = _bounds(space, name)
    return tensor_spec.BoundedTensorSpec(space.shape, dtype, minimum, maximum, name)


def _bounds(space: Any, name: str) -> tuple[Any, Any, tf.DType]:
    gathering.check_space(space, name)
    if isinstance(space, spaces.Discrete):
        return space.start, np.asarray(space.start) + np.asarray(space.n) - 1, tf.int64
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(space.start)
        return start, start + space.nvec - 1, tf.int64  # TF-Agents needs both in one shape
    if isinstance(space, spaces.MultiBinary):
        return 0, 1, tf.int64
    dtype = _DTYPES.get(np.dtype(space.dtype), np.dtype(space.dtype))
    high = np.minimum(space.high, np.iinfo(np.int64).max) if space.dtype == np.uint64 else space.high
    with np.errstate(over='ignore'):  # a bound beyond float32 becomes infinity: no bound
        low, high = space.low.astype(dtype), high.astype(dtype)
    if dtype.kind == 'i' and dtype != space.dtype and name.startswith('observation'):
        # The dtype's own limits are no bounds, so they stay none.
        wide, own = np.iinfo(dtype), np.iinfo(np.uint8 if space.dtype == bool else space.dtype)
        low = np.where((space.low == own.min) & (own.min < 0), wide.min, low)
        high = np.where(space.high == own.max, wide.max, high)
    if low.size and (low == low.flat[0]).all() and (high == high.flat[0]).all():
        low, high = low.flat[0], high.flat[0]  # easier to read than 28224 equal numbers
    return low, high, tf.as_dtype(dtype)


def to_space(spec: types.NestedTensorSpec) -> spaces.Space:
    """Returns a space whose elements have the spec; bounded integers are categories."""
    if isinstance(spec, Mapping):
        return spaces.Dict({key: to_space(part) for key, part in spec.items()})
    if isinstance(spec, list | tuple):
        return spaces.Tuple([to_space(part) for part in spec])
    shape = tuple(spec.shape)
    dtype: Any = np.dtype(spec.dtype.as_numpy_dtype)
    bounds = integer_bounds(spec)
    if dtype == np.int64 and bounds is not None:
        with np.errstate(over='ignore'):
            sizes = bounds[1] - bounds[0] + 1
        if (sizes > 0).all():
            start = bounds[0]
            return spaces.MultiDiscrete(sizes, start=start) if shape else spaces.Discrete(int(sizes), start=int(start))
    bounded = tensor_spec.BoundedTensorSpec.from_spec(spec)
    if dtype.kind == 'b':
        return spaces.Box(0, 1, shape, dtype)
    low, high = (np.broadcast_to(bound, shape).astype(dtype) for bound in (bounded.minimum, bounded.maximum))
    return spaces.Box(low, high, shape, dtype)


def reader(space: spaces.Space) -> Convert:
    """Returns a function from a batch of elements, as of gymnasium's vector environments,
    to arrays of the spec.

    The arrays are copies, since gymnasium reuses the memory for the next step.
    """
    if isinstance(space, spaces.Dict):
        readers = {key: reader(part) for key, part in space.items()}
        return lambda batch: {key: read(batch[key]) for key, read in readers.items()}
    if isinstance(space, spaces.Tuple):
        parts = tuple(reader(part) for part in space)
        return lambda batch: tuple(read(value) for read, value in zip(parts, batch, strict=True))
    dtype = _bounds(space, 'observation')[2].as_numpy_dtype
    if space.dtype == np.uint64:
        return _read_uint64
    return lambda batch: np.array(batch, dtype, order='C')


def _read_uint64(batch: Any) -> np.ndarray:
    if np.any(batch > np.uint64(np.iinfo(np.int64).max)):
        raise UserValueError(f'got {np.max(batch)} of an environment; need at most 2^63 - 1 in uint64; return floats')
    return np.array(batch, np.int64, order='C')


def writer(space: spaces.Space, num_environments: int, name: str = 'action') -> Convert:
    """Returns a function from arrays [B, ...] of the spec to a batch of elements for gymnasium's vector environments.

    It clips floats to the space's bounds, which draws from a normal distribution exceed. It raises
    ValueError for another shape or dtype, for floats that are not finite, and for integers out of
    bounds. It does not change its argument.
    """
    if isinstance(space, spaces.Dict):
        writers = {key: writer(part, num_environments, f'{name}/{key}') for key, part in space.items()}
        return lambda batch: {key: write(batch[key]) for key, write in writers.items()}
    if isinstance(space, spaces.Tuple):
        parts = tuple(writer(part, num_environments, f'{name}/{i}') for i, part in enumerate(space))
        return lambda batch: tuple(write(value) for write, value in zip(parts, batch, strict=True))
    minimum, maximum, dtype = _bounds(space, name)
    fitted = _clipped(space, name) if dtype.is_floating else _checked(space, minimum, maximum, name)
    shape, numpy_dtype = (num_environments, *(space.shape or ())), np.dtype(dtype.as_numpy_dtype)

    def write(batch: Any) -> np.ndarray:
        batch = np.asarray(batch)
        if batch.shape != shape or batch.dtype != numpy_dtype:
            raise UserValueError(f'got an {name} with shape {batch.shape}, {batch.dtype}; need {shape}, {numpy_dtype}')
        return fitted(batch)

    return write


def _clipped(space: Any, name: str) -> Convert:
    """Returns a function that clips floats [B, ...] to the bounds of a Box."""

    def clip(batch: np.ndarray) -> np.ndarray:
        if not (finite := np.isfinite(batch)).all():
            raise UserValueError(
                f'got {batch[~finite][0]} in {name}; need finite numbers; check that weights and observations are'
            )
        # In the space's own dtype: the bounds in float32 may lie a rounding error outside those in float64.
        return np.minimum(np.maximum(batch.astype(space.dtype, copy=False), space.low), space.high)

    return clip


def _checked(space: Any, minimum: Any, maximum: Any, name: str) -> Convert:
    """Returns a function that checks integers [B, ...]."""

    def check(batch: np.ndarray) -> np.ndarray:
        if not (within := (batch >= minimum) & (batch <= maximum)).all():
            raise UserValueError(f'got {batch[~within][0]} in {name}; need values from {minimum} to {maximum}')
        return batch.astype(space.dtype, copy=False)

    return check


def category_check(spec: types.NestedTensorSpec) -> Callable[[Any], None] | None:
    """Returns a function that checks the categories of observations [B, ...];
    None if there are none.

    It raises ValueError for a category out of its bounds.
    """
    leaves = tf.nest.flatten(spec)
    bounds = [None if leaf.dtype == tf.uint8 else integer_bounds(leaf) for leaf in leaves]
    checked = [(i, leaf, *bound) for i, (leaf, bound) in enumerate(zip(leaves, bounds, strict=True)) if bound]
    if not checked:
        return None

    def check(observation: Any) -> None:
        values = tf.nest.flatten(observation)
        for i, leaf, low, high in checked:
            within = (values[i] >= low) & (values[i] <= high)
            if not within.all():
                raise UserValueError(
                    f'got {values[i][~within][0]} in {leaf.name} of the environment; need values from '
                    f'{leaf.minimum} to {leaf.maximum}, as its space has; correct the environment'
                )

    return check
