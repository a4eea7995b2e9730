"""ReplayWriter: steps of a batched environment -> chunks in the replay tables."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import reverb
from absl import logging

from tflearn.replay import connection
from tflearn.replay.chunks import ChunkBuilder, chunk_rows
from tflearn.replay.storage import REPLAY, STREAM, Storage
from tflearn.waiting import LOG_EVERY_SECS, Stopped, is_listening, wait_until

_MAX_PENDING_STEPS = 256
_PART_SECS = 2.0
_MAX_PENDING_SECS = 2.0
_FLUSH_TIMEOUT_MS = 200
_PROBE_SECS = 1.0
_MAX_SILENT_SECS = 4.0


class ReplayWriter:
    """Observer that writes trajectories [B, ...] to the replay server; waits while the rate limiter says so.

    The replay table gets whole chunks only, so that it holds as many sequences as it was made for however slowly steps
    come. A learner that mirrors it does not wait for them: the stream brings it parts of what is unfinished for long.

    What the server has not confirmed is kept, so that it can be sent again to one that was restarted. That may insert
    a chunk twice, but never cuts an episode. What a server had taken since its last checkpoint is lost with it.

    Attributes:
      num_sequences: sequences sent.
      lost_steps: steps that will never be in the tables: not confirmed when the writer was stopped or gave up.
        (Not those that `keep_waiting` gave up, since training is over.)
    """

    def __init__(
        self,
        address: str,
        storage: Storage,
        num_environments: int,
        stop: threading.Event,
        keep_waiting: Callable[[], bool] = lambda: True,
        server_timeout_secs: float = 300.0,
    ):
        """Opens a stream; the server must be there (see `connection.wait_for_table`).

        Args:
          address: the replay server's address, 'host:port'.
          storage: the replay tables' layout.
          num_environments: B.
          stop: when set, a blocked write ends with `waiting.Stopped`.
          keep_waiting: asked five times a second while a write is held back; False ends it likewise.
          server_timeout_secs: how long to look for a server that went away.
        """
        self._address, self._storage = address, storage
        self._stop, self._keep_waiting = stop, keep_waiting
        self._server_timeout_secs = server_timeout_secs
        # At least a chunk of each environment, so that they act while the server takes in what they saw last.
        self._max_pending = max(num_environments, _MAX_PENDING_STEPS // storage.num_starts)
        if storage.experience.order == 'queue':  # what waits here waits like the rest
            self._max_pending = min(self._max_pending, storage.experience.max_size - 1)
        self._pending: collections.deque[_Sent] = collections.deque()  # the oldest first
        self._confirmed_at = time.monotonic()
        self.num_sequences = 0
        self.lost_steps = 0
        self._chunks = ChunkBuilder(storage.experience, storage.num_starts, num_environments, storage.layout.num_bytes)
        self._no_flags = np.zeros(num_environments, np.uint8)
        prioritization = storage.experience.prioritization
        self._priority = prioritization.initial_priority if prioritization else 1.0
        self._open()

    def __call__(self, trajectory: Any, policy_version: int) -> None:
        """Writes one step of every environment.

        Args:
          trajectory: tf_agents Trajectory of numpy arrays [B, ...], boundary rows included.
          policy_version: of the weights that acted.

        Raises:
          Stopped: if `stop` or `keep_waiting` said so while the write was held back.
          TimeoutError: if the server went away and did not come back.
          ValueError: if the trajectory is not what the tables hold, or the server came back with other tables.
        """
        versions = np.full(len(self._no_flags), policy_version, np.int64)
        packed = self._storage.layout.pack(
            {'begins': self._no_flags, 'policy_version': versions, 'trajectory': trajectory}
        )
        chunks = self._chunks.append(packed, trajectory.step_type, trajectory.next_step_type, trajectory.discount)
        self._insert(chunks + self._chunks.take_full())
        if STREAM in self._storage.table_names:
            self._insert(self._chunks.parts_older_than(_PART_SECS), are_parts=True)
        if len(self._pending) > self._max_pending:
            self._wait_until_taken(self._max_pending)
        if self._pending and time.monotonic() - self._confirmed_at > _MAX_PENDING_SECS:
            self._wait_until_taken()

    def begin_with_next(self) -> None:
        """Lets sequences begin with the next rows, see `ChunkBuilder.begin_with_next`."""
        self._chunks.begin_with_next()

    @property
    def num_complete_sequences(self) -> int:
        """Sequences that were sent, or only wait to be."""
        return self.num_sequences + self._chunks.num_waiting

    @property
    def num_confirmed_sequences(self) -> int:
        """Sequences that are known to be in the tables."""
        return self.num_sequences - self._num_sequences(self._pending)

    def flush_to_learner(self) -> None:
        """Lets the learner have all that is gathered, and waits until the tables have it; collecting goes on later.

        A mirror gets the parts of unfinished chunks from the stream, so that the table goes on with full chunks.

        Raises:
          As `flush`.
        """
        if STREAM in self._storage.table_names:
            self._insert(self._chunks.parts_older_than(-1.0), are_parts=True)
            self._wait_until_taken()
        else:
            self.flush()

    def flush(self) -> None:
        """Inserts what is gathered, and waits until all of it is in the tables.

        Raises:
          Stopped: if `stop` or `keep_waiting` said so meanwhile.
          TimeoutError: if the server went away and did not come back.
          ValueError: if it came back with other tables.
        """
        self._insert(self._chunks.take_all())
        self._wait_until_taken()

    def _open(self) -> None:
        # Validation asks the server for its signatures first, without a deadline; `wait_for_table` has compared them.
        # (Reverb's StructuredWriter is faster, but hangs when it is to end while its server is away.)
        client = reverb.Client(connection.own_address(self._address))
        self._writer: Any = client.trajectory_writer(num_keep_alive_refs=1, validate_items=False)
        self._columns: list[Any] = []

    def _insert(self, chunks: Sequence[np.ndarray], are_parts: bool = False) -> None:
        if not chunks:
            return
        if not self._pending:
            self._confirmed_at = time.monotonic()
        sent = [_Sent(chunk, are_parts) for chunk in chunks]
        self._send(sent)
        self._pending += sent
        self.num_sequences += self._num_sequences(sent)

    def _send(self, chunks: Sequence['_Sent']) -> None:
        # One append with a column for each chunk: Reverb's Python takes about as long for one column as for many.
        self._writer.append({str(i): self._item(sent.chunk) for i, sent in enumerate(chunks)})
        if len(chunks) > len(self._columns):
            history = self._writer.history
            self._columns = [history[str(i)] for i in range(len(chunks))]
        for column, sent in zip(self._columns, chunks, strict=False):
            item = {'chunk': column[-1]}
            for table in (STREAM,) if sent.is_part else self._storage.table_names:
                self._writer.create_item(table, self._priority, item)

    def _item(self, chunk: np.ndarray) -> np.ndarray:
        return chunk if self._storage.mirrored else chunk_rows(chunk, self._storage.layout.num_bytes)

    def _num_sequences(self, chunks: Sequence['_Sent']) -> int:
        """Returns how many begin in them. (Those of a part are counted with its chunk.)"""
        row_bytes = self._storage.layout.num_bytes
        return sum(
            int(np.count_nonzero(chunk_rows(sent.chunk, row_bytes)[:, 0])) for sent in chunks if not sent.is_part
        )

    def _wait_until_taken(self, but: int = 0) -> None:
        """Waits until the server has taken all chunks but the newest `but`; looks for it if it went away."""
        wait = _Wait(self._address)
        is_over = False
        try:
            while not self._is_taken(but):
                if not wait.server_is_there():
                    self._reconnect()
                    wait = _Wait(self._address)
                elif is_over := not self._keep_waiting():
                    raise Stopped('ended with steps that the replay had not taken yet, and that nobody waits for')
                elif self._stop.is_set():
                    raise Stopped('stopped with steps that the replay had not taken yet')
        except BaseException:
            lost = [*self._pending, *(_Sent(chunk) for chunk in self._chunks.take_all())]
            if not is_over:
                self.lost_steps += self._num_sequences(lost) * self._storage.experience.stride
            self._pending.clear()
            raise
        while len(self._pending) > but:
            self._pending.popleft()
        self._confirmed_at = time.monotonic()

    def _is_taken(self, but: int) -> bool:
        try:
            self._writer.flush(block_until_num_items=but, timeout_ms=_FLUSH_TIMEOUT_MS)
            return True
        except reverb.DeadlineExceededError:
            return False

    def _reconnect(self) -> None:
        """Waits until a server listens, and sends it what the last one had not confirmed."""
        # The old stream must go: it would go on trying, and gRPC waits longer after each time, up to two minutes.
        self._writer.close()
        self._writer, self._columns = None, []
        what, begun = f'the replay server at {self._address}', time.monotonic()
        logging.warning('lost %s', what)
        wait_until(lambda: is_listening(self._address), what, self._server_timeout_secs, self._stop)
        connection.wait_for_table(self._address, REPLAY, self._storage.signature, self._server_timeout_secs, self._stop)
        self._open()
        if self._pending:
            self._send(self._pending)
        away_secs = time.monotonic() - begun
        logging.warning('%s is back after %.0f s; %d chunks are sent again', what, away_secs, len(self._pending))


@dataclasses.dataclass(frozen=True)
class _Sent:
    """A chunk, for all tables; or a part of one, for the stream."""

    chunk: np.ndarray
    is_part: bool = False


class _Wait:
    """What a held back write waits for: the learner, by the rate limiter; or a server that does not answer."""

    def __init__(self, address: str):
        self._address = address
        self._answered_at = self._asked_at = self._logged_at = time.monotonic()

    def server_is_there(self) -> bool:
        """Looks, once a second, whether the server listens and answers."""
        now = time.monotonic()
        if now - self._asked_at < _PROBE_SECS:
            return True
        self._asked_at = now
        if not is_listening(self._address):
            return False
        if connection.server_info(self._address):  # which also wakes a stream that a short restart has cut
            self._answered_at = now
            if now - self._logged_at >= LOG_EVERY_SECS:
                self._logged_at = now
                logging.info('the replay at %s holds steps back until the learner draws', self._address)
        # It listens but cannot be asked: it hangs, or it was away for so long that gRPC waits before it tries again.
        return time.monotonic() - self._answered_at < _MAX_SILENT_SECS
