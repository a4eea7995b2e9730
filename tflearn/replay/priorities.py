"""Errors -> priorities of items and weights of their losses, and the thread that sends priorities to the replay server.

Schaul et al. 2016, "Prioritized Experience Replay" (arXiv 1511.05952), sections 3.3 and 3.4, the proportional variant.
It differs from the paper in two ways: errors are clipped and divided by their bound, so that the maximum priority is
always 1; and priorities arrive a few train steps late, since batches are drawn ahead and updates are asynchronous.
"""

import collections
import threading
import time

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core import background
from tflearn.core.experience import Prioritization, Scheduled
from tflearn.core.waiting import LOG_EVERY_SECS
from tflearn.replay import backend

_MAX_WAITING = 256
_MAX_ITEMS_PER_UPDATE = 16_384
_RETRY_SECS = 0.5


def _value(scheduled: Scheduled, step: tf.Tensor) -> tf.Tensor | float:
    return scheduled(step) if callable(scheduled) else scheduled


def importance_weights(prioritization: Prioritization, expected: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Returns (N P)^-beta, not normalized. For a graph.

    Args:
      expected: float32 [...], N P: the number of items in the table times the item's probability.
      step: int64 scalar, the train step.
    """
    return tf.pow(expected, -tf.cast(_value(prioritization.beta, step), tf.float32))


def priorities(prioritization: Prioritization, errors: np.ndarray, step: int) -> np.ndarray:
    """Returns (min(|error| + epsilon, max_error) / max_error)^alpha.

    Args:
      errors: float [...], finite.

    Returns:
      float64, of the shape of `errors`, in [0, 1].
    """
    train_step = tf.constant(step, tf.int64)
    alpha, epsilon = (float(_value(value, train_step)) for value in (prioritization.alpha, prioritization.epsilon))
    sizes = np.minimum(np.abs(errors.astype(np.float64)) + epsilon, prioritization.max_error)
    return (sizes / prioritization.max_error) ** alpha


def num_clipped(prioritization: Prioritization, errors: np.ndarray) -> int:
    """Returns how many finite errors are of `max_error` or more, so that all their priorities are 1."""
    return int((np.abs(errors) >= prioritization.max_error).sum())


_Errors = tuple[int, np.ndarray, np.ndarray]  # a train step, the keys of items [n], and their errors at that step


class PriorityUpdater:
    """Sends new priorities to the replay server in batches, on its own thread.

    Training never waits for it: if the server is too slow, newer updates replace the oldest ones. While the server is
    down Reverb waits for it, and continues when it is back. Items that the table no longer holds are ignored.
    """

    def __init__(self, address: str, table: str, prioritization: Prioritization, max_waiting: int = _MAX_WAITING):
        """Sends nothing yet; if more than `max_waiting` updates wait, the oldest are dropped."""
        priorities(prioritization, np.zeros(1), 0)  # a schedule that fails should do so here, not on the thread
        self._address, self._table, self._prioritization = address, table, prioritization
        self._max_waiting = max_waiting
        self._client = backend.connect(address)
        # A daemon: it may wait for a lost server without a deadline.
        self._sender = background.Background('replay_priorities', daemon=True)
        self._closed = threading.Event()
        self._lock = threading.Lock()  # guards what waits, and the counts
        self._waiting: collections.deque[_Errors] = collections.deque()
        self._counts = dict.fromkeys((f'priorities_{name}' for name in ('sent', 'dropped', 'clipped', 'not_finite')), 0)
        self._sending_since: float | None = None
        self._warned_at = 0.0

    def update(self, step: int, keys: np.ndarray, errors: np.ndarray) -> None:
        """Schedules an update of items' priorities, and returns immediately.

        Args:
          keys: uint64 [...], the items' keys.
          errors: float [...], the items' errors. Items whose error is not finite keep their priority.

        Raises:
          RuntimeError: if the thread has failed.
        """
        try:
            self._sender.raise_failure()
        except Exception as error:
            raise RuntimeError('got a failed thread of priority updates') from error
        keys, errors = keys.ravel(), errors.ravel()
        finite = np.isfinite(errors)
        with self._lock:
            self._counts['priorities_not_finite'] += len(errors) - int(finite.sum())
            self._counts['priorities_clipped'] += num_clipped(self._prioritization, errors[finite])
            if self._closed.is_set() or not finite.any():
                return
            if len(self._waiting) >= self._max_waiting:
                self._counts['priorities_dropped'] += len(self._waiting.popleft()[1])
            self._waiting.append((step, keys[finite], errors[finite]))
        self._sender.submit(self._send_all)
        self._warn_if_late()

    def metrics(self) -> dict[str, int]:
        """Returns how many were sent, dropped because the server was slow, clipped, and ignored as not finite."""
        with self._lock:
            return dict(self._counts)

    def flush(self, timeout_secs: float) -> bool:
        """Waits until the server has all updates. Returns whether that was so within `timeout_secs`."""
        try:
            self._sender.join(timeout_secs)
        except TimeoutError:
            return False
        return True

    def close(self, timeout_secs: float = 5.0) -> None:
        """Sends the last updates, for at most `timeout_secs`, and ends the thread. May be called twice."""
        if not self._closed.is_set() and not self.flush(timeout_secs):
            logging.warning('the replay server at %s did not receive the last priorities', self._address)
        with self._lock:
            self._closed.set()
            self._waiting.clear()

    def _send_all(self) -> None:
        while taken := self._take():
            self._sending_since = time.monotonic()
            try:
                self._send(taken)
            finally:
                self._sending_since = None

    def _take(self) -> list[_Errors]:
        taken, num_items = [], 0
        with self._lock:
            while self._waiting and num_items < _MAX_ITEMS_PER_UPDATE:
                taken.append(self._waiting.popleft())
                num_items += len(taken[-1][1])
        return taken

    def _send(self, taken: list[_Errors]) -> None:
        updates: dict[int, float] = {}
        for step, keys, errors in taken:  # oldest first, so that the latest wins
            values = priorities(self._prioritization, errors, step)
            updates.update(zip(keys.tolist(), values.tolist(), strict=True))
        try:
            self._client.update(self._table, updates)  # may wait for a lost server without a deadline
            name = 'priorities_sent'
        except RuntimeError as error:
            name = 'priorities_dropped'
            logging.warning('could not update priorities at %s; training continues: %s', self._address, error)
            self._closed.wait(_RETRY_SECS)
        with self._lock:
            self._counts[name] += sum(len(keys) for _, keys, _ in taken)

    def _warn_if_late(self) -> None:
        now, since = time.monotonic(), self._sending_since
        if since is not None and now - max(since, self._warned_at) >= LOG_EVERY_SECS:
            self._warned_at = now
            dropped = self._counts['priorities_dropped']
            logging.warning(
                'the replay server at %s has not received priorities for %.0f s; training continues; %d dropped so far',
                self._address,
                now - since,
                dropped,
            )
