"""The infos of a batch of environments, as one array for each key.
Importable without TensorFlow, for workers.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

EXECUTED_ACTION = 'executed_action'
_NUMBERS = ('b', 'i', 'u', 'f')
_PLAIN = (bool, int, float)
_MAX_KEYS = 200


def numeric_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of one environment's info that are numbers or arrays of numbers.

    Those of a dict within it are named by the path of their keys, such as 'robot/speed'.
    """
    numbers: dict[str, Any] = {}
    for key, value in info.items():
        if isinstance(value, _PLAIN) or getattr(getattr(value, 'dtype', None), 'kind', None) in _NUMBERS:
            numbers[key] = value
        elif isinstance(value, Mapping):
            numbers |= {f'{key}/{name}': number for name, number in numeric_info(value).items()}
    return numbers


def mask_name(key: str) -> str:
    """Returns the name of the mask of a vector environment's info: '_speed', 'robot/_speed'."""
    head, slash, name = key.rpartition('/')
    return f'{head}{slash}_{name}'


class InfoColumns:
    """Gathers the infos of a batch at each step. A key that has appeared stays, with its shape.

    Later keys than the first `_MAX_KEYS` are left out: of keys that never repeat, such as an
    order's number, each would cost time in all later steps, and make a metric of its own.
    """

    _is_full = False  # whether a key was left out

    def __init__(self, num_environments: int):
        self._num_environments = num_environments
        self._missing: dict[str, np.ndarray] = {}  # zeros or NaN [B, ...] for each key

    def gather(self, infos: Sequence[Mapping[str, Any]], action: Any = None) -> dict[str, np.ndarray]:
        """Returns the numbers in the infos of the environments.

        Args:
          action: the array [B, ...] of actions, the executed action of environments that report no
            other.

        Returns:
          Arrays [B, ...]: float32, or integers or booleans. Missing values are NaN or 0.
        """
        if not any(infos) and not self._missing:
            return {}
        rows = [numeric_info(info) for info in infos]
        batch: dict[str, np.ndarray] = {}
        masks: dict[str, np.ndarray | None] = {}
        for key in dict.fromkeys(itertools.chain.from_iterable(rows)):
            try:
                batch[key], masks[key] = np.array([row[key] for row in rows]), None
            except (KeyError, ValueError):  # not in each row, or of several shapes
                batch[key], masks[key] = _partial_column([row.get(key) for row in rows])
        return self._complete(batch, masks, action)

    def take(self, info: Mapping[str, Any], action: Any = None) -> dict[str, np.ndarray]:
        """Returns the same for the info of a gymnasium vector environment:
        arrays [B, ...], with masks '_key'.
        """
        if not info and not self._missing:
            return {}
        numbers = numeric_info(info)
        batch = {
            key: np.asarray(value)
            for key, value in numbers.items()
            if not key.rpartition('/')[2].startswith('_') and np.shape(value)[:1] == (self._num_environments,)
        }
        return self._complete(batch, {key: numbers.get(mask_name(key)) for key in batch}, action)

    def _complete(
        self, batch: dict[str, np.ndarray], masks: Mapping[str, np.ndarray | None], action: Any
    ) -> dict[str, Any]:
        """Returns `batch` with all keys that have appeared,
        and fills in values that no mask (None has all) has.
        """
        for key, values in batch.items():
            self._add_key(key, values)
        complete = {}
        for key, nothing in self._missing.items():
            has_values, mask = key in batch and batch[key].shape == nothing.shape, masks.get(key)
            if has_values and mask is None:
                complete[key] = batch[key].astype(nothing.dtype)
                continue
            given = key == EXECUTED_ACTION and np.shape(action) == nothing.shape
            complete[key] = column = np.array(action if given else nothing, nothing.dtype)
            if has_values:
                column[mask] = batch[key][mask]
        return complete

    def _add_key(self, key: str, values: np.ndarray) -> None:
        known = self._missing.get(key)
        if known is None and len(self._missing) >= _MAX_KEYS and key != EXECUTED_ACTION:
            if not self._is_full:
                logging.warning(
                    'got more than %d different keys in the info of environments; need keys that repeat; %r and all '
                    'later ones are left out',
                    *(_MAX_KEYS, key),
                )
            self._is_full = True
            return
        dtype = values.dtype if known is None else np.promote_types(values.dtype, known.dtype)
        dtype = np.dtype(np.float32) if dtype.kind == 'f' else dtype
        if known is None or known.dtype != dtype:
            shape = values.shape if known is None else known.shape
            self._missing[key] = np.full(shape, np.nan if dtype.kind == 'f' else 0, dtype)


def _partial_column(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns values as an array [B, ...], and which are in it, bool [B]:
    those of the shape of the first not None.
    """
    shape = next(np.shape(value) for value in values if value is not None)
    mask = np.array([value is not None and np.shape(value) == shape for value in values])
    given = np.array([value for value, is_given in zip(values, mask, strict=True) if is_given])
    column = np.zeros((len(values), *shape), given.dtype)
    column[mask] = given
    return column, mask
