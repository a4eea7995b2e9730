"""What environments return: checked where it enters, and gathered to batches.
One rule for all kinds of vectorization.

A value is converted where no number changes but for a float's precision: lists, numbers, other
floats; integers and booleans for floats, and for integers that can hold them. Anything else is
refused in one line. Importable without TensorFlow, as worker processes need it.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from tflearn.core.errors import UserTypeError, UserValueError

_DTYPE, _SHAPE = operator.attrgetter('dtype'), operator.attrgetter('shape')
_FLOAT32 = np.dtype(np.float32)
_REFUSED = re.compile(r"(\S*reset\(\)) got an unexpected keyword argument '(seed|options)'")
_STEP = '(observation, reward, terminated, truncated, info)'

Gather = Callable[[Sequence[Any]], None]


def check_space(space: spaces.Space, name: str) -> None:
    """Checks that a space, and each part of it, is of a kind that becomes tensors.

    Raises:
      ValueError: if one is not; it begins with the part's path `name/key`.
    """
    if isinstance(space, spaces.Dict):
        if wrong := [key for key in space if not isinstance(key, str) or not key]:
            raise UserValueError(
                f'got the key {wrong[0]!r} in the {name} space; need names: strings that are not empty; rename it in '
                'the environment'
            )
        for key, part in space.items():
            check_space(part, f'{name}/{key}')
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space):
            check_space(part, f'{name}/{i}')
    elif isinstance(space, spaces.Box) and 0 in space.shape:
        raise UserValueError(f'got the {name} space {space} without numbers; need at least one; leave the part out')
    elif not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary) and not (
        isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in 'iufb'
    ):
        raise _unsupported(space, name)


def _unsupported(space: Any, name: str) -> UserValueError:
    if type(space).__module__.partition('.')[0] == 'gym':
        need = "of the package gym; need gymnasium's; import gymnasium in place of gym"
        return UserValueError(f'got the {name} space {space} {need}')
    return UserValueError(
        f'got the {name} space {space}; need a Box of numbers, Discrete, MultiDiscrete or MultiBinary, or a Dict or '
        'Tuple of these; wrap the environment so that it has one'
    )


def gatherer(space: spaces.Space, batch: Any, origins: Sequence[str], name: str = 'observation') -> Gather:
    """Returns a function that writes elements of `space`, one of each environment, to `batch`,
    their batched form.

    It raises a UserError for an element that the space does not have.

    Args:
      origins: what errors call the environments.
      name: the part's path.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys = list(space.keys()) if isinstance(space, spaces.Dict) else list(range(len(space)))
        parts = [(operator.itemgetter(key), gatherer(space[key], batch[key], origins, f'{name}/{key}')) for key in keys]
        sizes = {len(keys)}

        def gather_parts(items: Sequence[Any]) -> None:
            try:
                columns = [list(map(get, items)) for get, _ in parts] if set(map(len, items)) == sizes else None
            except (LookupError, TypeError, ValueError):
                columns = None
            if columns is None:
                for item, origin in zip(items, origins, strict=True):
                    check_keys(space, item, name, origin)
                columns = [list(map(get, items)) for get, _ in parts]
            for (_, gather_part), column in zip(parts, columns, strict=True):
                gather_part(column)

        return gather_parts
    return _array_gatherer(space, batch, origins, name)


def _array_gatherer(space: spaces.Space, batch: np.ndarray, origins: Sequence[str], name: str) -> Gather:
    shape: Any = space.shape
    flat = batch.reshape(-1, *shape[1:]) if batch.size else batch
    shapes, dtype = {shape}, batch.dtype
    joins = len(shape) == 1 and shape != (0,)
    # Of these no value has to be looked at.
    safe = {one for one in map(np.dtype, '?bhilqBHILQefd') if np.can_cast(one, dtype, 'safe') or dtype.kind == 'f'}

    def gather(items: Sequence[Any]) -> None:
        try:
            if not shape:
                array = np.array(items)
                if array.shape == batch.shape and array.dtype in safe:
                    batch[:] = array
                    return
            elif set(map(_SHAPE, items)) == shapes:
                dtypes = set(map(_DTYPE, items))
                if joins and dtypes == {dtype}:
                    flat[:] = np.frombuffer(b''.join(items), dtype)
                    return
                if dtypes <= safe:
                    with np.errstate(over='ignore'):
                        np.concatenate(items, out=flat, casting='same_kind')
                    return
        except (TypeError, ValueError, AttributeError, BufferError):
            pass
        for i, (item, origin) in enumerate(zip(items, origins, strict=True)):
            batch[i] = fit(item, shape, dtype, name, origin)

    return gather


