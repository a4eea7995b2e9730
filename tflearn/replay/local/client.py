"""Client: reaches the queues of this process, at 'inproc://NUMBER'. They are for one thread, and have room for all."""

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tflearn.core.table_counts import TableCounts
from tflearn.replay import backend
from tflearn.replay.backend import Lost
from tflearn.replay.storage import TableSpec

_numbers = itertools.count(1)
_SERVERS: dict[str, dict[str, '_Queue']] = {}  # the queues of this process, by address and name


@dataclasses.dataclass
class _Queue:
    """The items of a table that nobody has taken, the oldest first; and how many there ever were."""

    spec: TableSpec
    items: collections.deque[np.ndarray] = dataclasses.field(default_factory=collections.deque)
    inserts: int = 0
    samples: int = 0

    def counts(self) -> TableCounts:
        sizes = len(self.items), self.spec.max_size
        return TableCounts(*sizes, self.inserts, self.samples, signature=self.spec.signature)

    def content(self) -> dict[str, np.ndarray]:
        chunks = {'column_chunk': np.stack(self.items)} if self.items else {}
        return {'counts': np.array([self.inserts, self.samples]), **chunks}

    def set_content(self, content: Mapping[str, np.ndarray]) -> None:
        self.inserts, self.samples = map(int, content['counts'][:2])
        self.items = collections.deque(chunk.copy() for chunk in content.get('column_chunk', ()))


@contextlib.contextmanager
def serving(tables: Sequence[TableSpec]) -> Iterator[str]:
    """Serves queues to this process for the time of a block, and gives their address."""
    address = f'{backend.IN_PROCESS}{next(_numbers)}'
    _SERVERS[address] = {table.name: _Queue(table) for table in tables}
    try:
        yield address
    finally:
        del _SERVERS[address]


class Client(backend.Client):
    """See `backend.Client`. Nothing is sent: who takes items gets those that were inserted."""

    def is_listening(self) -> bool:
        return self.address in _SERVERS

    def counts(self, timeout_secs: int) -> dict[str, TableCounts] | None:
        del timeout_secs  # it answers at once
        queues = _SERVERS.get(self.address)
        return None if queues is None else {name: queue.counts() for name, queue in queues.items()}

    def writer(self) -> backend.Writer:
        return _Writer(self._queues())

    def take(self, table: str, count: int) -> list[np.ndarray]:
        """Returns the next items of a queue that has as many."""
        queue = self._queues()[table]
        queue.samples += count
        return [queue.items.popleft() for _ in range(count)]

    def content(self) -> dict[str, Any]:
        """Returns the content of the queues by name."""
        return {name: queue.content() for name, queue in self._queues().items()}

    def set_content(self, content: Mapping[str, Any]) -> None:
        """Fills the queues with what `content` returned."""
        for name, queue in self._queues().items():
            queue.set_content(content[name])

    def _queues(self) -> dict[str, _Queue]:
        if self.address not in _SERVERS:
            raise Lost(f'got no server at {self.address}')
        return _SERVERS[self.address]


class _Writer(backend.Writer):
    def __init__(self, queues: Mapping[str, _Queue]):
        self._queues = queues

    def insert(self, items: Sequence[np.ndarray], tables: Sequence[Sequence[str]], priority: float) -> None:
        del priority  # queues have none
        for item, names in zip(items, tables, strict=True):
            for name in names:
                self._queues[name].items.append(np.array(item))
                self._queues[name].inserts += 1

    def flush(self, num_unconfirmed: int, timeout_secs: float) -> bool:
        return True

    def close(self) -> None:
        pass
