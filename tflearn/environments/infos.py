"""The numbers in gymnasium's `info` as arrays of the batch.

This file must stay importable without TensorFlow: workers import it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

EXECUTED_ACTION = 'executed_action'
_NUMBERS = ('b', 'i', 'u', 'f')


def numeric(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of one environment's info that are numbers or arrays of numbers."""
    return {
        key: value
        for key, value in info.items()
        if isinstance(value, bool | int | float) or getattr(getattr(value, 'dtype', None), 'kind', None) in _NUMBERS
    }


class Columns:
    """Gathers the infos of a batch at each step. A key that has appeared stays, with its shape."""

    def __init__(self, num_environments: int):
        self._num_environments = num_environments
        self._missing: dict[str, np.ndarray] = {}  # zeros or NaN [B, ...] for each key

    def gather(self, infos: Sequence[Mapping[str, Any]], action: Any = None) -> dict[str, np.ndarray]:
        """Returns the numbers in the infos of the environments.

        Args:
          action: the array [B, ...] of actions, the executed action of environments that report no other.

        Returns:
          Arrays [B, ...]: float32, or integers or booleans. Missing values are NaN or 0.
        """
        if not any(infos) and not self._missing:
            return {}
        batch: dict[str, np.ndarray] = {}
        masks: dict[str, np.ndarray] = {}
        for i, info in enumerate(infos):
            for key, value in numeric(info).items():
                if key not in batch:
                    value = np.asarray(value)
                    batch[key] = np.zeros((self._num_environments, *value.shape), value.dtype)
                    masks[key] = np.zeros(self._num_environments, bool)
                if np.shape(value) == batch[key].shape[1:]:
                    if not np.can_cast(dtype := np.asarray(value).dtype, batch[key].dtype, 'same_kind'):
                        batch[key] = batch[key].astype(np.promote_types(dtype, batch[key].dtype))
                    batch[key][i] = value
                    masks[key][i] = True
        return self._complete(batch, masks, action)

    def take(self, info: Mapping[str, Any], action: Any = None) -> dict[str, np.ndarray]:
        """Returns the same for the info of a gymnasium vector environment: arrays [B, ...], with masks '_key'."""
        if not info and not self._missing:
            return {}
        batch = {
            key: np.asarray(value)
            for key, value in numeric(info).items()
            if not key.startswith('_') and np.shape(value)[:1] == (self._num_environments,)
        }
        everywhere = np.ones(self._num_environments, bool)
        return self._complete(batch, {key: info.get(f'_{key}', everywhere) for key in batch}, action)

    def _complete(self, batch: dict[str, np.ndarray], masks: dict[str, np.ndarray], action: Any) -> dict[str, Any]:
        """Returns `batch` with all keys that have appeared, and fills in missing values."""
        for key, values in batch.items():
            self._add_key(key, values)
        complete = {}
        for key, nothing in self._missing.items():
            given = key == EXECUTED_ACTION and np.shape(action) == nothing.shape
            complete[key] = column = np.array(action if given else nothing, nothing.dtype)
            if key in batch and batch[key].shape == nothing.shape:
                column[masks[key]] = batch[key][masks[key]]
        return complete

    def _add_key(self, key: str, values: np.ndarray) -> None:
        known = self._missing.get(key)
        dtype = values.dtype if known is None else np.promote_types(values.dtype, known.dtype)
        dtype = np.dtype(np.float32) if dtype.kind == 'f' else dtype
        if known is None or known.dtype != dtype:
            shape = values.shape if known is None else known.shape
            self._missing[key] = np.full(shape, np.nan if dtype.kind == 'f' else 0, dtype)
