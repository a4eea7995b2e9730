"""TableHistory: what a replay server's tables were like when it last answered; for the line of a job's end."""

import dataclasses
import math
import time
from collections.abc import Callable

from tflearn.core.table_counts import TableCounts
from tflearn.replay.storage import ReplayStatistics, Storage

_UNLIMITED = 1e300  # Reverb's greatest float stands for no limit


@dataclasses.dataclass
class _Seen:
    """A table's counts, and when they last grew."""

    inserts: int
    samples: int
    inserted_at: float | None = None
    sampled_at: float | None = None


class TableHistory:
    """The newest state of a server's tables, and when each of them was last written and read."""

    def __init__(self, storage: Storage, clock: Callable[[], float] = time.monotonic):
        self._storage, self._clock = storage, clock
        self._tables: dict[str, TableCounts] = {}
        self._seen: dict[str, _Seen] = {}

    def update(self, tables: dict[str, TableCounts]) -> None:
        """Takes the counts of the server's tables, by name."""
        now = self._clock()
        for name, table in tables.items():
            seen = self._seen.setdefault(name, _Seen(table.inserts, table.samples))
            if table.inserts != seen.inserts:  # less after a restart
                seen.inserts, seen.inserted_at = table.inserts, now
            if table.samples != seen.samples:
                seen.samples, seen.sampled_at = table.samples, now
        self._tables = tables

    def __str__(self) -> str:
        if not self._tables:
            return 'it has not answered before'
        return '; '.join(self._table(name) for name in self._storage.table_names if name in self._tables)

    def _table(self, name: str) -> str:
        table, seen = self._tables[name], self._seen[name]
        statistics = ReplayStatistics.of(table, self._storage)
        position = table.samples_per_insert * seen.inserts - seen.samples
        limits = [table.min_diff, table.max_diff]
        texts = ['-' if abs(limit) > _UNLIMITED or math.isinf(limit) else f'{limit:g}' for limit in limits]
        return (
            f'table {name}: {statistics}, limiter at {position:g} within [{", ".join(texts)}], last insert '
            f'{self._age(seen.inserted_at)}, last sample {self._age(seen.sampled_at)}'
        )

    def _age(self, at: float | None) -> str:
        return 'not seen' if at is None else f'{self._clock() - at:.0f} s ago'
