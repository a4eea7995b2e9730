"""Reports from collectors to the learner: environment steps, the metrics of episodes.
And the credits that answer them.

Each report holds the collector's counts since its own start, not differences, so lost or repeated
reports cause no error. Episodes are numbered, and a collector keeps each until the learner has
acknowledged it: none is lost or counted twice when the coordinator is started again. The run's
total is the sum over all collectors that ever reported. What is kept of a collector that has not
reported for `control.FORGET_SECS` is its part of the total. So a collector whose reports did not
arrive for half of that time continues as a new one, which counts from its last report on.

Credits are the items that the learner wants: a ledger divides them among the collectors whose
reports renew their leases, and a reader tells each of its own.
"""

import dataclasses
import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.coordinator import control
from tflearn.coordinator.client import Coordinator, Restarted
from tflearn.coordinator.control import ENV_STEPS, ENV_STEPS_LIMIT, Credits, Leases, Report, Share, allocate
from tflearn.coordinator.weights_transport import CoordinatorLost, RequestRefused
from tflearn.core import background
from tflearn.core.waiting import LEASE_SECS

Episode = Mapping[str, float]

MAX_EPISODES = 256  # of a report
_MAX_KEPT = 1000  # episodes that wait for an acknowledgement
_REPORTED = 'reported_episodes'
_FORGOTTEN = 'forgotten'  # stands for all collectors that were forgotten


def now_secs() -> float:
    """Returns the time since the machine's start, also that in which it slept [s]."""
    return time.clock_gettime(getattr(time, 'CLOCK_BOOTTIME', time.CLOCK_MONOTONIC))


