"""What jobs ask replay servers, which may not have started yet or may belong to another run; and short messages.

A process that cannot use the servers' backend reaches them through a relay.
"""

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core.errors import UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.core.waiting import LOG_EVERY_SECS, PeerLost, wait_until
from tflearn.replay import backend
from tflearn.replay.storage import Storage
from tflearn.replay.table_history import TableHistory
from tflearn.replay.tables import TableSpec, signature_text

_COUNTS_TIMEOUT_SECS = 2
SERVER_TIMEOUT_SECS = 90.0  # both sides of a partition end within two minutes, on a busy machine too


class Relay(Protocol):
    """Reaches the replay servers on behalf of a process that cannot use Reverb."""

    def counts(self) -> dict[str, TableCounts] | None:
        """See `counts`."""

    def send(self, table: str, name: str, text: str) -> bool:
        """See `send`."""

    def receive(self, table: str, max_texts: int) -> list[bytes]:
        """See `receive`."""


_relays: dict[str, Relay] = {}


@contextlib.contextmanager
def relayed(address: str, relay: Relay) -> Iterator[None]:
    """Lets a relay answer for the server at `address` during the block."""
    _relays[address] = relay
    try:
        yield
    finally:
        del _relays[address]


def counts(address: str, timeout_secs: int = _COUNTS_TIMEOUT_SECS) -> dict[str, TableCounts] | None:
    """Returns the counts by table name; None if no server answers at `address` in time."""
    if relay := _relays.get(address):
        return relay.counts()
    return backend.connect(address).counts(timeout_secs)


def answers(address: str) -> bool:
    """Returns whether the server answers within a second."""
    return counts(address, 1) is not None


def first_answering(addresses: Sequence[str]) -> str | None:
    """Returns the first address at which a server answers; None if there is none."""
    return next((each for each in addresses if backend.connect(each).is_listening() and counts(each)), None)


class ServerPoll:
    """Asks a server for its tables again and again, warns while it does not answer, and gives up at a deadline.

    The deadline counts while nothing answers at all: a machine that refuses the connection is there, and its server may
    be started again; then it counts from zero.
    """

    def __init__(self, address: str, meanwhile: str, storage: Storage, silent_timeout_secs: float = math.inf):
        """
        Args:
          address: the server's address, 'host:port'.
          meanwhile: what happens while it does not answer, for the warning.
          storage: the layout of its tables.
          silent_timeout_secs: how long nothing may answer.
        """
        self._address, self._meanwhile, self._timeout_secs = address, meanwhile, silent_timeout_secs
        self._answered_at = self._warned_at = time.monotonic()
        self._history = TableHistory(storage)
        self._silent_since: float | None = None

    def check(self) -> None:
        """Checks that the server, or at least its machine, has answered in time.

        Raises:
          PeerLost: if not; it names what the tables held when the server last answered.
        """
        since = self._silent_since
        if since is not None and (secs := time.monotonic() - since) >= self._timeout_secs:
            raise PeerLost(
                f'got no answer from the replay server at {self._address} for {secs:.0f} s; need one within '
                f'{self._timeout_secs:g} s (server_timeout_secs); check the network and the server, and start again; '
                f'when it last answered: {self._history}'
            )

    def counts(self) -> dict[str, TableCounts] | None:
        """Returns `counts` of the server."""
        start, found = time.monotonic(), counts(self._address)
        now = time.monotonic()
        if found is not None:
            self._history.update(found)
            self._silent_since = None
        elif backend.connect(self._address).is_refused():
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = start
        silent_secs = now - self._answered_at
        if found is not None:
            if self._warned_at > self._answered_at:
                logging.warning('the replay server at %s answers again, after %.0f s', self._address, silent_secs)
            self._answered_at = now
        elif now - max(self._warned_at, self._answered_at) >= LOG_EVERY_SECS:
            self._warned_at = now
            text = 'the replay server at %s has not answered for %.0f s; %s'
            logging.warning(text, self._address, silent_secs, self._meanwhile)
        return found


def wait_for_table(
    address: str,
    table: str,
    signature: dict[str, tf.TensorSpec],
    timeout_secs: float,
    stop: threading.Event | None = None,
) -> None:
    """Waits until the replay server answers, and checks its table's signature.

    Args:
      signature: the signature that this job writes or reads.

    Raises:
      TimeoutError: if no server answers in time.
      ValueError: if the server has no such table, or its signature differs: the two jobs use different configurations.
    """
    found = wait_until(lambda: counts(address), f'the replay server at {address}', timeout_secs, stop)
    if table not in found:
        raise UserValueError(f'got a replay server at {address} with tables {sorted(found)}; need the table {table!r}')
    theirs = {key: signature_text(spec) for key, spec in found[table].signature.items()}
    ours = {key: signature_text(spec) for key, spec in signature.items()}
    if theirs != ours:
        raise UserValueError(
            f'got table {table!r} at {address} with {theirs}; this job needs {ours}; start both with the same gin file'
        )


def send(address: str, table: str, name: str, text: str) -> bool:
    """Inserts a text into a table, as the column `name`. Returns whether the server has it."""
    if relay := _relays.get(address):
        return relay.send(table, name, text)
    return insert(address, table, {name: np.array(text.encode(), object)})


def insert(address: str, table: str, columns: Mapping[str, Any], num_bytes: int = 0) -> bool:
    """Inserts an item of one step into a table.

    Args:
      columns: the item's columns by name.
      num_bytes: their size, by which the deadline grows; 0 for a short message.

    Returns:
      Whether the server has it.
    """
    return backend.connect(address).put(table, columns, num_bytes)


def text_table(table: str, name: str, max_size: int, max_times_sampled: int) -> TableSpec:
    """Returns a table of texts, in the column `name`: the oldest is read, and removed if there are more than fit."""
    signature = {name: tf.TensorSpec((), tf.string, name)}
    return TableSpec(table, max_size, signature, 'fifo', max_times_sampled)


def receive(address: str, table: str, max_texts: int) -> list[bytes]:
    """Returns the next texts of a table that holds at least `max_texts`; fewer if the server does not answer."""
    if relay := _relays.get(address):
        return relay.receive(table, max_texts)
    return [columns[0].item() for columns in sample(address, table, max_texts)]


def sample(address: str, table: str, count: int, num_bytes: int = 0) -> list[list[np.ndarray]]:
    """Returns `count` items of a table that holds as many.

    Args:
      num_bytes: the size of the items, by which the deadline grows.

    Returns:
      The columns of each item, in the order of their sorted names; fewer items if the server does not answer.
    """
    return backend.connect(address).take(table, count, num_bytes)
