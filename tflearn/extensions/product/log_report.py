"""What an import found in a log: counts by name, bad rows, and what is to be doubted."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from absl import logging

from tflearn.core.errors import UserValueError
from tflearn.data.action_table import ActionTable

REFUSALS = ('missing', 'unknown', 'duplicate', 'disorder')
_MAX_NAMED = 5  # bad rows of each kind that are logged
_NAMES = {'rows': 'decisions'}  # beside outcomes


@dataclasses.dataclass
class Report:
    """What was found in a log.

    Attributes:
      refused: which of `REFUSALS` make a row a bad one.
      max_bad_rows: bad rows that are left out; one more is an error.
      counts: of rows by what was done with them.
      bad_rows: how many rows of 'rows' and 'outcomes' are bad, by what they need.
      sums: of numbers that add up, by what they are the sum of.
      warnings: what is to be doubted.
      actions: the rows of each action, with their rewards.
    """

    refused: Sequence[str] = ()
    max_bad_rows: int = 0
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    bad_rows: dict[str, collections.Counter[str]] = dataclasses.field(default_factory=dict)
    sums: dict[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)
    actions: ActionTable = dataclasses.field(default_factory=ActionTable)

    def bad(self, rows: Sequence[tuple[str, str, str]], of: str = 'rows') -> None:
        """Counts bad rows, each with its place, what was got and what is needed; raises ValueError for too many."""
        room, by_need = self.max_bad_rows - self.counts['bad rows'], self.bad_rows.setdefault(of, collections.Counter())
        for place, got, need in rows:
            column, separator, _ = got.partition(' = ')
            needed = need + (f' in {column}' if separator else '')
            kind = f'bad rows that need {needed}'
            by_need[needed] += 1
            self.counts['bad rows'] += 1
            self.counts[kind] += 1
            if self.counts[kind] <= _MAX_NAMED and len(rows) <= room:
                logging.warning('left out a row: got %s in %s; need %s', got, place, need)
        if len(rows) > room:
            place, got, need = rows[room]
            raise UserValueError(
                f'got {got} in {place}; need {need}; correct it, or allow more than --max_bad_rows={self.max_bad_rows} '
                f'({self.counts["bad rows"]} are bad up to here; a large one counts all)'
            )

    def found(self, kind: str, name: str, count: int) -> bool:
        """Counts what `kind` of `REFUSALS` was found in a part; returns whether it is refused."""
        if count:
            self.counts[f'{kind}: {name}'] += count
        return kind in self.refused

    def __str__(self) -> str:
        counts = {**{name: sum(self.sums[name].values()) for name in self.sums}, **self.counts}
        lines = [f'{name}: {count}{self._sum(name, count)}' for name, count in sorted(counts.items())]
        return '\n'.join([*lines, *(f'warning: {each}' for each in self.warnings)])

    def _sum(self, name: str, count: int) -> str:
        """Returns what a count is the sum of; '' if that is not known, or one kind."""
        parts = self.sums.get(name, {})
        if by_need := self.bad_rows.get(name):
            parts = {'good': count - by_need.total()}
            parts |= {f'that need {need}': number for need, number in sorted(by_need.items())}
        if name == 'bad rows' and 'outcomes' in self.bad_rows:
            parts = {f'of {_NAMES.get(of, of)}': by_need.total() for of, by_need in self.bad_rows.items()}
        found = [f'{number} {part}' for part, number in parts.items() if number or part == 'good']
        return f' = {" + ".join(found)}' if found else ''