class Reporter:
    """The collector's side: one report at a time for all of its environments.
    Each renews its lease.

    Attributes:
      allowed_env_steps: how many environment steps it may take in all, of a limit for all
        collectors. 0 before an answer, and after a report without the limit.
      env_steps_left: how many of the limit nobody had taken yet.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        items_at_once: int = 0,
        lease_secs: float = LEASE_SECS,
        clock: Callable[[], float] = now_secs,
    ):
        """Sends nothing yet. For `items_at_once` see `control.Report`."""
        self._coordinator, self._items_at_once = coordinator, items_at_once
        self._kept: list[Episode] = []  # those that are not acknowledged
        # The number of the first of them, and of the next one to be sent.
        self._first = self._received = 0
        self._sent_to = ''
        self._clock, self._sent_at = clock, clock()
        self._sent: dict[str, float] = {}
        self._before: dict[str, float] = {}  # what was counted under earlier owners
        self.allowed_env_steps, self.env_steps_left = 0.0, math.inf
        self.acquired_lease = control.AcquiredLease(control.new_lease(coordinator.name, lease_secs))

    def report(
        self, counts: Mapping[str, float], episodes: Sequence[Episode], delivered: int = 0, policy_version: int = 0
    ) -> bool:
        """Sends one report. Returns whether the coordinator has it.

        Args:
          counts: counts and seconds since this collector's start, to be summed over collectors:
            'env_steps', and more.
          episodes: the episodes that ended since the last report, each as metrics by name:
            'return', and more.
          delivered: items made under the lease that are in the replay.
          policy_version: see `control.Report`.
        """
        self._kept += [_finite(episode) for episode in episodes]
        self._drop(len(self._kept) - _MAX_KEPT)
        if self._clock() - self._sent_at > self.acquired_lease.lease.forget_secs / 2:
            self.acquired_lease.restart()
            self._before, self._sent_at = {**self._sent, ENV_STEPS_LIMIT: 0}, self._clock()
        own = {name: count - self._before.get(name, 0) for name, count in counts.items()}
        if ENV_STEPS_LIMIT not in counts:
            self.allowed_env_steps = 0.0
        try:
            try:
                self._send(own, delivered, policy_version)
            except Restarted:
                self._send(own, delivered, policy_version)
        except (CoordinatorLost, RequestRefused) as error:
            logging.log_every_n_seconds(logging.WARNING, 'could not report: %s', 60, error)
            return False
        self.acquired_lease.renew()
        self._sent, self._sent_at = {**counts}, self._clock()
        return True

    def _send(self, counts: Mapping[str, float], delivered: int, policy_version: int) -> None:
        if self._sent_to != self._coordinator.incarnation:  # it has none of those that are kept
            self._sent_to, self._received = self._coordinator.incarnation, self._first
        first = max(self._first, self._received)
        episodes = [{**each} for each in self._kept[first - self._first :][:MAX_EPISODES]]
        lease, items = self.acquired_lease.lease, self._items_at_once
        answer = self._coordinator.report(
            control.Report(lease, counts, episodes, delivered, items, first, policy_version)
        )
        self._received = answer['received']
        if ENV_STEPS_LIMIT in counts:
            self.allowed_env_steps = answer['allowed_env_steps'] + self._before.get(ENV_STEPS, 0)
            self.env_steps_left = answer['env_steps_left']
        self._drop(answer['acknowledged'] - self._first)

    def _drop(self, count: int) -> None:
        """Forgets the oldest episodes."""
        if count > 0:
            del self._kept[:count]
            self._first += count


class ReportReader(tf.train.experimental.PythonState):
    """The learner's side. Keeps the run's total counts; belongs in the learner's checkpoint.

    Attributes:
      env_steps_limit: the run's environment steps after which collectors end; None if they do not.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        on_report: Callable[[control.Report], None] = lambda report: None,
        clock: Callable[[], float] = time.monotonic,
        num_episodes: int = 100,
    ):
        """
        Args:
          on_report: called with each report, on the thread that reads it.
          num_episodes: the number of the newest episodes that means are taken over.
          clock: returns the time [s].
        """
        self._coordinator, self._on_report, self._clock = coordinator, on_report, clock
        self.env_steps_limit: int | None = None
        # When a sender will be forgotten, unless it reports.
        self._forgotten_at: dict[str, float] = {}
        self._live_until: dict[str, float] = {}  # collectors
        self._reading, self._read_from, self._after = threading.Lock(), '', 0
        self._next_episodes: dict[str, int] = {}  # the number of the next one of each sender
        self._counts: dict[str, dict[str, float]] = {}
        self._num_newest = num_episodes
        self._episodes: list[Episode] = []

    @property
    def env_steps(self) -> int:
        """The run's environment steps."""
        return self.count('env_steps')

    @property
    def collection_ended(self) -> bool:
        """Whether the collectors have taken all the environment steps that they will take."""
        return self.env_steps_limit is not None and self.env_steps >= self.env_steps_limit

    @property
    def mean_return(self) -> float | None:
        """The mean return of the newest episodes; None before the first has ended."""
        episodes = [episode for episode in self._episodes if 'return' in episode]
        return _mean('return', episodes) if episodes else None

    def metrics(self) -> dict[str, float | None]:
        """Returns the counts, summed over collectors,
        and 'mean_<name>' of the newest episodes' metrics.
        """
        metrics: dict[str, float | None] = {'env_steps': 0, 'mean_return': None}
        for counts in self._counts.values():
            for name, count in counts.items():
                metrics[name] = (metrics.get(name) or 0) + count
        episodes = self._episodes  # another thread may replace them meanwhile
        names = {name: None for episode in episodes for name in episode}
        return metrics | {f'mean_{name}': _mean(name, episodes) for name in names}

    def count(self, name: str) -> int:
        """Returns one of the counts, summed over all senders."""
        return int(sum(counts.get(name, 0) for counts in self._counts.values()))

    def serialize(self) -> str:
        """Returns the counts by collector and the newest episodes as JSON."""
        saved = {'counts': self._counts, 'episodes': self._episodes, ENV_STEPS_LIMIT: self.env_steps_limit}
        return json.dumps({**saved, 'next_episodes': self._next_episodes})

    def deserialize(self, string_value: str) -> None:
        """Restores the counts and episodes of a checkpoint."""
        saved = json.loads(string_value)
        self._counts, self._episodes = saved['counts'], [_finite(episode) for episode in saved['episodes']]
        self.env_steps_limit, self._next_episodes = saved[ENV_STEPS_LIMIT], saved.get('next_episodes', {})
        self._forgotten_at = dict.fromkeys(self._counts.keys() - {_FORGOTTEN}, self._clock() + control.FORGET_SECS)

    @property
    def num_live(self) -> int:
        """The number of collectors whose lease is valid."""
        now = self._clock()
        return sum(until >= now for until in [*self._live_until.values()])

    def read(self) -> None:
        """Reads the new reports, and forgets senders that were silent for too long.
        From any thread.
        """
        with self._reading:
            # A checkpoint may be reading the old ones.
            counts, episodes = {**self._counts}, [*self._episodes]
            next_episodes = {**self._next_episodes}
            reports = self._take()
            for report in reports:
                owner, now, own = report.lease.owner, self._clock(), {**report.counts}
                self.env_steps_limit = int(own.pop(ENV_STEPS_LIMIT, 0)) or self.env_steps_limit
                known = counts.get(owner, {})
                begin = next_episodes.get(owner, report.first_episode)
                new = report.episodes[max(0, begin - report.first_episode) :]
                next_episodes[owner] = max(begin, report.first_episode + len(report.episodes))
                counts[owner] = {name: max(known.get(name, 0), count) for name, count in own.items()}
                if number := known.get(_REPORTED, 0) + len(new):
                    counts[owner][_REPORTED] = number
                episodes += new
                self._forgotten_at[owner] = now + report.lease.forget_secs
                if 'env_steps' in report.counts:
                    self._live_until[owner] = now + report.lease.ttl_secs
            self._forget(counts)
            self._counts, self._episodes = counts, episodes[-self._num_newest :]
            self._next_episodes = {owner: number for owner, number in next_episodes.items() if owner in counts}
        for report in reports:
            self._on_report(report)

    def _forget(self, counts: dict[str, dict[str, float]]) -> None:
        """Adds up the counts of senders that were silent for too long."""
        now = self._clock()
        for owner in [owner for owner, at in self._forgotten_at.items() if now > at]:
            total = counts.setdefault(_FORGOTTEN, {})
            for name, count in counts.pop(owner).items():
                total = counts[_FORGOTTEN] = {**total, name: total.get(name, 0) + count}
            del self._forgotten_at[owner]
            self._live_until.pop(owner, None)

    def _take(self) -> list[control.Report]:
        for _ in range(2):
            if self._read_from != self._coordinator.incarnation:
                self._read_from, self._after = self._coordinator.incarnation, 0
            try:
                env_steps = {owner: int(counts.get(ENV_STEPS, 0)) for owner, counts in self._counts.items()}
                self._after, reports = self._coordinator.reports(self._after, self._next_episodes, env_steps)
                return reports
            except Restarted:
                pass
            except (CoordinatorLost, RequestRefused) as error:
                logging.log_every_n_seconds(logging.WARNING, 'could not read reports: %s', 60, error)
                break
        return []


