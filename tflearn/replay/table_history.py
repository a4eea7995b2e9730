"""TableHistory: the last known state of a replay server's tables, for the message with which a job ends."""

import math
import time
from collections.abc import Callable

from tflearn.core.table_counts import TableCounts
from tflearn.replay.storage import ReplayStatistics, Storage

_UNLIMITED = 1e300  # Reverb's greatest float stands for no limit


class TableHistory:
    """The newest state of a server's tables, and when each of them was last written and read."""

    def __init__(self, storage: Storage, clock: Callable[[], float] = time.monotonic):
        self._storage, self._clock = storage, clock
        self._seen: dict[str, tuple[TableCounts, float | None, float | None]] = {}  # and when it was written, and read

    def update(self, tables: dict[str, TableCounts]) -> None:
        """Takes the counts of the server's tables, by name."""
        now, before = self._clock(), self._seen
        self._seen = {}
        for name, table in tables.items():
            known, written_at, read_at = before.get(name, (table, None, None))
            # There are fewer after a restart.
            written_at = written_at if table.inserts == known.inserts else now
            self._seen[name] = table, written_at, read_at if table.samples == known.samples else now

    def __str__(self) -> str:
        if not self._seen:
            return 'it has not answered before'
        return '; '.join(self._table(name) for name in self._storage.table_names if name in self._seen)

    def _table(self, name: str) -> str:
        table, written_at, read_at = self._seen[name]
        statistics = ReplayStatistics.of(table, self._storage)
        position = table.samples_per_insert * table.inserts - table.samples
        limits = [table.min_diff, table.max_diff]
        texts = ['-' if abs(limit) > _UNLIMITED or math.isinf(limit) else f'{limit:g}' for limit in limits]
        return (
            f'table {name}: {statistics}, limiter at {position:g} within [{", ".join(texts)}], last insert '
            f'{self._age(written_at)}, last sample {self._age(read_at)}'
        )

    def _age(self, at: float | None) -> str:
        return 'not seen' if at is None else f'{self._clock() - at:.0f} s ago'
