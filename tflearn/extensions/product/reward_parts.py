"""Rewards: what a column map states of them, and those that are the weighted sum of parts, such as clicks and latency.

A data set keeps each part, so that the gate can limit it: `policy_info.part_<name>`.
"""

import json
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tflearn.core.errors import UserOSError, UserValueError

_RANGE, _RETURNS, _LONGEST, _HEAVIEST = 'reward_range', 'return_range', 'longest', 'greatest_weight'
SLOTS = 'independent_slots'
STATED = _RANGE, _RETURNS, _LONGEST, _HEAVIEST, SLOTS
LARGEST = float(np.finfo(np.float32).max)
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    _LONGEST: (lambda value: isinstance(value, int) and value >= 1, 'the most steps of an episode'),
    _HEAVIEST: (lambda value: type(value) in (int, float) and 0 < value <= LARGEST, 'a number above 0'),
    SLOTS: (lambda value: isinstance(value, bool), 'true or false'),
}
PARTS, WEIGHTS = 'parts', 'weights'  # tables of a column map
PREFIX = 'part.'  # of the fields of rows
_KEPT = 'part_'


def stated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the map says of the rewards and of episodes."""
    found: dict[str, Any] = {}
    if _RANGE in given and _RETURNS in given:
        raise UserValueError(f'got {_RANGE} and {_RETURNS}; need one of them')
    for name in (_RANGE, _RETURNS):
        ends = given.get(name, [0, 1])
        are_two = isinstance(ends, list) and len(ends) == 2 and all(isinstance(each, int | float) for each in ends)
        if not are_two or not -LARGEST <= ends[0] < ends[1] <= LARGEST:
            raise UserValueError(f'got {name} = {ends!r:.100}; need two numbers, the least one first')
        if name in given:
            found |= {'low': float(ends[0]), 'high': float(ends[1])} | ({'whole': True} if name == _RETURNS else {})
    for name, (is_right, need) in _CHECKS.items():
        if name in given:
            if not is_right(given[name]):
                raise UserValueError(f'got {name} = {given[name]!r:.100}; need {need}')
            found[name] = given[name]
    return found


def read_weights(given: Any, folder: pathlib.Path, parts: Mapping[str, Any]) -> dict[str, float]:
    """Returns the weights by the names of the parts.

    Args:
      given: a table of them, or a file in JSON that has them.
      folder: that a file's path is relative to.
      parts: what there is.

    Raises:
      ValueError: for anything but finite numbers of parts that there are.
      OSError: if the file cannot be read.
    """
    if isinstance(given, str):
        try:
            given = json.loads((folder / given).read_text('utf-8'))
        except (OSError, ValueError, RecursionError) as error:
            raise UserOSError(
                f'got weights = {given!r:.100}, which cannot be read ({error}); need a file in JSON'
            ) from error
    is_table = isinstance(given, dict) and given and set(given) <= set(parts)
    if not is_table or not all(type(each) in (int, float) for each in given.values()):
        raise UserValueError(f'got weights = {given!r:.100}; need numbers by names of parts: {", ".join(parts)}')
    found = {name: float(each) for name, each in given.items()}
    if not all(map(math.isfinite, found.values())):
        raise UserValueError(f'got weights = {found}; need finite ones')
    return found


def weighted(rows: np.ndarray, weights: Mapping[str, float]) -> np.ndarray:
    """Returns the rewards of rows with the fields of parts, [N]."""
    parts = (weight * rows[PREFIX + name].astype(np.float64) for name, weight in weights.items())
    return np.sum(list(parts), axis=0)


def fields(rows: np.ndarray) -> list[str]:
    """Returns the names of the fields of the parts."""
    return [name for name in rows.dtype.names or () if name.startswith(PREFIX)]


def kept(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns what a data set keeps of rows."""
    return {column(name.removeprefix(PREFIX)): rows[name] for name in fields(rows)}


def ends(name: str) -> tuple[str, str]:
    """Returns what a data set calls the least and the greatest of a part, among what it states."""
    return f'{PREFIX}{name}.low', f'{PREFIX}{name}.high'


def column(name: str) -> str:
    """Returns the name by which a data set keeps a part."""
    return _KEPT + name
