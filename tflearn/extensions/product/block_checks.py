"""The rows of one block of a log's table, and what is wrong with their values. No TensorFlow here."""

from typing import Any

import numpy as np

from tflearn.extensions.product import table_values, tables
from tflearn.extensions.product.column_map import Feature
from tflearn.extensions.product.log_report import Report
from tflearn.extensions.product.reward_parts import LARGEST

ROWS_OF_A_FILE = 1 << 40  # 'row' is that times the number of the file, and the row in it


class BlockChecks:
    """The rows of one block, and what is wrong with them."""

    def __init__(self, block: tables.Block, report: Report):
        self.block, self._report = block, report

    def mark(self, rows: np.ndarray, column: str, need: str) -> None:
        """Marks rows as bad: by their indices, or bool [N]. The first reason of a row counts."""
        for i in (np.flatnonzero(rows) if rows.dtype == bool else rows).tolist():
            if i not in self.block.bad:
                self.block.bad[i] = f'{column} = {tables.shown(self.block.columns[column], i)}', need

    def report_bad(self, label: str, of: str = 'rows') -> None:
        """Reports all bad rows of a file with this name, which is of 'rows' or 'outcomes'."""
        bad = {int(self.block.rows[i]): reason for i, reason in self.block.bad.items()}
        all_of = sorted({**self.block.lost, **bad}.items())
        self._report.bad([(f'{label}, row {row}', *reason) for row, reason in all_of], of)

    def numbers(self, feature: Feature) -> list[np.ndarray]:
        """Returns the numbers of each column of a part, [N]."""
        rows, read = np.arange(len(self.block.rows)), table_values.numbers
        return [self.checked(feature, column, read(self.block.columns[column]), rows) for column in feature.columns]

    def times(self, column: str, latest: float) -> np.ndarray:
        """Returns times, [N], and NaN for those that are none, or later than the latest; marks these."""
        values, missing, wrong = table_values.times(self.block.columns[column])
        self.mark(missing | wrong, column, 'a time, as a number or by ISO 8601')
        late = values > latest
        self.mark(late, column, 'seconds since 1970 (no milliseconds), not after its file was written')
        return np.where(missing | wrong | late, np.nan, values)

    def flags(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns which rows are true, or 1, and which have nothing; marks those that are neither, nor false or 0."""
        values, missing, wrong = table_values.numbers(self.block.columns[column])
        self.mark(wrong | ~(missing | (values == 0) | (values == 1)), column, 'true or false')
        return values == 1, missing

    def checked(self, feature: Feature, column: str, found: Any, rows: np.ndarray) -> np.ndarray:
        """Returns numbers; marks the rows of those that are none."""
        values, missing, wrong = found
        if feature.kind != 'integer' and (np.abs(values) <= LARGEST).all():  # which NaN is not
            return values
        need, large = 'a finite number', np.isfinite(values) & (np.abs(values) > LARGEST)
        self.mark(rows[large], column, f'a number of float32, at most {LARGEST:.2g}')
        wrong = wrong | large
        if feature.kind == 'integer':
            low, high = feature.bounds
            need, known = f'an integer from {low:g} to {high:g}', ~missing & ~wrong
            wrong = wrong | (known & ~((values >= low) & (values <= high) & (values == np.floor(values))))
            wrong |= np.abs(values) > table_values.EXACT
        self.mark(rows[wrong], column, need)
        if feature.name == 'propensity':  # whose stand-in would be invented
            self.mark(rows[missing], column, 'the probability; leave rows without one out')
        elif feature.missing is None:
            self.mark(rows[missing], column, f'{need}, or `missing` in the column map')
        elif self._report.found('missing', feature.name, int(np.count_nonzero(missing))):
            self.mark(rows[missing], column, 'a value that is not missing, by --refuse')
        least = feature.bounds[0] if feature.kind == 'integer' else 0.0
        return np.where(missing | wrong, least if feature.missing is None else feature.missing, values)
