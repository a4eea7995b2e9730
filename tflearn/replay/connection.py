"""Finding the replay server, which may not have started yet or may belong to another run."""

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from absl import logging

from tflearn.errors import UserValueError
from tflearn.replay.storage import Storage
from tflearn.replay.table_history import TableHistory
from tflearn.waiting import LOG_EVERY_SECS, PeerLost, is_listening, is_refused, wait_until

_INFO_TIMEOUT_SECS = 2
_FLUSH_TIMEOUT_MS = 2_000
SERVER_TIMEOUT_SECS = 90.0  # both sides of a partition end within two minutes, on a busy machine too


def own_address(address: str) -> str:
    """Returns another spelling of `address`, so that its connection is not shared with the rest of the process.

    gRPC shares connections by the spelling, and with them the reconnect delay, which grows up to two minutes while any
    thread tries to reach a server that is down.
    """
    host, _, port = address.rpartition(':')
    return f'{host}:0{port}'


def server_info(address: str) -> dict[str, Any] | None:
    """Returns `reverb.TableInfo` by table name; None if no server answers at `address`."""
    try:
        return reverb.Client(own_address(address)).server_info(timeout=_INFO_TIMEOUT_SECS)
    except (reverb.errors.DeadlineExceededError, RuntimeError, TypeError):  # TypeError: a name that is not UTF-8
        return None


def first_answering(addresses: Sequence[str]) -> str | None:
    """Returns the first address at which a server answers; None if there is none."""
    return next((each for each in addresses if is_listening(each) and server_info(each)), None)


class ServerPoll:
    """Asks a server for its tables again and again, warns while it does not answer, and gives up at a deadline.

    The deadline counts while nothing answers at all: a machine that refuses the connection is there, and its server may
    be started again; then it counts anew.
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

    def info(self) -> dict[str, Any] | None:
        """Returns `server_info`."""
        start, info = time.monotonic(), server_info(self._address)
        now = time.monotonic()
        if info is not None:
            self._history.update(info)
            self._silent_since = None
        elif is_refused(self._address):
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = start
        silent_secs = now - self._answered_at
        if info is not None:
            if self._warned_at > self._answered_at:
                logging.warning('the replay server at %s answers again, after %.0f s', self._address, silent_secs)
            self._answered_at = now
        elif now - max(self._warned_at, self._answered_at) >= LOG_EVERY_SECS:
            self._warned_at = now
            text = 'the replay server at %s has not answered for %.0f s; %s'
            logging.warning(text, self._address, silent_secs, self._meanwhile)
        return info


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
    info = wait_until(lambda: server_info(address), f'the replay server at {address}', timeout_secs, stop)
    if table not in info:
        raise UserValueError(f'got a replay server at {address} with tables {sorted(info)}; need the table {table!r}')
    theirs = {key: signature_text(spec) for key, spec in info[table].signature.items()}
    ours = {key: signature_text(spec) for key, spec in signature.items()}
    if theirs != ours:
        raise UserValueError(
            f'got table {table!r} at {address} with {theirs}; this job needs {ours}; start both with the same gin file'
        )


def send(address: str, table: str, name: str, text: str) -> bool:
    """Inserts a text into a table, as the column `name`. Returns whether the server has it."""
    if not is_listening(address):
        return False
    # Validation would first ask the server for its signatures, without a deadline.
    writer = reverb.Client(address).trajectory_writer(num_keep_alive_refs=1, validate_items=False)
    try:
        writer.append({name: np.array(text.encode(), object)})
        writer.create_item(table, 1.0, {name: writer.history[name][-1]})
        writer.flush(timeout_ms=_FLUSH_TIMEOUT_MS)
    except (reverb.DeadlineExceededError, RuntimeError):
        return False
    return True


def text_table(table: str, name: str, max_size: int, max_times_sampled: int) -> reverb.Table:
    """Returns a table of texts, in the column `name`: the oldest is read, and removed if there are more than fit."""
    return reverb.Table(
        table,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=max_size,
        max_times_sampled=max_times_sampled,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature={name: tf.TensorSpec((), tf.string, name)},
    )


def receive(address: str, table: str, name: str, max_texts: int, timeout_ms: int) -> list[bytes]:
    """Returns at most `max_texts` texts of a table, from the column `name`; none if the server is shutting down."""
    dataset = reverb.TrajectoryDataset(
        address,
        table,
        dtypes={name: tf.string},
        shapes={name: tf.TensorShape(())},
        max_in_flight_samples_per_worker=1,
        num_workers_per_iterator=1,
        max_samples=max_texts,
        rate_limiter_timeout_ms=timeout_ms,
    )
    try:
        return [sample.data[name] for sample in dataset.as_numpy_iterator()]
    except tf.errors.OpError:
        return []


def signature_text(spec: tf.TensorSpec) -> str:
    """Returns an item's spec as text, in which all that its readers and writers must agree on is."""
    return f'{spec.dtype.name}{list(spec.shape)} {spec.name or ""}'.strip()
