"""ActionTable: how often each action of a data set was taken, what it earned,
and how probable it was.
"""

import collections
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_MOST_SHOWN, _MOST_NAMED = 20, 5
_FEW_ROWS = 30  # of fewer a mean says little


class ActionTable:
    """The rows of each action, which is an integer, with their rewards and probabilities."""

    def __init__(self, names: Mapping[int, str] = types.MappingProxyType({})):
        """Takes names of actions; others are shown as numbers."""
        self._names, self._sums = names, collections.defaultdict[int, np.ndarray](lambda: np.zeros(3))

    def add(self, actions: np.ndarray, rewards: np.ndarray, probabilities: Any = np.nan) -> None:
        """Adds rows [N]; probabilities are those of the actions when they were taken,
        NaN if they are not known.
        """
        if not len(actions):
            return
        least, greatest = int(actions.min()), int(actions.max())
        if greatest - least < len(actions):  # which are counted faster than sorted
            values, of = np.arange(least, greatest + 1), actions - least
        else:
            values, of = np.unique(actions, return_inverse=True)
        parts: tuple[Any, ...] = (1.0, rewards, probabilities)
        sums = [np.bincount(of, np.broadcast_to(each, len(of)), len(values)) for each in parts]
        for value, row in zip(values.tolist(), np.transpose(sums), strict=True):
            if row[0]:
                self._sums[value] += row

    def lines(self) -> Iterator[str]:
        """Yields the table, and a warning of actions with few rows."""
        by_rows = sorted(self._sums.items(), key=lambda item: (-item[1][0], item[0]))
        if by_rows:
            yield 'action: rows, mean reward, mean probability'
        for action, (rows, reward, probability) in by_rows[:_MOST_SHOWN]:
            known = '-' if np.isnan(probability) else f'{probability / rows:.4g}'
            yield f'  {self._names.get(action, action)}: {rows:.0f}, {reward / rows:.4g}, {known}'
        if more := by_rows[_MOST_SHOWN:]:
            yield f'  and {len(more)} more, of at most {more[0][1][0]:.0f} rows'
        if rare := [str(self._names.get(action, action)) for action, (rows, *_) in by_rows if rows < _FEW_ROWS]:
            yield (
                f'warning: {len(rare)} of {len(by_rows)} actions have fewer than {_FEW_ROWS} rows '
                f'({", ".join(rare[-_MOST_NAMED:])}): their mean rewards are chance; a policy may prefer them for it'
            )
