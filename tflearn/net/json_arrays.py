"""Arrays in JSON: nested lists of numbers, of true and false, or of strings.

numpy's own conversion is not for what unknown clients send: of strings it makes an array in which
each takes the room of the longest, so that a few kilobytes of JSON become gigabytes.
"""

import itertools
from typing import Any

import numpy as np

from tflearn.core.errors import UserValueError

_MAX_RANK = 32


def flattened(name: str, value: Any) -> tuple[list[Any], list[int], set[type]]:
    """Returns the values of a nested list in their order, its shape, and the types of the values.

    Args:
      name: what it is, for the error.

    Raises:
      ValueError: if it is no tensor.
    """
    level, shape = [value], list[int]()
    while level and isinstance(level[0], list):
        size = len(level[0])
        if len(shape) == _MAX_RANK or any(type(each) is not list or len(each) != size for each in level):
            raise UserValueError(f'got {name[:80]} with lists of several sizes; need a tensor')
        shape.append(size)
        level = list(itertools.chain.from_iterable(level))
    return level, shape, set(map(type, level))


def numbers(name: str, value: Any) -> np.ndarray:
    """Returns the array of a number, or of nested lists of numbers or of true and false:
    of 64 bits, or bool.

    Args:
      name: what it is, for the error.

    Raises:
      ValueError: if it is something else, or an integer has more than 64 bits.
    """
    values, shape, kinds = flattened(name, value)
    return to_array(name, values, shape, kinds - {bool} or kinds)  # true is 1 beside numbers


def to_array(name: str, values: list[Any], shape: list[int], kinds: set[type]) -> np.ndarray:
    """Returns the array of what `flattened` returned. Raises ValueError as `numbers`."""
    if kinds != {bool} and not kinds <= {int, float}:
        found = ', '.join(sorted(kind.__name__ for kind in kinds))
        raise UserValueError(f'got {name[:80]} with {found}; need numbers, strings, or true and false')
    dtypes = (np.bool_,) if kinds == {bool} else (np.int64, np.uint64) if kinds == {int} else (np.float64,)
    for dtype in dtypes:
        try:
            return np.array(values, dtype).reshape(shape)
        except OverflowError:
            continue
    raise UserValueError(f'got {name[:80]} with a number that is too large; need one of 64 bits')
