"""ReplayWriter: steps of a batched environment -> items of the replay table.

Each environment has its own stream. Items never cross the end of an episode; its last observation is in the boundary
row (LAST -> FIRST) that ends its last item. A truncated episode of fewer rows than an item makes none.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import reverb
from absl import logging

from tflearn.experience import Experience
from tflearn.replay import connection, rows, tables
from tflearn.waiting import LOG_EVERY_SECS, Stopped

_MAX_PENDING_ITEMS = 64
_FLUSH_TIMEOUT_MS = 200
_LAST, _TERMINATED = 2, 0.0


class _Stream:
    """The rows of one environment's current episode, and the items that they make."""

    def __init__(self, client: reverb.Client, experience: Experience):
        self._length, self._stride = experience.sequence_length, experience.stride
        # Validation asks the server for its signatures first, without a deadline; `wait_for_table` has compared them.
        self.writer = client.trajectory_writer(num_keep_alive_refs=self._length, validate_items=False)
        # A chunk is what the server unpacks to serve a row: no longer than what an item needs.
        self.writer.configure(('rows',), num_keep_alive_refs=self._length, max_chunk_length=max(1, self._length // 2))
        self._num_rows = 0
        self._terminated = False
        self.in_episode = False

    def append(self, row: np.ndarray, first: bool, boundary: bool, discount: float) -> int:
        """Takes in one row. Returns how many items it completed."""
        if not self.in_episode:
            if not first:  # the rest of an episode whose beginning is lost
                return 0
            self.in_episode = True
        num_items = self._append(row)
        if not boundary:
            self._terminated = discount == _TERMINATED
            return num_items
        # After termination nothing is bootstrapped, so repeating the boundary row lets each last step begin an item
        # too. After truncation it would change how far the bootstrapped value is discounted.
        if self._terminated:
            for _ in range(self._length - 2):
                num_items += self._append(row)
        if self._stride > 1 and self._num_rows > self._length and (self._num_rows - self._length) % self._stride:
            num_items += self._create_item()  # the stride stepped over the end
        self._num_rows = 0
        self.in_episode = False
        return num_items

    def _append(self, row: np.ndarray) -> int:
        self.writer.append({'rows': row})
        self._num_rows += 1
        excess = self._num_rows - self._length
        if excess < 0 or excess % self._stride:
            return 0
        return self._create_item()

    def _create_item(self) -> int:
        self.writer.create_item(tables.REPLAY, 1.0, {'rows': self.writer.history['rows'][-self._length :]})
        return 1


class ReplayWriter:
    """Observer that writes trajectories [B, ...] to the replay server; waits while the rate limiter says so."""

    def __init__(
        self,
        address: str,
        experience: Experience,
        layout: rows.RowLayout,
        num_environments: int,
        stop: threading.Event,
        keep_waiting: Callable[[], bool] = lambda: True,
        server_timeout_secs: float = 300.0,
    ):
        """Opens one stream per environment; the server must be there (see `connection.wait_for_table`).

        Args:
          address: the replay server, 'host:port'.
          experience: what an item is.
          layout: of the rows.
          num_environments: B.
          stop: when set, a blocked write ends with `waiting.Stopped`.
          keep_waiting: asked five times a second while a write is held back; False ends it likewise.
          server_timeout_secs: how long to look for a server that went away.
        """
        self._address, self._layout = address, layout
        self._stop, self._keep_waiting = stop, keep_waiting
        self._server_timeout_secs = server_timeout_secs
        self._pending = 0
        self.num_items = 0
        client = reverb.Client(address)
        self._streams = [_Stream(client, experience) for _ in range(num_environments)]

    def __call__(self, trajectory: Any, policy_version: int) -> None:
        """Writes one step of every environment.

        Args:
          trajectory: tf_agents Trajectory of numpy arrays [B, ...], boundary rows included.
          policy_version: of the weights that acted.

        Raises:
          Stopped: if `stop` or `keep_waiting` said so while the rate limiter held the write back.
          TimeoutError: if the server went away and did not come back.
        """
        versions = np.full(len(self._streams), policy_version, np.int64)
        packed = self._layout.pack({'policy_version': versions, 'trajectory': trajectory})
        first = np.asarray(trajectory.step_type) == 0
        boundary = np.asarray(trajectory.step_type) == _LAST
        for i, stream in enumerate(self._streams):
            num_items = stream.append(packed[i], first[i], boundary[i], float(trajectory.discount[i]))
            self._pending += num_items
            self.num_items += num_items
        if self._pending >= _MAX_PENDING_ITEMS:
            self.flush()

    def flush(self) -> None:
        """Waits until all items so far are in the table. Reverb itself sends again what a lost server had not taken.

        Raises:
          Stopped: if `stop` or `keep_waiting` said so meanwhile.
          TimeoutError: if the server went away and did not come back.
        """
        wait = _Wait(self._address, self._server_timeout_secs)
        for stream in self._streams:
            while True:
                try:
                    stream.writer.flush(timeout_ms=_FLUSH_TIMEOUT_MS)
                    break
                except reverb.DeadlineExceededError:
                    if self._stop.is_set() or not self._keep_waiting():
                        raise Stopped('stopped with items that the replay had not taken yet') from None
                    wait.check()
        self._pending = 0

    def close(self) -> None:
        """Ends the streams; items that the limiter still holds back are dropped."""
        self._streams = []


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
            logging.info('the replay at %s holds inserts back until the learner draws', self._address)
            return
        waited_secs = now - self._answered_at
        if waited_secs >= self._server_timeout_secs:
            raise TimeoutError(f'waited {waited_secs:.0f} s in vain for the replay server at {self._address}')
        logging.warning('waiting for the replay server at %s (%.0f s)', self._address, waited_secs)
