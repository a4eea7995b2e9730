"""Client: this process's connections to Reverb's servers, which may not have started yet.

All calls of a process to a server share one connection. (Streams that read items have one of their own, by another
spelling of the address.) Reverb waits for a lost server without a deadline: here each call but an update has one.
"""

import atexit
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import is_listening
from tflearn.replay import backend
from tflearn.replay.reverb import library, scan
from tflearn.replay.storage import Storage


def own_address(address: str) -> str:
    """Returns another spelling of `address`, so that its connection is not shared with the rest of the process.

    gRPC shares connections by the spelling, and with them the reconnect delay, which grows up to two minutes while any
    thread tries to reach a server that is down.
    """
    host, _, port = address.rpartition(':')
    return f'{host}:0{port}'


class _Connections:
    """The connection to each server, by its address. One that has failed is replaced, once something listens there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}

    def get(self, address: str) -> Any | None:
        """Returns the server's connection; None if there is none yet, and nothing listens at `address`."""
        with self._lock:
            known = self._clients.get(address)
        if known is not None or not is_listening(address):
            return known
        with self._lock:
            if address not in self._clients:
                self._clients[address] = library.Client(own_address(address))
            return self._clients[address]

    def replace(self, address: str, client: Any) -> None:
        """Forgets a connection that failed."""
        with self._lock:
            if self._clients.get(address) is client:
                del self._clients[address]

    def clear(self) -> None:
        """Forgets all connections."""
        with self._lock:
            self._clients.clear()


_connections = _Connections()
atexit.register(_connections.clear)  # while gRPC is still there


class Client(backend.Client):
    """Reaches a server of Reverb; see `backend.Client`."""

    def __init__(self, address: str):
        super().__init__(address)
        self._for_updates: Any = None

    def counts(self, timeout_secs: int) -> dict[str, TableCounts] | None:
        client = _connections.get(self.address)
        if client is None:
            return None
        try:
            return library.counts(client, timeout_secs)
        except library.LOST_ERRORS:
            _connections.replace(self.address, client)
            return None

    def writer(self) -> backend.Writer:
        return _Writer(self.address)

    def samples(self, table: str, item_shape: Sequence[int], in_flight: int, timeout_ms: int) -> tf.data.Dataset:
        return library.samples(self.address, table, item_shape, in_flight, timeout_ms)

    def scan(self, storage: Storage, table: str, timeout_secs: float, stop: threading.Event) -> list[np.ndarray]:
        return scan.read_chunks(self.address, storage, table, timeout_secs, stop)

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
