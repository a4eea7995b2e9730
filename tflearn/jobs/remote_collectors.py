"""RemoteCollectors: a train job's collectors in other processes:
weights and credits to them, reports back.
"""

import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.coordinator import control, reports
from tflearn.coordinator.client import Coordinator
from tflearn.coordinator.published_weights import PRETRAINING, Publisher
from tflearn.coordinator.reports import CreditLedger
from tflearn.coordinator.weights_transport import CoordinatorLost
from tflearn.core import background, strategies
from tflearn.core.experience import Experience
from tflearn.core.types import Agent
from tflearn.core.waiting import LEASE_SECS
from tflearn.files.manifests import LEARNER, Manifests
from tflearn.files.run_dir import RunDir
from tflearn.jobs.collectors import Collectors, used_up_reason
from tflearn.jobs.train_settings import Intervals
from tflearn.policies.variables import published_variables
from tflearn.replay import backend
from tflearn.replay.storage import REPLAY, ReplayStatistics, Storage, TableHistory
from tflearn.sampling.source import Source

_POLL_SECS = 0.25
_HEARTBEAT_SECS = 1.0
_CLOSE_SECS = 5.0
_DROPPED = 'stale_sequences_of_workers'


class CreditIssuer:
    """Keeps a session's ledger on its own thread.

    Of several workers only the chief grants credits, for all of them; the others report the items
    that they drop.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        source: Source,
        experience: Experience,
        versions_ahead: int,
        publish_steps: int,
        strategy: tf.distribute.Strategy,
    ):
        """Sends nothing yet.

        Args:
          coordinator: the run's coordinator, which has taken this job in.
          source: the source of the batches, which come from queues.
          experience: the run's experience settings.
          versions_ahead: see `Queue`.
          publish_steps: train steps between two publications of the weights.
          strategy: the strategy that trains.
        """
        layout = strategies.layout(strategy)
        self._worker, self._num_workers = layout.worker, layout.workers
        batch_size = experience.per_replica_batch_size * layout.replicas
        items = math.ceil(publish_steps / source.steps_per_batch) * batch_size
        self._coordinator, self._source, self._ledger = coordinator, source, CreditLedger(items, versions_ahead)
        logging.info('collectors make %d items in all with each version of the weights', items)
        self._lock = threading.Lock()
        self._arrivals = _Arrivals(source.addresses)
        self._reports: reports.ReportReader  # set by `start`
        self._reporter = reports.Reporter(coordinator)
        self._dropped_before = 0
        self._sent: control.Credits | None = None
        self._sent_to, self._acted_at = '', 0.0
        self._closed, self._wake = threading.Event(), threading.Event()
        self._thread = background.Thread(target=self._run, name='credit_issuer')

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
        while not self._closed.is_set():
            self._wake.clear()
            try:
                act()
            except Exception:  # without this thread collectors would wait forever
                logging.exception('could not grant credits through %s', self._coordinator.what)
            self._wake.wait(_POLL_SECS)

    def _issue(self) -> None:
        """Sends new credits and polls for reports."""
        if time.monotonic() - self._acted_at >= _POLL_SECS:
            self._acted_at = time.monotonic()
            self._poll()
        with self._lock:
            newest, wanted = self._ledger.credits, self._ledger.wanted
        incarnation = self._coordinator.incarnation
        if not wanted:  # there are no weights yet
            return
        if self._sent is None or self._sent_to != incarnation or not _follows(self._sent, newest):
            with contextlib.suppress(CoordinatorLost):
                self._coordinator.put_credits(newest)
                self._sent, self._sent_to = newest, incarnation

    def _poll(self) -> None:
        self._reports.read()
        arrived = self._arrivals.count()  # after the reports
        if arrived is None:
            return
        dropped = self._source.used_and_dropped()[1] + self._reports.count(_DROPPED) - self._dropped_before
        with self._lock:
            self._ledger.reconcile(dropped, arrived)

    def _report(self) -> None:
        """Reports the items that this worker, which is not the chief, has dropped."""
        if time.monotonic() - self._acted_at >= _HEARTBEAT_SECS:
            self._reporter.report({_DROPPED: self._source.used_and_dropped()[1]}, [])
            self._acted_at = time.monotonic()


def _follows(sent: control.Credits, newest: control.Credits) -> bool:
    """Returns whether `newest` follows from the message `sent`, so that it need not be sent."""
    known = sent.at(newest.policy_version)
    return (known.shares, known.surplus) == (newest.shares, newest.surplus)


class _Arrivals:
    """Counts the items that are in the queues or were drawn since the first poll,
    across restarts of servers.
    """

    def __init__(self, addresses: Sequence[str]):
        self._addresses = addresses
        self._draws: dict[str, int] = {}  # by the server's own count
        self._total = 0
        self._answered_at = dict.fromkeys(addresses, time.monotonic())

    def count(self) -> int | None:
        """Returns the number of items; None while a server does not answer,
        perhaps because it is busy.
        """
        waiting = 0
        for address in self._addresses:
            tables, now = backend.counts(address), time.monotonic()
            if tables is not None:
                draws = tables[REPLAY].samples
                before = self._draws.get(address, draws)
                # Less: it was restored, with the count of its checkpoint. What it has given since
                # is left out.
                self._total += max(0, draws - before)
                self._draws[address], self._answered_at[address] = draws, now
                waiting += tables[REPLAY].size
            elif now - self._answered_at[address] < LEASE_SECS:
                return None  # (items of a server that is gone have to be made again)
        return self._total + waiting


_LAST_POLL_SECS = 5.0
_LAST_SEND_SECS = 15.0


class RemoteCollectors(Collectors):
    """See `Collectors`. Of several workers only the chief publishes and reads reports."""

    are_remote = True

    def __init__(
        self,
        run_dir: RunDir,
        coordinator: Coordinator,
        agent: Agent,
        storage: Storage,
        source: Source,
        strategy: tf.distribute.Strategy,
        intervals: Intervals,
        server_timeout_secs: float,
    ):
        """Sends nothing yet.

        Args:
          run_dir: the run's directory, or this worker's own one.
          coordinator: the run's coordinator, which has taken this job in.
          agent: the agent that is trained.
          storage: the replay tables' layout.
          source: the source of the batches.
          strategy: the strategy that the agent was made in.
          intervals: how often the session does something.
          server_timeout_secs: see `Data`.
        """
        super().__init__()
        self.publish_interval_steps = intervals.publish_interval_steps
        self._most_per_call = source.steps_of_call(intervals.most_per_call)
        self._run_dir, self._storage = run_dir, storage
        self._chief = strategies.layout(strategy).is_chief
        self._coordinator, self._timeout_secs = coordinator, server_timeout_secs
        self._history = TableHistory(storage)
        variables = published_variables(agent.collect_policy)
        self._publisher = Publisher(coordinator, variables)
        self._credits: CreditIssuer | None = None
        if (ahead := storage.experience.versions_ahead) is not None:
            steps = intervals.publish_interval_steps
            self._credits = CreditIssuer(coordinator, source, storage.experience, ahead, steps, strategy)
        on_report = self._credits.renew if self._credits else lambda report: None
        self._reports = reports.ReportReader(coordinator, on_report, num_episodes=intervals.mean_episodes)
        self._polled: dict[str, Any] = {}
        self.manifests = Manifests(
            run_dir.root, run_dir.manifests, LEARNER, run_dir.epoch, read_only=not self._chief, store=run_dir.store
        )

    @property
    def env_steps(self) -> int:
        """See `Collectors`."""
        return self._reports.env_steps

    @property
    def mean_return(self) -> float | None:
        """See `Collectors`."""
        return self._reports.mean_return

    def state(self) -> Mapping[str, Any]:
        """See `Collectors`."""
        return {'reports': self._reports, 'progress': self.progress}

    def newest_version(self) -> int:
        """See `Collectors`."""
        return self._publisher.newest_version()

    def begin(self, step: int) -> None:
        """See `Collectors`. They gather the first data while the learner is traced."""
        if self._chief:
            # The coordinator learns how many steps the run has, of which there may be a limit.
            self._reports.read()
        if self._credits:
            self._credits.start(self._reports)

    def due_steps(self, source: Source) -> int:
        """See `Collectors`: the source waits for the data of as many steps."""
        return self._most_per_call

    def publish(self, step: int, pretrains: bool, finished: bool) -> None:
        """See `Collectors`."""
        self._run_dir.check_owner()
        version = self.progress.policy_version = max(self.progress.policy_version, self._publisher.least_version)
        if self._credits and not finished:
            self._credits.publish(version)
        if self._chief:
            version = PRETRAINING if pretrains and not finished else version
            self._publisher.publish(step, version, self._reports.env_steps, finished)

    def poll(self) -> None:
        """See `Collectors`."""
        if self._chief:
            self._reports.read()
        tables = self._coordinator.counts()
        until_then = 'training continues while there are data (train.Data.timeout_secs)'
        self._coordinator.check(until_then, self._timeout_secs, self._history)
        if tables is None:
            return
        self._history.update(tables)
        replay = ReplayStatistics.of(tables[REPLAY], self._storage)
        self._polled = {'replay_size': replay.size}
        if not self._storage.mirrored:  # else the server's samples are the items that mirrors have read
            self._polled['samples_per_insert'] = replay.samples_per_insert

    def end_reason(self, used_up: bool) -> str | None:
        """See `Collectors`."""
        if self._reports.collection_ended and used_up:
            return used_up_reason(self._reports.env_steps_limit)
        return None

    def metrics(self) -> dict[str, Any]:
        """See `Collectors`."""
        return {**self._reports.metrics(), 'collectors': self._reports.num_live, **self._polled}

    def close(self) -> None:
        """See `Collectors`."""
        if self._credits:
            self._credits.close()

    def end(self, finished: bool) -> None:
        """See `Collectors`."""
        self._publisher.close(_LAST_SEND_SECS if finished else _LAST_POLL_SECS)
