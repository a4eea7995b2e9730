"""Heartbeats: the learner -> the replay server, so that a server knows when it has lost its learner.

A lost learner cannot be seen otherwise: without a network nothing arrives, no connection ends, and a learner that
waits for data asks for nothing either.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from tflearn.core import background
from tflearn.core.table_counts import TableCounts
from tflearn.replay import connection
from tflearn.replay.tables import TableSpec

HEARTBEATS = 'heartbeats'
_INTERVAL_SECS = 5.0
_MAX_COUNTED_SECS = 30.0  # of the time between two looks of the server
_WORKING, _ENDED = 'working', 'ended'
_COLUMN = 'state'


def table() -> TableSpec:
    """Returns the table of heartbeats: the newest one, whether the learner works or has ended."""
    return connection.text_table(HEARTBEATS, _COLUMN, max_size=1, max_times_sampled=0)


class Heartbeat:
    """Sends heartbeats from a thread of its own until it is closed."""

    def __init__(self, address: str):
        """`address` is the replay server's, 'host:port'."""
        self._address, self._closed = address, threading.Event()
        self._thread = background.Thread(target=self._run, name='heartbeat')
        self._thread.start()

    def close(self) -> None:
        """Tells the server that the learner ends: the server then waits for the next one."""
        self._closed.set()
        self._thread.join(_INTERVAL_SECS)
        self._send(_ENDED)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._send(_WORKING)
            self._closed.wait(_INTERVAL_SECS)

    def _send(self, state: str) -> None:
        with contextlib.suppress(ValueError, RuntimeError):  # another program started the server, without this table
            connection.send(self._address, HEARTBEATS, _COLUMN, state)


class HeartbeatWatch:
    """The server's side: for how long there has been no heartbeat."""

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic):
        """Watches nothing before the first heartbeat; `address` is the server's own one."""
        self._address, self._clock = address, clock
        self._count: int | None = None
        self._heard = False
        self._updated_at = clock()
        self.silent_secs = 0.0  # since the newest heartbeat; 0 before the first one

    def update(self, tables: dict[str, TableCounts]) -> None:
        """Takes the counts of the server's tables, by name."""
        count, now = tables[HEARTBEATS].inserts, self._clock()
        if self._count is not None and count > self._count:
            self._heard, self.silent_secs = True, 0.0
        elif self._heard:  # a server that stood still, or saved, could not hear anything
            self.silent_secs += min(now - self._updated_at, _MAX_COUNTED_SECS)
        self._count, self._updated_at = count, now

    def is_lost(self, timeout_secs: float) -> bool:
        """Returns whether a learner was there, did not say that it ends, and has been silent for so long."""
        if self.silent_secs < timeout_secs:
            return False
        if connection.receive(self._address, HEARTBEATS, 1) == [_ENDED.encode()]:
            self._heard, self.silent_secs = False, 0.0  # until the next one comes
            return False
        return True
