"""CreditIssuer: the learner's end of the control protocol: hands out credits, takes back those of lost collectors."""

import dataclasses
import threading
import time

import tensorflow as tf
from absl import logging

from tflearn import control
from tflearn.distribute import strategies
from tflearn.experience import Experience
from tflearn.jobs import batch_source
from tflearn.jobs.batch_source import Source
from tflearn.jobs.credit_ledger import CreditLedger
from tflearn.replay import connection, credits, reports
from tflearn.replay.storage import REPLAY
from tflearn.sampling.queue_source import QueueSource

_LOOK_SECS = 0.25
_HEARTBEAT_SECS = 1.0
_CLOSE_SECS = 5.0
_DROPPED = 'stale_sequences_of_workers'


class CreditIssuer:
    """Keeps the ledger of a session on a thread of its own.

    Only the chief of several workers hands out credits, for all of them; the others report what they drop.
    """

    def __init__(self, address: str, queue: QueueSource, ledger: CreditLedger, worker: int, num_workers: int):
        """Sends nothing yet.

        Args:
          address: of the replay server that carries reports and credits, 'host:port'.
          queue: that the batches come from.
          ledger: of the session.
          worker: this worker's index; 0 is the chief.
          num_workers: workers that take batches.
        """
        self._address, self._queue, self._ledger = address, queue, ledger
        self._worker, self._num_workers = worker, num_workers
        self._lock = threading.Lock()
        self._arrivals = _Arrivals(queue.addresses)
        self._reports: reports.ReportReader  # from `start` on
        self._reporter = reports.Reporter(address, f'train_{worker}')
        self._dropped_before = 0
        self._sent: control.Credits | None = None
        self._sent_at = 0.0
        self._closed, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name='credit_issuer', daemon=True)

    @staticmethod
    def make(
        address: str, source: Source, experience: Experience, publish_steps: int, strategy: tf.distribute.Strategy
    ) -> 'CreditIssuer | None':
        """Returns the issuer of a session; None if its collectors need no credits.

        Args:
          address: see the constructor.
          source: of the batches.
          experience: the run's experience settings.
          publish_steps: train steps between two publications of the weights.
          strategy: that trains.
        """
        queue = batch_source.queue_of(source)
        if queue is None or experience.versions_ahead is None:
            return None
        layout = strategies.layout(strategy)
        items = batch_source.items_per_version(source, experience, layout.replicas, publish_steps)
        before = credits.newest(address)
        lease = control.new_lease('train', epoch=1 + (before.lease.epoch if before else 0))
        ledger = CreditLedger(lease, items, experience.versions_ahead)
        logging.info('collectors make %d items in all with each version of the weights', items)
        return CreditIssuer(address, queue, ledger, layout.worker, layout.workers)

    def start(self, reader: reports.ReportReader) -> None:
        """Begins to send and to receive, once a checkpoint was restored.

        Args:
          reader: reads the reports; the checkpoint's counts are in it.
        """
        self._reports = reader
        self._dropped_before = reader.count(_DROPPED)
        self._thread.start()

    def renew(self, report: control.Report) -> None:
        """Takes in a report. From any thread."""
        with self._lock:
            self._ledger.renew(report)

    def publish(self, policy_version: int) -> None:
        """Grants what a new version of the weights adds; never waits for the server."""
        with self._lock:
            self._ledger.publish(policy_version, self._queue.num_used * self._num_workers)
        self._wake.set()

    def close(self) -> None:
        """Hands out no more."""
        self._closed.set()
        self._wake.set()
        if self._thread.ident:
            self._thread.join(_CLOSE_SECS)

    def _run(self) -> None:
        act = self._issue if self._worker == 0 else self._report
        looked_at = 0.0
        while not self._closed.is_set():
            self._wake.clear()
            try:
                looked_at = act(looked_at)
            except Exception:  # collectors must not wait for ever because this thread died
                logging.exception('could not hand out credits through %s', self._address)
            self._wake.wait(_LOOK_SECS)

    def _issue(self, looked_at: float) -> float:
        """Sends what collectors do not know already, and looks who is alive. Returns when it last looked."""
        now = time.monotonic()
        if now - looked_at >= _LOOK_SECS:
            looked_at = now
            self._look()
        with self._lock:
            newest, wanted = self._ledger.credits, self._ledger.wanted
        if not wanted:  # there are no weights yet
            return looked_at
        if self._sent is None or now - self._sent_at >= _HEARTBEAT_SECS or not _follows(self._sent, newest):
            number = self._sent.number + 1 if self._sent else 0
            message = dataclasses.replace(newest, number=number)
            if credits.send(self._address, message):
                self._sent, self._sent_at = message, now
        return looked_at

    def _look(self) -> None:
        info = connection.server_info(self._address)
        if info is not None:
            self._reports.read(info[reports.REPORTS].current_size)
        arrived = self._arrivals.count()  # after the reports
        if arrived is None:
            return
        dropped = self._queue.num_stale + self._reports.count(_DROPPED) - self._dropped_before
        with self._lock:
            self._ledger.reconcile(dropped, arrived)

    def _report(self, looked_at: float) -> float:
        """Reports what this worker has dropped, if it is not the chief."""
        if time.monotonic() - looked_at < _HEARTBEAT_SECS:
            return looked_at
        self._reporter.report({_DROPPED: self._queue.num_stale}, [])
        return time.monotonic()


def _follows(sent: control.Credits, newest: control.Credits) -> bool:
    """Returns whether those who have the message `sent` know what `newest` says."""
    known = sent.at(newest.policy_version)
    return (known.shares, known.surplus) == (newest.shares, newest.surplus)


class _Arrivals:
    """Counts the items that are in the queues or were drawn from them since the first look, over servers' restarts."""

    def __init__(self, addresses: tuple[str, ...]):
        self._addresses = addresses
        self._draws: dict[str, int] = {}  # by the server's own count
        self._total = 0
        self._answered_at = dict.fromkeys(addresses, time.monotonic())

    def count(self) -> int | None:
        """Returns the number; None while a server does not answer that may only be busy."""
        waiting = 0
        for address in self._addresses:
            info, now = connection.server_info(address), time.monotonic()
            if info is not None:
                draws = info[REPLAY].rate_limiter_info.sample_stats.completed
                before = self._draws.get(address, draws)
                self._total += draws - before if draws >= before else draws
                self._draws[address], self._answered_at[address] = draws, now
                waiting += info[REPLAY].current_size
            elif now - self._answered_at[address] < control.LEASE_SECS:
                return None  # (what waits in a server that is gone has to be made again)
        return self._total + waiting
