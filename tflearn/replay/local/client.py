"""Client: reaches a server of this process, at 'inproc://NUMBER'."""

import collections
import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import wait_until
from tflearn.replay import backend
from tflearn.replay.backend import ItemInfo, Lost, Sample
from tflearn.replay.local.server import SERVERS, Item, Table
from tflearn.replay.storage import Storage

_CHECK_SECS = 0.2  # after which a silent stream ends, so that its reader can be closed; nothing is lost then


class Client(backend.Client):
    """See `backend.Client`."""

    def is_listening(self) -> bool:
        return SERVERS.get(self.address) is not None

    def counts(self, timeout_secs: int) -> dict[str, TableCounts] | None:
        del timeout_secs  # it answers at once
        tables = SERVERS.get(self.address)
        return None if tables is None else {name: table.counts() for name, table in tables.items()}

    def writer(self) -> backend.Writer:
        return _Writer(self._tables())

    def samples(self, table: str, item_shape: Sequence[int], in_flight: int, timeout_ms: int) -> tf.data.Dataset:
        del in_flight  # nothing is on its way
        silent_secs = _CHECK_SECS if timeout_ms < 0 else min(_CHECK_SECS, 1e-3 * timeout_ms)

        def draw() -> Iterator[Sample]:
            while (drawn := self._tables()[table].sample(silent_secs)) is not None:
                yield drawn

        info = ItemInfo(
            tf.TensorSpec((), tf.uint64),
            tf.TensorSpec((), tf.float64),
            tf.TensorSpec((), tf.int64),
            tf.TensorSpec((), tf.float64),
        )
        spec = Sample(info, {'chunk': tf.TensorSpec(item_shape, tf.uint8)})
        return tf.data.Dataset.from_generator(draw, output_signature=spec)

    def scan(self, storage: Storage, table: str, timeout_secs: float, stop: threading.Event) -> list[np.ndarray]:
        what = f'the replay server at {self.address}'
        tables = wait_until(lambda: SERVERS.get(self.address), what, timeout_secs, stop)
        return [item.chunk for item in tables[table].items()]

    def update(self, table: str, priorities: Mapping[int, float]) -> None:
        tables = SERVERS.get(self.address)
        if tables is None:
            raise RuntimeError(f'got no server at {self.address}')
        tables[table].update(priorities)

    def take(self, table: str, count: int) -> list[np.ndarray]:
        found = [self._tables()[table].sample(0.0) for _ in range(count)]
        return [drawn.data['chunk'] for drawn in found if drawn is not None]

    def content(self) -> dict[str, Any]:
        return {name: table.state() for name, table in self._tables().items()}

    def set_content(self, content: Mapping[str, Any]) -> None:
        for name, table in self._tables().items():
            table.restore(content[name])

    def _tables(self) -> dict[str, Table]:
        tables = SERVERS.get(self.address)
        if tables is None:
            raise Lost(f'got no server at {self.address}')
        return tables


class _Writer(backend.Writer):
    """See `backend.Writer`. Items that the limits do not allow yet wait here, in order."""

    def __init__(self, tables: dict[str, Table]):
        self._tables = tables
        self._waiting: collections.deque[tuple[Table, Item]] = collections.deque()

    def insert(self, items: Sequence[np.ndarray], tables: Sequence[Sequence[str]], priority: float) -> None:
        for item, names in zip(items, tables, strict=True):
            chunk = np.array(item)  # a copy, which all tables share
            self._waiting += [(self._tables[name], Item(chunk, priority)) for name in names]
        with contextlib.suppress(Lost):  # the next flush reports it
            self.flush(0, 0.0)

    def flush(self, num_unconfirmed: int, timeout_secs: float) -> bool:
        deadline = time.monotonic() + timeout_secs
        while self._waiting:
            table, item = self._waiting[0]
            is_done = len(self._waiting) <= num_unconfirmed
            if not table.insert(item, 0.0 if is_done else max(0.0, deadline - time.monotonic())):
                return is_done
            self._waiting.popleft()
        return True

    def close(self) -> None:
        self._waiting.clear()