def fit(value: Any, shape: tuple[int, ...], dtype: Any, name: str, origin: str) -> np.ndarray:
    """Returns a value as an array of a shape and dtype.

    Args:
      value: an array, a number, or lists of numbers.
      name: what the value is, for errors.
      origin: whose it is.

    Raises:
      UserValueError: for another shape, or numbers that the dtype cannot hold.
    """
    dtype = np.dtype(dtype)
    if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
        return value
    need = f'need shape {shape}, {dtype}'
    try:
        # Tensors of other libraries may be on a device.
        array = np.asarray(value.cpu() if hasattr(value, 'cpu') else value)
    except (TypeError, ValueError) as error:
        raise UserValueError(f'got {name} of {origin} that is no array ({error}); {need}') from error
    got = f'got {name} of {origin} with shape {array.shape}, {array.dtype}'
    if array.dtype.kind not in 'biuf':
        raise UserValueError(f'{got} ({_short(value)}); {need}; return numbers')
    if array.shape != shape:
        raise UserValueError(f'{got}; {need}; return that shape, or declare {array.shape} in the space')
    if dtype.kind != 'f':
        _check_whole(array, dtype, got, need)
    with np.errstate(over='ignore'):
        return array.astype(dtype)


def _check_whole(array: np.ndarray, dtype: np.dtype[Any], got: str, need: str) -> None:
    """Raises UserValueError unless a dtype of integers or bool can hold an array."""
    low, high = (0, 1) if dtype.kind == 'b' else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    values = f'{got}, values from {array.min()} to {array.max()}' if array.size else got
    if array.dtype.kind == 'f':
        need = f'{need}; convert it to whole numbers, or declare a Box of floats'
        raise UserValueError(f'{values}; {need}')
    if array.size and not (low <= array.min() and array.max() <= high):
        need = f'{need}, so values from {low} to {high}; declare a larger dtype'
        raise UserValueError(f'{values}; {need}')


