"""Rewards outside of the range that a column map states: counted and named where they are read."""

import math
from collections.abc import Sequence

import numpy as np

from tflearn.extensions.product.block_checks import ROWS_OF_A_FILE
from tflearn.extensions.product.column_map import ColumnMap
from tflearn.extensions.product.log_report import Report


class RewardRanges:
    """Counts rewards, or their sums over sessions, and parts of them that are outside of what is stated."""

    def __init__(self, mapped: ColumnMap, labels: Sequence[str]):
        """Takes what a column map states, and the names of the files."""
        self._labels, self._whole = labels, bool(mapped.stated.get('whole'))
        ends = {'reward': (mapped.stated.get('low'), mapped.stated.get('high'))}
        ends |= {of.name: (of.low, of.high) for of in mapped.parts.values()}
        self._ranges = {
            name: (-math.inf if low is None else low, math.inf if high is None else high)
            for name, (low, high) in ends.items()
            if (low, high) != (None, None)
        }
        self._found: dict[str, tuple[int, str]] = {}  # how many, and the first one

    def checked(self, rows: np.ndarray) -> np.ndarray:
        """Returns the rows, which are of whole episodes."""
        for name, (low, high) in self._ranges.items():
            values, first = rows[name], np.arange(len(rows))
            if name == 'reward' and self._whole:
                _, first, of = np.unique(rows['key'], return_index=True, return_inverse=True)
                values = np.bincount(of, values, len(first))
            # Rewards are stored as float32: those that are an end of the range, such as -0.2, are within it.
            outside = np.flatnonzero((values < min(low, np.float32(low))) | (values > max(high, np.float32(high))))
            if len(outside):
                file, row = divmod(int(rows['row'][first[outside[0]]]), ROWS_OF_A_FILE)
                count, text = self._found.get(name, (0, f'{values[outside[0]]:g} in {self._labels[file]}, row {row}'))
                self._found[name] = count + len(outside), text
        return rows

    def report(self, report: Report) -> None:
        """Reports what was found, after all rows were checked."""
        for name, (count, first) in self._found.items():
            low, high = self._ranges[name]
            key = ('sums of rewards' if self._whole else 'rewards') if name == 'reward' else f'values of {name}'
            report.counts[f'{key} outside of the stated range'] = count
            report.warnings.append(
                f'{count} {key} are outside of the stated range, {low:g} to {high:g}, such as {first}: correct them '
                'or the range in the column map; the gate clips them, and if some are worse than the range no '
                'candidate passes without --clip_rewards'
            )
