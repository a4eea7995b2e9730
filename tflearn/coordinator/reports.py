"""Reports from collectors to the learner: environment steps, and the metrics of episodes.

Each report holds the collector's counts since its own start, not differences, so lost or repeated reports cause no
error. The run's total is the sum over all collectors that ever reported. What is kept of a collector that has not
reported for `control.FORGET_SECS` is its part of the total. So a collector whose reports did not arrive for half of
that time continues as a new one, which counts from its last report on.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.coordinator import control
from tflearn.replay import connection
from tflearn.replay.tables import TableSpec

Episode = Mapping[str, float]

REPORTS = 'reports'
ENV_STEPS_LIMIT = 'env_steps_limit'  # in a report's counts: `CollectOptions.max_env_steps`
MAX_EPISODES = 64
_NEWEST_EPISODES = 100
_MAX_SIZE = 1000
_FORGOTTEN = 'forgotten'  # stands for all collectors that were forgotten
_POLL_SECS, _BUSY_POLL_SECS = 1.0, 0.2


def table() -> TableSpec:
    """Returns the table of reports: each is read once; the oldest are dropped if nothing reads them."""
    # An encoded `control.Report` each. Which metrics an episode has depends on the environment.
    return connection.text_table(REPORTS, 'report', max_size=_MAX_SIZE, max_times_sampled=1)


def now_secs() -> float:
    """Returns the time since the machine's start, also that in which it slept [s]."""
    return time.clock_gettime(getattr(time, 'CLOCK_BOOTTIME', time.CLOCK_MONOTONIC))


class Reporter:
    """The collector's side: one report at a time for all of its environments. Each renews its lease, `held`."""

    def __init__(
        self,
        address: str,
        name: str = 'collector',
        items_at_once: int = 0,
        lease_secs: float = control.LEASE_SECS,
        clock: Callable[[], float] = now_secs,
    ):
        """Sends nothing yet. For `items_at_once` see `control.Report`."""
        self._address, self._items_at_once = address, items_at_once
        self._unsent: list[Episode] = []
        self._clock, self._sent_at = clock, clock()
        self._sent: dict[str, int] = {}
        self._before: dict[str, int] = {}  # what was counted under earlier owners
        self.held = control.HeldLease(control.new_lease(name, lease_secs))

    def report(self, counts: Mapping[str, int], episodes: Sequence[Episode], served: int = 0) -> None:
        """Sends one report, with at most the newest 64 episodes.

        Args:
          counts: counts since this collector's start, to be summed over collectors: 'env_steps', and more.
          episodes: the episodes that ended since the last report, each as metrics by name: 'return', and more.
          served: items made under the lease that are in the replay.
        """
        self._unsent = [*self._unsent, *episodes][-MAX_EPISODES:]
        if self._clock() - self._sent_at > _forget_secs(self.held.lease) / 2:
            self.held.restart()
            self._before, self._sent_at = self._sent, self._clock()
        lease, episodes = self.held.lease, [{**episode} for episode in self._unsent]
        own = {name: count - self._before.get(name, 0) for name, count in counts.items()}
        text = control.encode(control.Report(lease, own, episodes, served, self._items_at_once))
        if connection.send(self._address, REPORTS, 'report', text):  # otherwise the next report includes these episodes
            self.held.renew()
            self._unsent, self._sent, self._sent_at = [], {**counts}, self._clock()


def _forget_secs(lease: control.Lease) -> float:
    return max(control.FORGET_SECS, 2 * lease.ttl_secs)


