"""ReplayServer: tables in this process, for many threads, saved to and restored from checkpoints."""

import contextlib
import dataclasses
import itertools
import math
import pathlib
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.replay import backend
from tflearn.replay.backend import ItemInfo, Lost, Sample
from tflearn.replay.checkpoints import damaged
from tflearn.replay.storage import TableSpec

_numbers = itertools.count(1)


@dataclasses.dataclass
class Item:
    """An item of a table: its chunk, and what decides when it is drawn and removed."""

    chunk: np.ndarray
    priority: float = 1.0
    times_sampled: int = 0


class Table:
    """A table with the limits of its spec, as Reverb's rate limiters have them.

    With ratio r, i inserts and s samples, r i - s stays within [min_diff, max_diff], once there are `min_size` items.
    """

    def __init__(self, spec: TableSpec):
        self.spec = spec
        is_queue, ratio = spec.order == 'queue', spec.samples_per_insert
        self._max_times_sampled = 1 if is_queue else spec.max_times_sampled
        self._ratio, self._min_diff, self._max_diff = 1.0, -math.inf, math.inf
        if is_queue:
            self._min_diff, self._max_diff = 0.0, float(spec.max_size)
        elif ratio is not None:
            at_min_size = ratio * spec.min_size
            self._ratio = ratio
            self._min_diff, self._max_diff = at_min_size - spec.error_buffer, at_min_size + spec.error_buffer
        self._changed = threading.Condition()
        self._is_closed = False
        self._items: dict[int, Item] = {}  # by key, the oldest first
        self._inserts = self._samples = self._next_key = 0
        self._random = np.random.default_rng()

    def insert(self, item: Item, timeout_secs: float) -> bool:
        """Inserts an item; returns whether the limits allowed it in time. Raises Lost if the server was closed."""
        with self._changed:
            if not self._wait_for(self._can_insert, timeout_secs):
                return False
            self._items[self._next_key] = item
            self._next_key += 1
            self._inserts += 1
            if len(self._items) > self.spec.max_size:
                del self._items[next(iter(self._items))]
            self._changed.notify_all()
        return True

    def sample(self, timeout_secs: float) -> Sample | None:
        """Draws an item; None if the limits did not allow it in time. Raises Lost if the server was closed."""
        with self._changed:
            if not self._wait_for(self._can_sample, timeout_secs):
                return None
            key, probability = self._choose()
            item, size = self._items[key], len(self._items)
            item.times_sampled += 1
            self._samples += 1
            if item.times_sampled == self._max_times_sampled:
                del self._items[key]
            self._changed.notify_all()
            return Sample(ItemInfo(key, probability, size, item.priority), {'chunk': item.chunk})

    def update(self, priorities: Mapping[int, float]) -> None:
        """Sets priorities by key; ignores items that are gone."""
        with self._changed:
            for key, priority in priorities.items():
                if item := self._items.get(key):
                    item.priority = priority

    def items(self) -> list[Item]:
        """Returns the items, the oldest first."""
        with self._changed:
            return [*self._items.values()]

    def counts(self) -> TableCounts:
        """Returns the counts and limits."""
        with self._changed:
            limits = self._ratio, self._min_diff, self._max_diff
            sizes = len(self._items), self.spec.max_size
            return TableCounts(*sizes, self._inserts, self._samples, *limits, signature=self.spec.signature)

    def close(self) -> None:
        """Ends all waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def state(self) -> dict[str, np.ndarray]:
        """Returns the content as arrays."""
        with self._changed:
            items = [*self._items.values()]
            content = {
                'keys': np.array([*self._items], np.int64),
                'priorities': np.array([item.priority for item in items]),
                'times_sampled': np.array([item.times_sampled for item in items], np.int64),
                'counts': np.array([self._inserts, self._samples, self._next_key]),
            }
        if items:
            content['column_chunk'] = np.stack([item.chunk for item in items])
        return content

    def restore(self, content: Mapping[str, Any]) -> None:
        """Takes over what `state` returned; raises KeyError or ValueError if something is missing."""
        self._inserts, self._samples, self._next_key = (int(count) for count in content['counts'])
        for i, key in enumerate(content['keys'].tolist()):
            counts = float(content['priorities'][i]), int(content['times_sampled'][i])
            self._items[key] = Item(content['column_chunk'][i].copy(), *counts)

    def _wait_for(self, condition: Any, timeout_secs: float) -> bool:
        allowed = self._changed.wait_for(lambda: self._is_closed or condition(), timeout_secs)
        if self._is_closed:
            raise Lost(f'the server of the table {self.spec.name!r} was closed')
        return allowed

    def _can_insert(self) -> bool:
        if len(self._items) < self.spec.min_size:
            return True
        return self._ratio * (self._inserts + 1) - self._samples <= self._max_diff

    def _can_sample(self) -> bool:
        if len(self._items) < self.spec.min_size:
            return False
        return self._ratio * self._inserts - self._samples - 1 >= self._min_diff

    def _choose(self) -> tuple[int, float]:
        """Returns the key of the next item to draw, and its probability."""
        if self.spec.order in ('queue', 'fifo'):
            return next(iter(self._items)), 1.0
        keys = [*self._items]
        if self.spec.order == 'priority':
            sums = np.cumsum([item.priority for item in self._items.values()])
            if sums[-1] > 0:
                i = int(np.searchsorted(sums, sums[-1] * self._random.random(), side='right'))
                return keys[i], self._items[keys[i]].priority / sums[-1]
        return keys[self._random.integers(len(keys))], 1 / len(keys)


SERVERS: dict[str, dict[str, Table]] = {}  # the tables of the servers of this process, by address


class ReplayServer(backend.Server):
    """See `backend.Server` and `backend.serve`. Its port is only a number, the same one after a restart."""

    def _start(self, port: int, address: str) -> bool:
        self._made = {table.name: Table(table) for table in self._tables}
        if self.restored:
            for table in self._made.values():
                _load(table, self.restored)
        self.port = port or next(_numbers)
        self.address = f'{backend.IN_PROCESS}{self.port}'
        if SERVERS.setdefault(self.address, self._made) is not self._made:
            raise UserValueError(f'got {self.address}, at which a server of this process listens; need another number')
        return True

    def counts(self) -> dict[str, TableCounts]:
        return {name: table.counts() for name, table in self._made.items()}

    def _write(self, folder: pathlib.Path) -> None:
        for name, table in self._made.items():
            np.savez(folder / f'{name}.npz', **table.state())

    def close(self) -> None:
        _remove(self.address)


@contextlib.contextmanager
def serving(tables: Sequence[TableSpec]) -> Iterator[str]:
    """Serves tables to this process for the time of the block, without files, and gives their address."""
    address = f'{backend.IN_PROCESS}own-{next(_numbers)}'
    SERVERS[address] = {table.name: Table(table) for table in tables}
    try:
        yield address
    finally:
        _remove(address)


def _remove(address: str) -> None:
    """Removes a server, and ends all waits for it."""
    for table in SERVERS.pop(address, {}).values():
        table.close()


def _load(table: Table, checkpoint: pathlib.Path) -> None:
    try:
        with (checkpoint / f'{table.spec.name}.npz').open('rb') as file, np.load(file) as content:
            table.restore(dict(content))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise damaged(checkpoint, str(error)) from error
