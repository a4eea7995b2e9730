"""Client: this process's connections to Reverb's servers, which may not have started yet.

All calls of a process to a server share one connection. (Streams that read items have one of their own, by another
spelling of the address.) Reverb waits for a lost server without a deadline: here each call but an update has one.
"""

import atexit
import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core.experience import Prioritization
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import LOG_EVERY_SECS, Stopped, is_listening, wait_until
from tflearn.replay import backend
from tflearn.replay.item_reader import unconverted
from tflearn.replay.priorities import PriorityUpdater
from tflearn.replay.reader import TableReader
from tflearn.replay.reverb import library
from tflearn.replay.storage import Storage

_MAX_AHEAD = 32  # items in flight, which may be drawn again before the server knows that they were read
_MAX_AHEAD_BYTES = 8 << 20
_BATCH = 8
_UPDATE_SECS = 1.0
_MAX_UPDATED = 10_000
_POLL_SECS = 0.002
_IDENTITY = Prioritization(alpha=1.0, epsilon=0.0, max_error=1.0)  # priorities equal to the given errors
_clients: dict[str, Any] = {}  # the connection to each server, by its address
atexit.register(_clients.clear)  # while gRPC is still there


def own_address(address: str) -> str:
    """Returns another spelling of `address`, so that its connection is not shared with the rest of the process.

    gRPC shares connections by the spelling, and with them the reconnect delay, which grows up to two minutes while any
    thread tries to reach a server that is down.
    """
    host, _, port = address.rpartition(':')
    return f'{host}:0{port}'


class Client(backend.Client):
    """Reaches a server of Reverb; see `backend.Client`."""

    def __init__(self, address: str):
        super().__init__(address)
        self._for_updates: Any = None

    def counts(self, timeout_secs: int) -> dict[str, TableCounts] | None:
        client = _clients.get(self.address)
        if client is None:
            if not is_listening(self.address):
                return None
            client = _clients.setdefault(self.address, library.Client(own_address(self.address)))
        try:
            return library.counts(client, timeout_secs)
        except library.LOST_ERRORS:
            if _clients.get(self.address) is client:  # the next call makes another one
                _clients.pop(self.address, None)
            return None

    def writer(self) -> backend.Writer:
        return _Writer(self.address)

    def samples(self, table: str, item_shape: Sequence[int], in_flight: int, timeout_ms: int) -> tf.data.Dataset:
        return library.samples(self.address, table, item_shape, in_flight, timeout_ms)

    def scan(self, storage: Storage, table: str, timeout_secs: float, stop: threading.Event) -> list[np.ndarray]:
        if not _num_items(self.address, table, timeout_secs, stop):
            return []
        with contextlib.closing(_Scan(self.address, storage, table, timeout_secs)) as scan:
            return scan.run(stop)

    def update(self, table: str, priorities: Mapping[int, float]) -> None:
        """See `backend.Client`. Waits for a lost server without a deadline."""
        if self._for_updates is None:
            self._for_updates = library.Client(self.address)
        self._for_updates.mutate_priorities(table, updates=priorities)


class _Writer(backend.Writer):
    """A stream of Reverb's; see `backend.Writer`."""

    def __init__(self, address: str):
        # Validation would first ask the server for its signatures, without a deadline; `wait_for_table` compared them.
        # (Reverb's StructuredWriter is faster, but hangs if it is closed while its server is down.)
        client = library.Client(own_address(address))
        self._writer = client.trajectory_writer(num_keep_alive_refs=1, validate_items=False)
        self._columns: list[Any] = []

    def insert(self, items: Sequence[np.ndarray], tables: Sequence[Sequence[str]], priority: float) -> None:
        # One append with a column for each item: in Reverb's Python one column takes about as long as many.
        self._writer.append({str(i): item for i, item in enumerate(items)})
        if len(items) > len(self._columns):
            history = self._writer.history
            self._columns = [history[str(i)] for i in range(len(items))]
        for column, names in zip(self._columns, tables, strict=False):
            item = {'chunk': column[-1]}
            for table in names:
                self._writer.create_item(table, priority, item)

    def flush(self, num_unconfirmed: int, timeout_secs: float) -> bool:
        try:
            self._writer.flush(block_until_num_items=num_unconfirmed, timeout_ms=round(1000 * timeout_secs))
            return True
        except library.DeadlineExceededError:
            return False

    def close(self) -> None:
        self._writer.close()


