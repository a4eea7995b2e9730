"""Observations and actions of external simulators: described by dicts, sent as JSON.

A description is a dict with 'shape' for numbers, or with 'choices' for integers from 0 on; any other dict is a nest:

    {'shape': (4,)}                                          float32 numbers
    {'shape': (84, 84, 1), 'dtype': 'uint8', 'low': 0, 'high': 255}
    {'choices': 3}          {'choices': (3, 2)}              one integer; several
    {'position': {'shape': (2,)}, 'gear': {'choices': 5}}    a nest

In JSON a value is a number, or lists of numbers in its shape, or a string: the base64 of its little-endian bytes.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.typing import types

from tflearn.core.errors import UserValueError

_KEYS = ('shape', 'dtype', 'low', 'high')


def to_spec(description: Any, name: str) -> types.NestedTensorSpec:
    """Returns the spec that a description stands for: bounded tensor specs in its nest.

    Args:
      description: see above.
      name: 'observation' or 'action', the name of the leaf, or the prefix of the leaves' names `name/key`.

    Raises:
      ValueError: for anything else than such a description.
    """
    if not isinstance(description, Mapping) or not description:
        raise UserValueError(
            f"got {description!r} as description of {name}; need a dict such as {{'shape': (4,)}} or {{'choices': 2}}"
        )
    try:
        if 'choices' in description:
            return _integers(name, **description)
        if 'shape' in description:
            return _numbers(name, **description)
    except (TypeError, ValueError) as error:
        raise UserValueError(
            f"got {dict(description)!r} as description of {name} ({error}); need 'choices' with counts of at least "
            f'1, or {", ".join(_KEYS)}'
        ) from error
    return {key: to_spec(part, f'{name}/{key}') for key, part in description.items()}


def _integers(name: str, choices: Any) -> types.BoundedTensorSpec:
    counts = np.asarray(choices, np.int64)
    if counts.ndim > 1 or np.any(counts < 1):
        raise UserValueError(f'choices={choices!r}')
    return tensor_spec.BoundedTensorSpec(counts.shape, tf.int64, np.zeros_like(counts), counts - 1, name)


def _numbers(name: str, shape: Any, dtype: str = 'float32', low: Any = None, high: Any = None) -> Any:
    kind = np.dtype(dtype)
    if kind.kind not in 'iuf' or kind == np.float64:
        raise UserValueError(f'dtype={dtype!r}, not float32 or an integer')
    limits: Any = np.finfo(kind) if kind.kind == 'f' else np.iinfo(kind)
    bounds = [limits.min if low is None else low, limits.max if high is None else high]
    least, greatest = (np.asarray(bound, kind) for bound in bounds)
    if np.any(least > greatest):
        raise UserValueError(f'low={low!r} above high={high!r}')
    return tensor_spec.BoundedTensorSpec(tuple(shape), tf.as_dtype(kind), least, greatest, name)


def from_json(value: Any, spec: types.NestedTensorSpec, name: str) -> Any:
    """Returns the arrays of a JSON value, in the nest of `spec`.

    Raises:
      ValueError: if the value has another structure, shape or kind of numbers, or numbers that are not finite or out of
        their bounds; it names the part.
    """
    if isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or value.keys() != spec.keys():
            got = f'the keys {sorted(value)}' if isinstance(value, Mapping) else type(value).__name__
            raise UserValueError(f'got {name} with {got}; need an object with the keys {sorted(spec)}')
        return {key: from_json(value[key], spec[key], f'{name}.{key}') for key in spec}
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    array = _decoded(value, spec, dtype, name) if isinstance(value, str) else _listed(value, dtype, name)
    if array.shape != tuple(spec.shape):
        raise UserValueError(f'got {name} with shape {list(array.shape)}; need {list(spec.shape)}')
    if not np.isfinite(array).all():
        raise UserValueError(f'got {name} with numbers that are not finite; need finite ones')
    if np.any(array < spec.minimum) or np.any(array > spec.maximum):
        raise UserValueError(
            f'got {name} from {array.min()} to {array.max()}; need {spec.minimum.min()} to {spec.maximum.max()}'
        )
    return array


def _listed(value: Any, dtype: np.dtype, name: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UserValueError(f'got {name} as lists of different lengths; need lists of numbers of its shape') from error
    if array.dtype.kind not in ('biuf' if dtype.kind == 'f' else 'biu') and array.size:
        raise UserValueError(f'got {name} with {array.dtype.name} values; need {dtype.name}')
    with np.errstate(over='ignore'):
        return array.astype(dtype) if dtype.kind == 'f' else _checked(array, dtype, name)


def _checked(array: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    converted = array.astype(dtype)
    if not np.array_equal(converted, array):
        raise UserValueError(f'got {name} with numbers beyond {dtype.name}')
    return converted


def _decoded(value: str, spec: Any, dtype: np.dtype, name: str) -> np.ndarray:
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UserValueError(f'got {name} as a string that is no base64; need base64, or lists of numbers') from error
    size = int(np.prod(spec.shape)) * dtype.itemsize
    if len(data) != size:
        raise UserValueError(f'got {name} of {len(data)} bytes; need {size}')
    return np.frombuffer(data, dtype.newbyteorder('<')).reshape(spec.shape).astype(dtype)


def to_json(action: Any, spec: types.NestedTensorSpec) -> Any:
    """Returns the JSON value of one action: a nest of arrays of `spec`. Floats are clipped to their bounds."""
    if isinstance(spec, Mapping):
        return {key: to_json(action[key], spec[key]) for key in spec}
    clipped = np.clip(action, spec.minimum, spec.maximum) if spec.dtype.is_floating else action
    return np.asarray(clipped).tolist()


def describe(spec: types.NestedTensorSpec) -> Any:
    """Returns the JSON description of a spec, for clients; bounds that all float32 numbers are within are left out."""
    if isinstance(spec, Mapping):
        return {key: describe(part) for key, part in spec.items()}
    low, high = np.asarray(spec.minimum), np.asarray(spec.maximum)
    found = {'shape': list(spec.shape), 'dtype': spec.dtype.name}
    bounded = not spec.dtype.is_floating or bool((low > spec.dtype.min).any() or (high < spec.dtype.max).any())
    return found | {'low': low.tolist(), 'high': high.tolist()} if bounded else found