def _finite(episode: Episode) -> Episode:
    """Returns the metrics that are finite: one that is not would make means of it for as long as it is kept."""
    left_out = [name for name, value in episode.items() if not abs(value) <= control.MAX_METRIC]
    if not left_out:
        return episode
    logging.log_every_n_seconds(
        logging.WARNING,
        'got an episode with %s=%s; need finite numbers; left out of the reported metrics',
        60,
        *(left_out[0], episode[left_out[0]]),
    )
    return {name: value for name, value in episode.items() if name not in left_out}


def _mean(name: str, episodes: Sequence[Episode]) -> float:
    return float(np.mean([episode[name] for episode in episodes if name in episode]))


_WAIT_SECS = 2.0
_RETRY_SECS = 0.5


class CreditLedger:
    """Keeps the credits of all live collectors in balance with the items that the learner wants.
    Not thread-safe.

    In all the learner wants the items that it has used, those that it has dropped as too old, and
    those that it takes
    next: the items between two publications, 1 + `versions_ahead` times. Each of these items has
      arrived in the replay,
    or is owed by a live collector, or is allowed here to one of them. So items owed by a lost
    collector are allowed to the others.
    """

    def __init__(
        self,
        items_per_version: int,
        versions_ahead: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          items_per_version: items that the learner takes between two publications, over all
            workers.
          versions_ahead: see `Queue.versions_ahead`.
          clock: returns the time [seconds].
        """
        self._ahead = (1 + versions_ahead) * items_per_version
        self._leases, self._delivered = Leases(clock), dict[str, int]()
        self._used = self._dropped = 0
        self._wants = False
        self.credits = Credits(0, items_per_version)

    @property
    def wanted(self) -> int:
        """The number of items wanted since the first version."""
        return self._used + self._dropped + self._ahead if self._wants else 0

    def publish(self, policy_version: int, used: int) -> None:
        """Grants the items that a new version of the weights adds.

        Args:
          policy_version: the weights' version.
          used: the items that all workers have used for train steps so far.
        """
        before = self.wanted
        self._wants, self._used = True, used
        self._grant(self.credits.surplus - (self.wanted - before), policy_version)

    def renew(self, report: Report) -> None:
        """Processes a report. A new collector gets credits with the next grant."""
        lease = report.lease
        if not report.items_at_once or not self._leases.renew(lease):
            return
        self._delivered[lease.owner] = report.delivered
        shares = self.credits.shares
        if any((share.owner, share.epoch) == (lease.owner, lease.epoch) for share in shares):
            return
        others = tuple(share for share in shares if share.owner != lease.owner)
        order = min((share.order for share in others), default=0)
        share = Share(lease.owner, lease.epoch, report.items_at_once, report.delivered, order)
        self.credits = dataclasses.replace(self.credits, shares=(*others, share))
        if report.items_at_once > self._ahead:
            logging.warning(
                '%s makes %d items at a time; the learner takes %d with one version of the weights: fewer environments '
                'give newer data',
                *(lease.name, report.items_at_once, self.credits.items_per_version),
            )

    def reconcile(self, dropped: int, arrived: int) -> None:
        """Removes collectors whose leases have expired, and grants the missing items.

        Read the reports before counting `arrived`, so that items that a report counts as delivered
        are included.

        Args:
          dropped: the items that all workers have dropped as too old so far.
          arrived: the items that were in the replay when the ledger began, or arrived since.
        """
        for lease in self._leases.remove_expired():
            message = '%s (%s) has not reported for %.0f s: its credits go to the other collectors'
            logging.warning(message, lease.name, lease.owner, lease.ttl_secs)
            self._delivered.pop(lease.owner)
            shares = tuple(share for share in self.credits.shares if share.owner != lease.owner)
            self.credits = dataclasses.replace(self.credits, shares=shares)
        surplus = self.credits.surplus - (dropped - self._dropped) * self._wants
        self._dropped = dropped
        # Reports may be late, so an item that has arrived may still count as owed: both values are
        # bounds.
        owed = sum(max(0, share.allowed - self._delivered[share.owner]) for share in self.credits.shares)
        least = arrived - self.wanted
        self._grant(min(max(surplus, least), least + owed), self.credits.policy_version)

    def _grant(self, surplus: int, policy_version: int) -> None:
        shares, surplus = allocate(self.credits.shares, surplus)
        self.credits = dataclasses.replace(self.credits, policy_version=policy_version, surplus=surplus, shares=shares)


class CreditReader:
    """Waits for a collector's new credits, on a thread of its own.

    `newest` is None before the first ones; those of a lost coordinator stay.
    """

    def __init__(self, coordinator: Coordinator):
        """Starts to wait."""
        self.newest: Credits | None = None
        self._coordinator, self._closed = coordinator, threading.Event()
        self._thread = background.Thread(target=self._run, name='credit_reader')
        self._thread.start()

    def close(self) -> None:
        """Stops waiting."""
        self._closed.set()
        self._thread.join(2 * _WAIT_SECS)

    def _run(self) -> None:
        number, read_from = 0, ''
        while not self._closed.is_set():
            if read_from != self._coordinator.incarnation:
                read_from, number = self._coordinator.incarnation, 0
            try:
                number, newest = self._coordinator.credits(number, _WAIT_SECS)
                self.newest = newest or self.newest
            except (CoordinatorLost, RequestRefused):
                self._closed.wait(_RETRY_SECS)
            except Exception:  # without this thread a collector would wait forever
                logging.exception('could not read credits from %s', self._coordinator.what)
                self._closed.wait(_RETRY_SECS)