def _num_items(address: str, table: str, timeout_secs: float, stop: threading.Event) -> int:
    what = f'the replay server at {address}'
    return wait_until(lambda: backend.counts(address), what, timeout_secs, stop)[table].size


class _Scan:
    """One pass over a table, which reads each of its items about once and removes none.

    Reverb can only draw items, uniformly or by priority. This table is drawn from by priority, and only here. All items
    have the priority 1; items that were read get 0, so that they are not drawn again. When no others are left Reverb
    draws items of priority 0, which means that all were read. In the end they get their priority 1 back. A reader that
    dies before that leaves some at 0; the next one draws those last, uniformly, and therefore more than once.
    """

    def __init__(self, address: str, storage: Storage, table: str, timeout_secs: float):
        self._address, self._table, self._timeout_secs = address, table, timeout_secs
        specs = [tf.TensorSpec((), tf.uint64), tf.TensorSpec((), tf.float64), storage.signature['chunk']]
        self._ahead = max(1, min(_MAX_AHEAD, _MAX_AHEAD_BYTES // math.prod(storage.item_shape)))
        self._reader = TableReader(address, storage, table, specs, self._ahead, timeout_secs)
        self._updater = PriorityUpdater(address, table, _IDENTITY)
        self._found: dict[int, np.ndarray] = {}
        self._keys: list[int] = []  # of all items found

    def run(self, stop: threading.Event) -> list[np.ndarray]:
        """Returns the table's chunks."""
        self._reader.start(self._elements, in_flight=self._ahead)
        num_repeats, logged_at = 0, time.monotonic()
        while True:
            self._wait(stop)
            repeats = self._take()
            num_repeats += repeats
            if repeats and self._is_complete(num_repeats, stop):
                found, self._found = list(self._found.values()), {}
                return found
            if time.monotonic() - logged_at >= LOG_EVERY_SECS:
                logged_at = time.monotonic()
                logging.info('read %d chunks of the table %r so far', len(self._found), self._table)

    def close(self) -> None:
        """Restores the priority of the items that were read."""
        self._reader.close()
        keys = np.array(self._keys, np.uint64)
        for part in np.array_split(keys, math.ceil(len(keys) / _MAX_UPDATED)) if len(keys) else []:
            self._updater.update(0, part, np.ones(len(part)))
        self._updater.close()

    def _elements(self, samples: tf.data.Dataset) -> tf.data.Dataset:
        batches = samples.batch(min(_BATCH, self._ahead))
        return batches.map(unconverted(lambda sample: (sample.info.key, sample.info.priority, sample.data['chunk'])))

    def _wait(self, stop: threading.Event) -> None:
        """Waits for items."""
        while not (stop.is_set() or self._reader.size()):
            if self._reader.error:
                raise self._reader.error
            self._reader.wait(_POLL_SECS)
        if stop.is_set():
            raise Stopped(f'stopped while reading the table {self._table!r}')
        self._reader.resume()

    def _take(self) -> int:
        """Takes the available items. Returns how many of them had the priority of items that were read before."""
        keys, priorities, chunks = map(np.asarray, self._reader.take(self._reader.size()))
        for i, key in enumerate(keys.tolist()):
            if key not in self._found:
                self._keys.append(key)
                self._found[key] = chunks[i].copy()  # a view would keep the other chunks in memory
        unread = keys[priorities > 0]
        self._updater.update(0, unread, np.zeros(len(unread)))
        self._updater.flush(_UPDATE_SECS)  # if that takes longer, items may be drawn again
        return len(keys) - len(unread)

    def _is_complete(self, num_repeats: int, stop: threading.Event) -> bool:
        """Returns whether all items were read. (Other readers may have left items with the priority 0.)"""
        num_items = _num_items(self._address, self._table, self._timeout_secs, stop)
        if len(self._found) >= num_items:
            return True
        if num_repeats <= num_items * (math.log(num_items) + 5):  # uniform draws see all of n in n ln(n)
            return False
        logging.warning('read only %d of %d chunks of the table %r', len(self._found), num_items, self._table)
        return True
