"""TableHistory: what a replay server's tables were like when it last answered; for the line of a job's end."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

from tflearn.replay.storage import ReplayStatistics, Storage

_UNLIMITED = 1e300  # Reverb's greatest float stands for no limit
_TITLES = {'reports': 'report of a collector', 'heartbeats': 'heartbeat of the learner'}


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
        self._info: dict[str, Any] = {}
        self._seen: dict[str, _Seen] = {}

    def update(self, info: dict[str, Any]) -> None:
        """Takes the server's `reverb.TableInfo` by table name."""
        now = self._clock()
        for name, table in info.items():
            limiter = table.rate_limiter_info
            inserts, samples = limiter.insert_stats.completed, limiter.sample_stats.completed
            seen = self._seen.setdefault(name, _Seen(inserts, samples))
            if inserts != seen.inserts:  # less after a restart
                seen.inserts, seen.inserted_at = inserts, now
            if samples != seen.samples:
                seen.samples, seen.sampled_at = samples, now
        self._info = info

    def __str__(self) -> str:
        if not self._info:
            return 'it has not answered before'
        lines = [self._table(name) for name in self._storage.table_names if name in self._info]
        lines += [
            f'last {title} {self._age(self._seen[name].inserted_at)}'
            for name, title in _TITLES.items()
            if name in self._seen
        ]
        return '; '.join(lines)

    def _table(self, name: str) -> str:
        table, seen = self._info[name], self._seen[name]
        limiter = table.rate_limiter_info
        statistics = ReplayStatistics.of(table, self._storage)
        position = limiter.samples_per_insert * seen.inserts - seen.samples
        limits = [limiter.min_diff, limiter.max_diff]
        texts = ['-' if abs(limit) > _UNLIMITED or math.isinf(limit) else f'{limit:g}' for limit in limits]
        return (
            f'table {name}: {statistics}, limiter at {position:g} within [{", ".join(texts)}], last insert '
            f'{self._age(seen.inserted_at)}, last sample {self._age(seen.sampled_at)}'
        )

    def _age(self, at: float | None) -> str:
        return 'not seen' if at is None else f'{self._clock() - at:.0f} s ago'
