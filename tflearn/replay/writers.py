"""ReplayWriter: steps of a batched environment -> chunks in the replay tables."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import reverb
from absl import logging

from tflearn.replay import connection
from tflearn.replay.chunks import ChunkBuilder
from tflearn.replay.storage import Storage
from tflearn.waiting import LOG_EVERY_SECS, Stopped

_MAX_PENDING_STEPS = 256
_MAX_CHUNK_SECS = 2.0
_FLUSH_TIMEOUT_MS = 200


class ReplayWriter:
    """Observer that writes trajectories [B, ...] to the replay server; waits while the rate limiter says so."""

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
          address: the replay server, 'host:port'.
          storage: of the run.
          num_environments: B.
          stop: when set, a blocked write ends with `waiting.Stopped`.
          keep_waiting: asked five times a second while a write is held back; False ends it likewise.
          server_timeout_secs: how long to look for a server that went away.
        """
        self._address, self._storage = address, storage
        self._stop, self._keep_waiting = stop, keep_waiting
        self._server_timeout_secs = server_timeout_secs
        self._max_pending = max(1, _MAX_PENDING_STEPS // storage.num_starts)
        self._pending = 0
        self.num_sequences = 0
        prioritization = storage.experience.prioritization
        self._priority = prioritization.initial_priority if prioritization else 1.0
        self._chunks = ChunkBuilder(storage.experience, storage.num_starts, num_environments, storage.layout.num_bytes)
        # Validation asks the server for its signatures first, without a deadline; `wait_for_table` has compared them.
        self._writer = reverb.Client(address).trajectory_writer(num_keep_alive_refs=1, validate_items=False)

    def __call__(self, trajectory: Any, policy_version: int) -> None:
        """Writes one step of every environment.

        Args:
          trajectory: tf_agents Trajectory of numpy arrays [B, ...], boundary rows included.
          policy_version: of the weights that acted.

        Raises:
          Stopped: if `stop` or `keep_waiting` said so while the write was held back.
          TimeoutError: if the server went away and did not come back.
        """
        step_type, discount = np.asarray(trajectory.step_type), np.asarray(trajectory.discount)
        versions = np.full(len(step_type), policy_version, np.int64)
        begins = np.zeros(len(step_type), np.uint8)
        packed = self._storage.layout.pack({'begins': begins, 'policy_version': versions, 'trajectory': trajectory})
        self._insert(self._chunks.append(packed, step_type, discount))
        self._insert(self._chunks.take_older_than(_MAX_CHUNK_SECS))
        if self._pending >= self._max_pending:
            self._wait_until_taken()

    def _insert(self, chunks: Sequence[np.ndarray]) -> None:
        for chunk in chunks:
            self._writer.append({'chunk': chunk})
            item = {'chunk': self._writer.history['chunk'][-1]}
            for table in self._storage.table_names:
                self._writer.create_item(table, self._priority, item)
            self._pending += 1
            self.num_sequences += int(np.count_nonzero(chunk[:, 0]))

    def flush(self) -> None:
        """Inserts what is gathered, and waits until all of it is in the tables.

        Raises:
          Stopped: if `stop` or `keep_waiting` said so meanwhile.
          TimeoutError: if the server went away and did not come back.
        """
        self._insert(self._chunks.take_older_than(-1.0))
        self._wait_until_taken()

    def _wait_until_taken(self) -> None:
        """Waits for the server; Reverb itself sends again what a lost one had not taken."""
        wait = _Wait(self._address, self._server_timeout_secs)
        while True:
            try:
                self._writer.flush(timeout_ms=_FLUSH_TIMEOUT_MS)
                break
            except reverb.DeadlineExceededError:
                if self._stop.is_set() or not self._keep_waiting():
                    raise Stopped('stopped with steps that the replay had not taken yet') from None
                wait.check()
        self._pending = 0


class _Wait:
    """What a held back write waits for: the learner, by the rate limiter; or a server that went away."""

    def __init__(self, address: str, server_timeout_secs: float):
        self._address, self._server_timeout_secs = address, server_timeout_secs
        self._answered_at = self._asked_at = time.monotonic()

    def check(self) -> None:
        """Asks the server every ten seconds; raises TimeoutError when it has not answered for too long."""
        now = time.monotonic()
        if now - self._asked_at < min(LOG_EVERY_SECS, self._server_timeout_secs):
            return
        self._asked_at = now
        if connection.server_info(self._address):
            self._answered_at = now
            logging.info('the replay at %s holds steps back until the learner draws', self._address)
            return
        waited_secs = now - self._answered_at
        if waited_secs >= self._server_timeout_secs:
            raise TimeoutError(f'waited {waited_secs:.0f} s in vain for the replay server at {self._address}')
        logging.warning('waiting for the replay server at %s (%.0f s)', self._address, waited_secs)