class ReportReader(tf.train.experimental.PythonState):
    """The learner's side. Keeps the run's total counts; belongs in the learner's checkpoint.

    Attributes:
      env_steps_limit: the run's environment steps after which collectors end; None if they do not.
    """

    def __init__(
        self,
        address: str,
        on_report: Callable[[control.Report], None] = lambda report: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          on_report: called with each report, on the thread that reads it.
          clock: returns the time [s].
        """
        self._address, self._on_report, self._clock = address, on_report, clock
        self.env_steps_limit: int | None = None
        self._forgotten_at: dict[str, float] = {}  # when a sender will be forgotten, unless it reports
        self._live_until: dict[str, float] = {}  # collectors
        self.poll_secs = _POLL_SECS
        self._reading = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}
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
        """The mean return of the newest 100 episodes; None before the first has ended."""
        episodes = self._episodes
        return _mean('return', episodes) if episodes else None

    def metrics(self) -> dict[str, float | None]:
        """Returns the counts, summed over collectors, and 'mean_<name>' of the newest 100 episodes' metrics."""
        metrics: dict[str, float | None] = {'env_steps': 0, 'mean_return': None}
        for counts in self._counts.values():
            for name, count in counts.items():
                metrics[name] = (metrics.get(name) or 0) + count
        episodes = self._episodes  # another thread may replace them meanwhile
        names = {name: None for episode in episodes for name in episode}
        return metrics | {f'mean_{name}': _mean(name, episodes) for name in names}

    def count(self, name: str) -> int:
        """Returns one of the counts, summed over all senders."""
        return sum(counts.get(name, 0) for counts in self._counts.values())

    def serialize(self) -> str:
        """Returns the counts by collector and the newest episodes as JSON."""
        saved = {'counts': self._counts, 'episodes': self._episodes, ENV_STEPS_LIMIT: self.env_steps_limit}
        return json.dumps(saved)

    def deserialize(self, string_value: str) -> None:
        """Restores the counts and episodes of a checkpoint."""
        saved = json.loads(string_value)
        self._counts, self._episodes = saved['counts'], saved['episodes']
        self.env_steps_limit = saved[ENV_STEPS_LIMIT]
        self._forgotten_at = dict.fromkeys(self._counts.keys() - {_FORGOTTEN}, self._clock() + control.FORGET_SECS)

    @property
    def num_live(self) -> int:
        """The number of collectors whose lease is valid."""
        now = self._clock()
        return sum(until >= now for until in [*self._live_until.values()])

    def read(self, num_reports: int) -> None:
        """Reads the available reports, and forgets senders that were silent for too long. From any thread."""
        with self._reading:
            counts, episodes = {**self._counts}, [*self._episodes]  # a checkpoint may be reading the old ones
            reports = self._take(num_reports)
            for report in reports:
                owner, now, own = report.lease.owner, self._clock(), {**report.counts}
                self.env_steps_limit = own.pop(ENV_STEPS_LIMIT, 0) or self.env_steps_limit
                known = counts.get(owner, {})
                counts[owner] = {name: max(known.get(name, 0), count) for name, count in own.items()}
                episodes += report.episodes
                self._forgotten_at[owner] = now + _forget_secs(report.lease)
                if 'env_steps' in report.counts:
                    self._live_until[owner] = now + report.lease.ttl_secs
            self._forget(counts)
            self._counts, self._episodes = counts, episodes[-_NEWEST_EPISODES:]
            self.poll_secs = _BUSY_POLL_SECS if num_reports > _MAX_SIZE / 4 else _POLL_SECS
        for report in reports:
            self._on_report(report)

    def _forget(self, counts: dict[str, dict[str, int]]) -> None:
        """Adds up the counts of senders that were silent for too long."""
        now = self._clock()
        for owner in [owner for owner, at in self._forgotten_at.items() if now > at]:
            total = counts.setdefault(_FORGOTTEN, {})
            for name, count in counts.pop(owner).items():
                total = counts[_FORGOTTEN] = {**total, name: total.get(name, 0) + count}
            del self._forgotten_at[owner]
            self._live_until.pop(owner, None)

    def _take(self, num_reports: int) -> list[control.Report]:
        texts = connection.receive(self._address, REPORTS, num_reports)
        reports = map(_decoded, texts)
        return [report for report in reports if report is not None]


def _decoded(text: bytes) -> control.Report | None:
    try:
        message = control.decode(text)
    except ValueError as error:  # not from a job of this version
        logging.warning('ignored a report: %s', error)
        return None
    return message if isinstance(message, control.Report) else None


def _mean(name: str, episodes: Sequence[Episode]) -> float:
    return float(np.mean([episode[name] for episode in episodes if name in episode]))
