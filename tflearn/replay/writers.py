"""ReplayWriter: steps of a batched environment -> chunks in the replay tables."""

import collections
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import logging

from tflearn.core import background
from tflearn.core.waiting import LOG_EVERY_SECS, Stopped, wait_until
from tflearn.replay import backend
from tflearn.replay.chunks import ChunkBuilder, chunk_rows, pack
from tflearn.replay.storage import REPLAY, STREAM, Storage

_MAX_PENDING_STEPS = 256
_PART_SECS = 2.0
_MAX_PENDING_SECS = 2.0
_FLUSH_SECS = 0.2
_PROBE_SECS = 1.0
_MAX_SILENT_SECS = 4.0
_RETURN_POLL_SECS = 5.0

_Sent = tuple[np.ndarray, bool]  # a chunk, for all tables; or (True) a part of a chunk, for the stream


class ReplayWriter:
    """Observer that writes trajectories [B, ...] to the replay server; blocks while the rate limiter requires it.

    The replay table gets only complete chunks, so that it holds as many sequences as it is meant to, however slowly
    steps arrive. A learner that mirrors it does not wait for them: the stream also gets parts of chunks that stay
    unfinished for too long.

    Chunks that the server has not confirmed are kept, so that they can be sent again to a restarted server. That may
    insert a chunk twice, but never cuts an episode. What a server had received since its last checkpoint is lost with
    it.

    If several servers share the replay, a writer uses the first one in its own order. When that is lost it goes on with
    the next one that answers, and returns to the first when that is back.

    Attributes:
      num_sequences: the number of sequences sent.
      lost_steps: steps that will never be in the tables: not confirmed when the writer was stopped or gave up.
        (Without those dropped because of `keep_waiting`, since training is over then.)
    """

    def __init__(
        self,
        addresses: str | Callable[[], Sequence[str]],
        storage: Storage,
        num_environments: int,
        stop: threading.Event,
        keep_waiting: Callable[[], bool] = lambda: True,
        server_timeout_secs: float = 300.0,
        tables: Sequence[str] | None = None,
    ):
        """Opens a stream; the server must be running (see `backend.wait_for_table`), or one of several.

        Args:
          addresses: the address of the replay server, 'host:port'; or a function that returns those of several, in this
            writer's order (`Shards.ranked`). It is asked again after each loss.
          num_environments: B.
          keep_waiting: called five times a second while a write is blocked; if it returns False, the write raises
            `waiting.Stopped`. Also called while a server is down; what it raises ends the write.
          server_timeout_secs: how long to wait for a server that went down.
          tables: the names of the tables that get the chunks; None is all of the storage.
        """
        self._find = addresses if callable(addresses) else lambda: (addresses,)
        self._addresses = tuple(self._find())
        self._storage, self._stop, self._keep_waiting = storage, stop, keep_waiting
        self._server_timeout_secs = server_timeout_secs
        self._address = self._addresses[0] if len(self._addresses) == 1 else self._find_server()
        self._first_is_back = threading.Event()
        self._watching: background.Thread | None = None
        if self._address != self._addresses[0]:
            self._watch_first()
        self._tables = tuple(storage.table_names if tables is None else tables)
        # At least a chunk of each environment, so that they act while the server receives their last steps.
        self._max_pending = max(num_environments, _MAX_PENDING_STEPS // storage.num_starts)
        replay = storage.experience.replay
        if not replay.learns_from_old_items:  # pending items count as items of the queue
            self._max_pending = min(self._max_pending, replay.max_size - 1)
        self._pending: collections.deque[_Sent] = collections.deque()  # the oldest first
        self._confirmed_at = time.monotonic()
        self.num_sequences = 0
        self.lost_steps = 0
        self._chunks = ChunkBuilder(storage.experience, storage.num_starts, num_environments, storage.layout.num_bytes)
        # A mirrored table is read once, in any order.
        self._priority = 1.0
        if replay.prioritization and not storage.mirrored:
            self._priority = replay.prioritization.initial_priority
        self._open()

    def __call__(self, trajectory: Any, policy_version: int) -> None:
        """Writes one step of every environment.

        Args:
          trajectory: tf_agents Trajectory of numpy arrays [B, ...], boundary rows included.

        Raises:
          Stopped: if `stop` or `keep_waiting` ended a blocked write.
          TimeoutError: if the server went down and did not return.
          ValueError: if the trajectory does not match the tables, or the server returned with other tables.
        """
        if self._first_is_back.is_set():
            self._return_to_first()
        pack(self._storage.layout, trajectory, policy_version, self._chunks.next_rows)
        chunks = self._chunks.append(trajectory.step_type, trajectory.next_step_type, trajectory.discount)
        self._insert(chunks + self._chunks.take_full())
        if STREAM in self._tables:
            self._insert(self._chunks.parts_older_than(_PART_SECS), are_parts=True)
        if len(self._pending) > self._max_pending:
            self._wait_until_taken(self._max_pending)
        if self._pending and time.monotonic() - self._confirmed_at > _MAX_PENDING_SECS:
            self._wait_until_taken()

    def begin_with_next(self) -> None:
        """Makes sequences begin with the next rows, see `ChunkBuilder.begin_with_next`."""
        self._chunks.begin_with_next()

    @property
    def unused_steps(self) -> int:
        """Steps on which nothing trains: of episodes that are too short for a sequence."""
        return self._chunks.unused.num_steps

    @property
    def num_complete_sequences(self) -> int:
        """The number of sequences that were sent or are ready to be sent."""
        return self.num_sequences + self._chunks.num_waiting

    @property
    def num_confirmed_sequences(self) -> int:
        """The number of sequences that are known to be in the tables."""
        return self.num_sequences - self._num_sequences(self._pending)

    def flush_to_learner(self) -> None:
        """Sends everything gathered so far to the learner, and waits until it is in the tables; collecting may go on.

        A mirror gets parts of unfinished chunks from the stream, so that the table still gets only full chunks.
        """
        if STREAM in self._tables:
            self._insert(self._chunks.parts_older_than(-1.0), are_parts=True)
            self._wait_until_taken()
        else:
            self.flush()

    def flush(self) -> None:
        """Inserts everything gathered so far, and waits until it is in the tables.

        Raises:
          Stopped: if `stop` or `keep_waiting` ended the wait.
          TimeoutError: if the server went down and did not return.
          ValueError: if the server returned with other tables.
        """
        self._insert(self._chunks.take_all())
        self._wait_until_taken()

    def _open(self) -> None:
        self._writer = backend.connect(self._address).writer()

    def _insert(self, chunks: Sequence[np.ndarray], are_parts: bool = False) -> None:
        if not chunks:
            return
        if not self._pending:
            self._confirmed_at = time.monotonic()
        sent = [(chunk, are_parts) for chunk in chunks]
        self._send(sent)
        self._pending += sent
        self.num_sequences += self._num_sequences(sent)

    def _send(self, chunks: Sequence[_Sent]) -> None:
        tables = [(STREAM,) if is_part else self._tables for _, is_part in chunks]
        self._writer.insert([self._item(chunk) for chunk, _ in chunks], tables, self._priority)

    def _item(self, chunk: np.ndarray) -> np.ndarray:
        return chunk if self._storage.mirrored else chunk_rows(chunk, self._storage.layout.num_bytes)

    def _num_sequences(self, chunks: Sequence[_Sent]) -> int:
        """Returns how many sequences begin in the chunks. (Those of a part are counted with its chunk.)"""
        row_bytes = self._storage.layout.num_bytes
        return sum(
            int(np.count_nonzero(chunk_rows(chunk, row_bytes)[:, 0])) for chunk, is_part in chunks if not is_part
        )

    def _wait_until_taken(self, but: int = 0) -> None:
        """Waits until the server has received all chunks but the newest `but`; reconnects if it went down."""
        wait = _Wait(self._address)
        is_over = False
        try:
            while (is_taken := self._flush_until(but)) is not True:
                if is_taken is None or not wait.probe():
                    self._reconnect()
                    wait = _Wait(self._address)
                elif is_over := not self._keep_waiting():
                    raise Stopped('ended with steps that the replay had not received yet and that nobody needs')
                elif self._stop.is_set():
                    raise Stopped('stopped with steps that the replay had not received yet')
        except BaseException:
            lost = [*self._pending, *((chunk, False) for chunk in self._chunks.take_all())]
            if not is_over:
                self.lost_steps += self._num_sequences(lost) * self._storage.experience.slicing.stride
            self._pending.clear()
            raise
        while len(self._pending) > but:
            self._pending.popleft()
        self._confirmed_at = time.monotonic()

    def _flush_until(self, but: int) -> bool | None:
        """Returns whether the server has all chunks but `but`; None if it is known to be gone."""
        try:
            return self._writer.flush(but, _FLUSH_SECS)
        except backend.Lost:
            return None

    def _reconnect(self) -> None:
        """Waits until a server answers, and sends it the chunks that the last one had not confirmed."""
        # Close the old stream: its attempts to reconnect would make gRPC's delay grow, up to two minutes.
        self._writer.close()
        del self._writer
        lost, start = self._address, time.monotonic()
        logging.warning('lost the replay server at %s', lost)
        self._address = self._find_server(self._keep_waiting)
        self._open()
        if self._pending:
            self._send(self._pending)
        what = f'the replay server at {lost} is back' if self._address == lost else f'continuing with {self._address}'
        down_secs = time.monotonic() - start
        logging.warning('%s after %.0f s; sent %d chunks again', what, down_secs, len(self._pending))
        if self._address != self._addresses[0]:
            self._watch_first()

    def _find_server(self, meanwhile: Callable[[], object] = lambda: None) -> str:
        """Waits for the first server that answers, and returns its address; checks its tables."""

        def find() -> str | None:
            meanwhile()
            self._addresses = tuple(self._find())
            return backend.first_answering(self._addresses)

        what = lambda: f'the replay server at {" or ".join(self._addresses)}'  # noqa: E731
        address = wait_until(find, what, self._server_timeout_secs, self._stop)
        backend.wait_for_table(address, REPLAY, self._storage.signature, self._server_timeout_secs, self._stop)
        return address

    def _watch_first(self) -> None:
        """Starts to look for the first server, on a thread of its own: a machine that is down takes long to answer."""

        def watch() -> None:
            while not self._stop.wait(_RETURN_POLL_SECS):
                self._addresses = tuple(self._find())
                if backend.counts(self._addresses[0]) is not None:
                    self._first_is_back.set()
                    return

        if self._watching is None or not self._watching.is_alive():
            self._watching = background.Thread(target=watch, name='replay_first')
            self._watching.start()

    def _return_to_first(self) -> None:
        """Waits until the other server has received everything, and goes on with the first one."""
        self._wait_until_taken()
        self._first_is_back.clear()
        if self._address != self._addresses[0]:
            self._writer.close()
            self._address = self._addresses[0]
            self._open()
            logging.info('the replay server at %s is back', self._address)


class _Wait:
    """Finds out what a blocked write waits for: the rate limiter, or a server that does not answer."""

    def __init__(self, address: str):
        self._address = address
        self._answered_at = self._asked_at = self._logged_at = time.monotonic()

    def probe(self) -> bool:
        """Checks once a second whether the server is up; returns the last result."""
        now = time.monotonic()
        if now - self._asked_at < _PROBE_SECS:
            return True
        self._asked_at = now
        if backend.answers(self._address):  # this also wakes up a stream that a short restart has broken
            self._answered_at = now
            if now - self._logged_at >= LOG_EVERY_SECS:
                self._logged_at = now
                logging.info('the replay at %s blocks writes until the learner draws', self._address)
        elif not backend.connect(self._address).is_listening():
            return False
        # It listens but does not answer: it hangs, or it was down for so long that gRPC waits before it reconnects.
        return time.monotonic() - self._answered_at < _MAX_SILENT_SECS