def batch_of(space: spaces.Space, batch: Any, num_environments: int, origin: str, name: str = 'observation') -> Any:
    """Returns a vector environment's batch in the space's shapes and dtypes [B, ...];
    raises as `gatherer` does.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        check_keys(space, batch, name, origin)
        keys = space.keys() if isinstance(space, spaces.Dict) else range(len(space))
        parts = {key: batch_of(space[key], batch[key], num_environments, origin, f'{name}/{key}') for key in keys}
        return parts if isinstance(space, spaces.Dict) else tuple(parts.values())
    shape: Any = space.shape
    return fit(batch, (num_environments, *shape), space.dtype, name, origin)


def check_keys(space: Any, value: Any, name: str, origin: str) -> None:
    """Raises UserTypeError unless `value` has the parts of a Dict or Tuple space."""
    if isinstance(space, spaces.Dict):
        if isinstance(value, Mapping) and value.keys() == space.keys():
            return
        got, need = _short_keys(value), f'a dict with the keys {sorted(map(str, space))}'
    else:
        if isinstance(value, Sequence | np.ndarray) and len(value) == len(space):
            return
        got, need = _short_keys(value), f'a tuple of {len(space)}'
    raise UserTypeError(f'got {name} of {origin} as {got}; need {need}; return what the space declares')


def step_result(result: Any, reward_shape: tuple[int, ...], origin: str) -> tuple[Any, Any, bool, bool, Any]:
    """Returns what a gymnasium environment's `step` returned: the reward as a number or an array,
    two booleans.

    Raises:
      UserValueError: for anything that gymnasium does not allow.
    """
    try:
        observation, reward, terminated, truncated, info = result
    except (TypeError, ValueError) as error:
        raise UserValueError(
            f'got {_short_keys(result)} from step() of {origin}; need {_STEP}; return terminated and truncated (an '
            "environment of gym's old interface can be converted with the package shimmy)"
        ) from error
    if reward_shape or not isinstance(reward, float):
        reward = _reward(reward, reward_shape, origin)
    if terminated is not True and terminated is not False:
        terminated = _flag(terminated, 'terminated', origin)
    if truncated is not True and truncated is not False:
        truncated = _flag(truncated, 'truncated', origin)
    if not isinstance(info, Mapping):
        raise UserTypeError(f'got info {_short(info)} from step() of {origin}; need a dict; return {{}} for none')
    return observation, reward, terminated, truncated, info


def reset(environment: Any, origin: str, **seed: int | None) -> tuple[Any, Any]:
    """Resets one environment; returns its (observation, info).

    Raises:
      UserError: if its `reset` does not take gymnasium's arguments, or returns anything else.
    """
    try:
        result = environment.reset(**seed)
    except TypeError as error:
        found = _REFUSED.search(str(error))
        if found is None:
            raise
        raise UserTypeError(
            f'got {found[1]} of {origin}, which takes no {found[2]}; need reset(*, seed=None, options=None), as '
            'gymnasium calls it; add what is missing'
        ) from error
    return reset_result(result, origin)


def reset_result(result: Any, origin: str) -> tuple[Any, Any]:
    """Returns (observation, info), as `reset` returned them;
    raises UserValueError for anything else.
    """
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise UserValueError(
            f'got {_short_keys(result)} from reset() of {origin}; need (observation, info); return the observation '
            'with a dict of infos, such as {}'
        )
    return result


def _reward(value: Any, shape: tuple[int, ...], origin: str) -> Any:
    if not shape and np.size(value) == 1 and np.ndim(value):
        value = np.reshape(value, ())
    fitted = fit(value, shape, _FLOAT32, 'the reward', origin)
    return fitted if shape else fitted.item()


def _flag(value: Any, name: str, origin: str) -> bool:
    array = np.asarray(value)
    if array.size == 1 and array.dtype.kind in 'biuf' and (number := array.item()) in (0, 1):
        return bool(number)
    raise UserTypeError(
        f'got {name}={_short(value)}, {type(value).__name__} of shape {array.shape}, from step() of {origin}; need one '
        'boolean; return True or False'
    )


def vector_step(result: Any, num_environments: int, origin: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Any]:
    """Returns what a vector environment's `step` returned:
    the rewards as floats [B], the ends as booleans [B].

    Raises:
      UserValueError: for anything that gymnasium does not allow.
    """
    if not isinstance(result, tuple | list) or len(result) != 5:
        raise UserValueError(f'got {_short_keys(result)} from step() of {origin}; need {_STEP}; return that')
    observation, reward, terminated, truncated, info = result
    shape = (num_environments,)
    if not (type(reward) is np.ndarray and reward.dtype.kind == 'f' and reward.shape == shape):
        reward = fit(reward, shape, _FLOAT32, 'the rewards', origin)
    if not isinstance(info, Mapping):
        raise UserTypeError(f'got info {_short(info)} from step() of {origin}; need a dict; return {{}} for none')
    ends = (fit(terminated, shape, bool, 'terminated', origin), fit(truncated, shape, bool, 'truncated', origin))
    return observation, reward, *ends, info


def float_leaves(space: spaces.Space, name: str = 'observation') -> list[tuple[str, Callable[[Any], np.ndarray]]]:
    """Returns the paths of the parts of floats, and how to read each from a batch."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys = list(space.keys()) if isinstance(space, spaces.Dict) else list(range(len(space)))
        return [
            (path, _part_reader(key, read)) for key in keys for path, read in float_leaves(space[key], f'{name}/{key}')
        ]
    return [(name, lambda batch: batch)] if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == 'f' else []


def _part_reader(key: Any, read: Callable[[Any], np.ndarray]) -> Callable[[Any], np.ndarray]:
    return lambda batch: read(batch[key])


def is_finite(array: np.ndarray) -> bool:
    """Returns whether all numbers of a contiguous array of floats are finite."""
    flat = array.reshape(-1)
    # One pass unless squares overflow.
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(array).all())


def not_finite(array: np.ndarray, name: str) -> dict[int, str]:
    """Returns for each environment whose numbers in `array` [B, ...] are not finite what was found."""
    bad = ~np.isfinite(array).reshape(len(array), -1)
    return {i: f'{array.reshape(len(array), -1)[i][bad[i]][0]} in {name}' for i in np.flatnonzero(bad.any(1)).tolist()}


def _short(value: Any) -> str:
    text = ' '.join(repr(value).split())
    return text if len(text) <= 40 else f'{text[:40]}...'


def _short_keys(value: Any) -> str:
    if isinstance(value, Mapping):
        return f'a dict with the keys {sorted(map(str, value))}'
    if isinstance(value, list | tuple):
        return f'a {type(value).__name__} of {len(value)}'
    return f'{type(value).__name__} {_short(value)}'
