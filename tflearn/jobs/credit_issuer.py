"""CreditIssuer: the learner's credits; grants them, and takes back those of lost collectors."""

import contextlib
import math
import threading
import time
from collections.abc import Sequence

import tensorflow as tf
from absl import logging

from tflearn.coordinator import control, reports
from tflearn.coordinator.client import Coordinator
from tflearn.coordinator.credits import CreditLedger
from tflearn.coordinator.weights_reader import Lost
from tflearn.core import background, strategies
from tflearn.core.experience import Experience
from tflearn.replay import backend
from tflearn.replay.storage import REPLAY
from tflearn.sampling.source import Source

_POLL_SECS = 0.25
_HEARTBEAT_SECS = 1.0
_CLOSE_SECS = 5.0
_DROPPED = 'stale_sequences_of_workers'


class CreditIssuer:
    """Keeps a session's ledger on its own thread.

    Of several workers only the chief grants credits, for all of them; the others report the items that they drop.
    """

    def __init__(self, coordinator: Coordinator, source: Source, ledger: CreditLedger, worker: int, num_workers: int):
        """Sends nothing yet.

        Args:
          coordinator: the run's coordinator, which has taken this job in.
          source: the source of the batches, which come from queues.
          ledger: the session's ledger.
          worker: this worker's index; 0 is the chief.
          num_workers: the number of workers that take batches.
        """
        self._coordinator, self._source, self._ledger = coordinator, source, ledger
        self._worker, self._num_workers = worker, num_workers
        self._lock = threading.Lock()
        self._arrivals = _Arrivals(source.addresses)
        self._reports: reports.ReportReader  # set by `start`
        self._reporter = reports.Reporter(coordinator)
        self._dropped_before = 0
        self._sent: control.Credits | None = None
        self._sent_to = ''
        self._closed, self._wake = threading.Event(), threading.Event()
        self._thread = background.Thread(target=self._run, name='credit_issuer')

    @staticmethod
    def make(
        coordinator: Coordinator,
        source: Source,
        experience: Experience,
        publish_steps: int,
        strategy: tf.distribute.Strategy,
    ) -> 'CreditIssuer | None':
        """Returns the issuer of a session; None if its collectors need no credits.

        Args:
          coordinator: see the constructor.
          source: the source of the batches.
          experience: the run's experience settings.
          publish_steps: train steps between two publications of the weights.
          strategy: the strategy that trains.
        """
        if experience.versions_ahead is None:
            return None
        layout = strategies.layout(strategy)
        batch_size = experience.per_replica_batch_size * layout.replicas
        items = math.ceil(publish_steps / source.steps_per_batch) * batch_size
        ledger = CreditLedger(items, experience.versions_ahead)
        logging.info('collectors make %d items in all with each version of the weights', items)
        return CreditIssuer(coordinator, source, ledger, layout.worker, layout.workers)

    def start(self, reader: reports.ReportReader) -> None:
        """Begins to send and receive; call it after a checkpoint was restored.

        Args:
          reader: reads the reports; it holds the checkpoint's counts.
        """
        self._reports = reader
        self._dropped_before = reader.count(_DROPPED)
        self._thread.start()

    def renew(self, report: control.Report) -> None:
        """Processes a report. May be called from any thread."""
        with self._lock:
            self._ledger.renew(report)

    def publish(self, policy_version: int) -> None:
        """Grants the items that a new version of the weights adds; never waits for the server."""
        with self._lock:
            self._ledger.publish(policy_version, self._source.used_and_dropped()[0] * self._num_workers)
        self._wake.set()

    def close(self) -> None:
        """Stops granting credits."""
        self._closed.set()
        self._wake.set()
        if self._thread.ident:
            self._thread.join(_CLOSE_SECS)

    def _run(self) -> None:
        act = self._issue if self._worker == 0 else self._report
        polled_at = 0.0
        while not self._closed.is_set():
            self._wake.clear()
            try:
                polled_at = act(polled_at)
            except Exception:  # without this thread collectors would wait forever
                logging.exception('could not grant credits through %s', self._coordinator.what)
            self._wake.wait(_POLL_SECS)

    def _issue(self, polled_at: float) -> float:
        """Sends new credits and polls for reports. Returns the time of the last poll."""
        now = time.monotonic()
        if now - polled_at >= _POLL_SECS:
            polled_at = now
            self._poll()
        with self._lock:
            newest, wanted = self._ledger.credits, self._ledger.wanted
        if not wanted:  # there are no weights yet
            return polled_at
        incarnation = self._coordinator.incarnation
        if self._sent is None or self._sent_to != incarnation or not _follows(self._sent, newest):
            with contextlib.suppress(Lost):
                self._coordinator.put_credits(newest)
                self._sent, self._sent_to = newest, incarnation
        return polled_at

    def _poll(self) -> None:
        self._reports.read()
        arrived = self._arrivals.count()  # after the reports
        if arrived is None:
            return
        dropped = self._source.used_and_dropped()[1] + self._reports.count(_DROPPED) - self._dropped_before
        with self._lock:
            self._ledger.reconcile(dropped, arrived)

    def _report(self, polled_at: float) -> float:
        """Reports the items that this worker has dropped; for workers other than the chief."""
        if time.monotonic() - polled_at < _HEARTBEAT_SECS:
            return polled_at
        self._reporter.report({_DROPPED: self._source.used_and_dropped()[1]}, [])
        return time.monotonic()


def _follows(sent: control.Credits, newest: control.Credits) -> bool:
    """Returns whether `newest` follows from the message `sent`, so that it need not be sent."""
    known = sent.at(newest.policy_version)
    return (known.shares, known.surplus) == (newest.shares, newest.surplus)


class _Arrivals:
    """Counts the items that are in the queues or were drawn since the first poll, across restarts of servers."""

    def __init__(self, addresses: Sequence[str]):
        self._addresses = addresses
        self._draws: dict[str, int] = {}  # by the server's own count
        self._total = 0
        self._answered_at = dict.fromkeys(addresses, time.monotonic())

    def count(self) -> int | None:
        """Returns the number of items; None while a server does not answer, perhaps because it is busy."""
        waiting = 0
        for address in self._addresses:
            tables, now = backend.counts(address), time.monotonic()
            if tables is not None:
                draws = tables[REPLAY].samples
                before = self._draws.get(address, draws)
                # Less: it was restored, with the count of its checkpoint. What it has given since is left out.
                self._total += max(0, draws - before)
                self._draws[address], self._answered_at[address] = draws, now
                waiting += tables[REPLAY].size
            elif now - self._answered_at[address] < control.LEASE_SECS:
                return None  # (items of a server that is gone have to be made again)
        return self._total + waiting
