"""Client: reaches a server at 'valkey://host:port'. Each call, writer and reader has a connection of its own."""

import collections
import contextlib
import itertools
import math
import secrets
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core import waiting
from tflearn.core.errors import UserRuntimeError
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import LOG_EVERY_SECS, Stopped, wait_until
from tflearn.replay import backend
from tflearn.replay.backend import Lost
from tflearn.replay.storage import Storage
from tflearn.replay.valkey import functions, library

_SECS = 5.0  # in which the server takes what is sent to it
_SILENT_SECS = 1.0  # after which a reader that waits for items can look around
_MAX_ITEMS, _MAX_BYTES = 64, 2 << 20  # sent or read at once
_LARGE_BYTES = 1 << 15  # of an item that the server's function does not get


class Client(backend.Client):
    """See `backend.Client`. Its servers draw nothing but queues."""

    has_stream = True

    def __init__(self, address: str):
        super().__init__(address)
        self._host_port = library.Address.parse(address).host_port

    def is_listening(self) -> bool:
        return waiting.is_listening(self._host_port)

    def counts(self, timeout_secs: int) -> dict[str, TableCounts] | None:
        with contextlib.suppress(Lost), library.connected(self.address, timeout_secs) as connection:
            return library.Status.read(connection).counts()
        return None

    def writer(self) -> backend.Writer:
        return _Writer(self.address)

    def samples(self, table: str, item_shape: Sequence[int], in_flight: int, timeout_ms: int) -> tf.data.Dataset:
        raise UserRuntimeError(f'got draws from the table {table!r} at {self.address}; need a server that draws')

    def stream(self, table: str, item_shape: Sequence[int], at_most: int) -> Generator[np.ndarray, None, None]:
        at_most = min(at_most, 2 * max(1, _MAX_BYTES // math.prod(item_shape)))
        with contextlib.closing(_Reader(self.address, table, at_most)) as reader:
            while True:
                yield np.frombuffer(b''.join(reader.read()), np.uint8).reshape(-1, *item_shape)

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

    def update(self, table: str, priorities: Mapping[int, float]) -> None:
        raise UserRuntimeError(f'got priorities for the table {table!r} at {self.address}; need a server that draws')


class _Writer(backend.Writer):
    """See `backend.Writer`. Items wait here until the server has answered that it has them: one call at a time."""

    def __init__(self, address: str):
        self._address = address
        self._name = f'tflearn:writer:{secrets.token_hex(8)}'  # the list that holds a message once there is room
        self._waiting: collections.deque[tuple[str, memoryview]] = collections.deque()
        self._connection: library.Connection | None = None
        self._num_answers = 1  # to what was sent
        self._num_sent: int | None = None  # items of the call that runs; 0 waits for room; None: no call runs
        self._room = _MAX_ITEMS  # items that the next call may send
        self._lost: Lost | None = None

    def insert(self, items: Sequence[np.ndarray], tables: Sequence[Sequence[str]], priority: float) -> None:
        del priority  # the server draws nothing
        for item, names in zip(items, tables, strict=True):
            self._waiting.append((','.join(names), np.ascontiguousarray(item).data.cast('B')))
        with contextlib.suppress(Lost):  # the next flush reports it
            while self._advance(0.0):
                pass

    def flush(self, num_unconfirmed: int, timeout_secs: float) -> bool:
        deadline = time.monotonic() + timeout_secs
        while len(self._waiting) > num_unconfirmed:
            if not self._advance(max(0.0, deadline - time.monotonic())):
                return False
        return True

    def close(self) -> None:
        if self._connection:
            self._connection.close()

    def _advance(self, timeout_secs: float) -> bool:
        """Sends what waits if no call runs, and handles the next answer; returns whether it came in time."""
        if self._lost:
            raise self._lost
        try:
            if self._connection is None:
                self._connection = library.Connection(self._address, _SECS)
            if self._num_sent is None:
                if not self._waiting:
                    return False
                self._send(self._connection)
            if not self._connection.has_answer(timeout_secs):
                return False
            try:
                answer = self._connection.receive_last(self._num_answers)
            except library.Full as error:
                logging.log_every_n_seconds(logging.WARNING, 'writes wait: %s', LOG_EVERY_SECS, error)
                answer = 0
            self._handle(self._connection, answer)
        except Lost as error:
            self._lost = error
            raise
        return True

    def _send(self, connection: library.Connection) -> None:
        sent: list[tuple[str, memoryview]] = []
        num_bytes = 0
        for tables, item in self._waiting:
            sent.append((tables, item))
            num_bytes += len(item)
            if len(sent) == self._room or num_bytes >= _MAX_BYTES:
                break
        commands = [library.function(functions.INSERT, self._name, *itertools.chain.from_iterable(sent))]
        if num_bytes >= _LARGE_BYTES * len(sent):
            commands = [('MULTI',)]
            for tables, item in sent:
                commands.append(library.function(functions.MAKE_PLACE, self._name, tables))
                commands.append(('XADD', functions.PLACE, 'NOMKSTREAM', '*', tables, item))
            commands += [library.function(functions.PLACED), ('EXEC',)]
        connection.send(*commands)
        self._num_sent, self._num_answers = len(sent), len(commands)

    def _handle(self, connection: library.Connection, answer: Any) -> None:
        if not self._num_sent:  # there is room; or it was long, and is time to look
            self._num_sent, self._room = None, min(_MAX_ITEMS, int(answer[1])) if answer else 1
            return
        for _ in range(answer):
            self._waiting.popleft()
        if answer == self._num_sent:
            self._num_sent, self._room = None, _MAX_ITEMS
        else:
            connection.send(('BLPOP', self._name, _SECS))
            self._num_sent, self._num_answers = 0, 1


class _Reader:
    """Draws items of a queue, several at once, and asks for the next ones before they are needed."""

    def __init__(self, address: str, table: str, at_most: int):
        """Connects. `at_most` is the greatest number of items that are on their way, and lost if this process dies."""
        self._connection = library.Connection(address, _SECS + _SILENT_SECS)
        self._table = table
        count = max(1, at_most // 2)
        self._command = (
            *('XREADGROUP', 'GROUP', functions.GROUP, 'reader', 'COUNT', count),
            *('BLOCK', round(1000 * _SILENT_SECS), 'NOACK', 'STREAMS', functions.ITEMS, '>'),
        )
        self._has_asked = False

    def read(self) -> list[bytes]:
        """Returns the next items; none if there are none for a while."""
        if self._has_asked:
            self._connection.receive()  # that it knows what was drawn before
        else:
            self._connection.send(self._command)
        answer = self._connection.receive()
        self._has_asked = answer is not None
        if answer is None:
            return []
        entries = [entry for entry in library.entries_of(answer[0][1]) if entry.is_in(self._table)]
        alone = [entry.id for entry in entries if b',' not in entry.tables]
        self._connection.send(library.function(functions.DELIVERED, *alone), self._command)  # writers wait for room
        return [entry.item for entry in entries] or self.read()

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()
