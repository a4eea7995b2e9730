"""Client: reaches a server at 'valkey://host:port'. Each call, writer and reader has a connection of its own."""

import collections
import contextlib
import itertools
import math
import secrets
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from tflearn.core import waiting
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import LOG_EVERY_SECS, Stopped, wait_until
from tflearn.files import compression
from tflearn.replay import backend
from tflearn.replay.backend import Lost
from tflearn.replay.storage import Storage
from tflearn.replay.valkey import library

_SECS = 5.0  # in which the server takes what is sent to it
_SILENT_SECS = 1.0  # after which a reader that waits for items can look around
_MAX_ITEMS, _MAX_BYTES = 64, 2 << 20  # sent or read by one call
_MAX_SENDS, _MAX_READS = 2, 4  # calls of a writer and of a reader at the same time, to hide the time of a round trip
_LARGE_BYTES = 1 << 15  # of an item that the server's function does not get


class Client(backend.Client):
    """See `backend.Client`. Its servers draw nothing but queues."""

    has_stream = True

    def __init__(self, address: str):
        super().__init__(address)
        parts = library.Address.parse(address)
        self._host_port = f'{parts.host}:{parts.port}'

    def is_listening(self) -> bool:
        return waiting.is_listening(self._host_port)

    def counts(self, timeout_secs: int) -> dict[str, TableCounts] | None:
        with contextlib.suppress(Lost), library.connected(self.address, timeout_secs) as connection:
            return library.Status.read(connection).counts()
        return None

    def writer(self) -> backend.Writer:
        return _Writer(self.address)

    def stream(self, table: str, item_shape: Sequence[int], at_most: int) -> Generator[np.ndarray, None, None]:
        count = max(1, min(at_most // 2, _MAX_BYTES // math.prod(item_shape)))
        num_reads = max(1, min(_MAX_READS, at_most // count))
        with contextlib.closing(_Reader(self.address, table, count, num_reads)) as reader:
            while True:
                items = [compression.plain(item, math.prod(item_shape)) for item in reader.read()]
                yield np.frombuffer(b''.join(items), np.uint8).reshape(-1, *item_shape)

    def scan(self, storage: Storage, table: str, timeout_secs: float, stop: threading.Event) -> list[np.ndarray]:
        what = f'the replay server at {self.address}'
        wait_until(lambda: self.counts(math.ceil(timeout_secs)), what, timeout_secs, stop)
        found: list[np.ndarray] = []
        at_once = max(1, min(1000, _MAX_BYTES // math.prod(storage.item_shape)))
        with library.connected(self.address, timeout_secs) as connection:
            status = library.Status.read(connection)
            for entries in library.entries(connection, status, at_once):
                if stop.is_set():
                    raise Stopped(f'stopped while reading {what}')
                oldest = status.oldest
                found += [
                    entry.array(storage.item_shape)
                    for entry in entries
                    if entry.is_in(table) and entry.numbers[0] >= oldest
                ]
        return found


class _Call(NamedTuple):
    """A call of a writer that was not answered yet: items and their tables' names, or none if it waits for room."""

    items: list[tuple[str, memoryview]]
    num_answers: int


class _Writer(backend.Writer):
    """See `backend.Writer`. Items wait here until the server has answered that it has them.

    A full call is sent before the last one was answered. If the server has no room for all items of one, it takes none
    of the next, so no item overtakes another.
    """

    def __init__(self, address: str):
        self._address = address
        self._name = f'tflearn:writer:{secrets.token_hex(8)}'  # the list that holds a message once there is room
        self._waiting: collections.deque[tuple[str, memoryview]] = collections.deque()  # to be sent
        self._calls: collections.deque[_Call] = collections.deque()
        self._refused: list[tuple[str, memoryview]] = []  # to be sent again, when all calls are answered
        self._connection: library.Connection | None = None
        self._number = 0  # of the newest call with items
        self._room = _MAX_ITEMS  # items that the next call may send
        self._lost: Lost | None = None

    def insert(self, items: Sequence[np.ndarray], tables: Sequence[Sequence[str]], priority: float) -> None:
        del priority  # the server draws nothing
        for item, names in zip(items, tables, strict=True):
            self._waiting.append((','.join(names), compression.packed(item)))
        with contextlib.suppress(Lost):  # the next flush reports it
            while self._advance(0.0):
                pass

    def flush(self, num_unconfirmed: int, timeout_secs: float) -> bool:
        deadline = time.monotonic() + timeout_secs
        while len(self._waiting) + len(self._refused) + sum(len(call.items) for call in self._calls) > num_unconfirmed:
            if not self._advance(max(0.0, deadline - time.monotonic())):
                return False
        return True

    def close(self) -> None:
        if self._connection:
            self._connection.close()

    def _advance(self, timeout_secs: float) -> bool:
        """Sends what may be sent, and handles the next answer; returns whether one came in time."""
        if self._lost:
            raise self._lost
        try:
            if self._connection is None:
                self._connection = library.Connection(self._address, _SECS)
            while self._may_send():
                self._send(self._connection)
            if not self._calls or not self._connection.has_answer(timeout_secs):
                return False
            try:
                answer = self._connection.receive_last(self._calls[0].num_answers)
            except library.Full as error:
                logging.log_every_n_seconds(logging.WARNING, 'writes wait: %s', LOG_EVERY_SECS, error)
                answer = 0
            self._handle(self._connection, answer)
        except Lost as error:
            self._lost = error
            raise
        return True

    def _may_send(self) -> bool:
        if not self._waiting or self._refused:
            return False
        if not self._calls:
            return True
        is_full = len(self._waiting) >= _MAX_ITEMS or len(self._waiting) * len(self._waiting[0][1]) >= _MAX_BYTES
        return is_full and self._room == _MAX_ITEMS and len(self._calls) < _MAX_SENDS

    def _send(self, connection: library.Connection) -> None:
        items: list[tuple[str, memoryview]] = []
        num_bytes, last = 0, self._number if self._calls else ''
        self._number += 1
        call = self._name, self._number, last
        while self._waiting and len(items) < self._room and num_bytes < _MAX_BYTES:
            items.append(self._waiting.popleft())
            num_bytes += len(items[-1][1])
        commands = [library.function(library.INSERT, *call, *itertools.chain.from_iterable(items))]
        if num_bytes >= _LARGE_BYTES * len(items):
            commands = [('MULTI',)]
            for tables, item in items:
                commands.append(library.function(library.MAKE_PLACE, *call, tables))
                commands.append(('XADD', library.PLACE, 'NOMKSTREAM', '*', tables, item))
            commands += [library.function(library.PLACED, *call), ('EXEC',)]
        self._calls.append(_Call(items, len(commands)))
        connection.send(*commands)

    def _handle(self, connection: library.Connection, answer: Any) -> None:
        call = self._calls.popleft()
        if not call.items:  # there is room; or it was long, and is time to look
            self._room = min(_MAX_ITEMS, int(answer[1])) if answer else 1
            return
        self._room = _MAX_ITEMS
        self._refused += call.items[answer:]
        if self._refused and not self._calls:
            self._waiting.extendleft(reversed(self._refused))
            self._refused.clear()
            self._room = 0
            self._calls.append(_Call([], 1))
            connection.send(('BLPOP', self._name, _SECS))


class _Reader:
    """Draws items of a queue, several at once, and asks for the next ones before they are needed."""

    def __init__(self, address: str, table: str, count: int, num_reads: int):
        """Connects, and asks so many times for so many items, which are lost if this process dies."""
        self._connection = library.Connection(address, _SECS + _SILENT_SECS)
        self._delivered = library.Connection(address, _SECS)  # the other one waits for items
        self._table = table
        self._command = (
            *('XREADGROUP', 'GROUP', library.GROUP, 'reader', 'COUNT', count),
            *('BLOCK', round(1000 * _SILENT_SECS), 'NOACK', 'STREAMS', library.ITEMS, '>'),
        )
        self._connection.send(*[self._command] * num_reads)

    def read(self) -> list[bytes]:
        """Returns the next items; none if there are none for a while, or those of other tables alone."""
        answer = self._connection.receive()
        self._connection.send(self._command)
        drawn = library.entries_of(answer[0][1]) if answer else []
        entries = [entry for entry in drawn if entry.is_in(self._table)]
        alone = [entry.id for entry in entries if b',' not in entry.tables]
        while self._delivered.has_answer(0.0):
            self._delivered.receive()
        # Writers wait for room. Sent without items too, since a connection that is silent for long may be closed.
        self._delivered.send(library.function(library.DELIVERED, *alone))
        return [entry.item for entry in entries]

    def close(self) -> None:
        """Ends the connections."""
        self._connection.close()
        self._delivered.close()
