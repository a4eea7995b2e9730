"""Reports from collectors to the learner: environment steps, and the metrics of episodes.

Each report holds the collector's counts since its own start, not differences, so lost or repeated reports cause no
error. The run's total is the sum over all collectors that ever reported.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import reverb
import tensorflow as tf
from absl import logging

from tflearn import control
from tflearn.replay import connection

Episode = Mapping[str, float]

REPORTS = 'reports'
MAX_EPISODES = 64
_NEWEST_EPISODES = 100


def table() -> reverb.Table:
    """Returns the table of reports: each is read once; the oldest are dropped if nothing reads them."""
    # An encoded `control.Report` each. Which metrics an episode has depends on the environment.
    return connection.text_table(REPORTS, 'report', max_size=1000, max_times_sampled=1)


class Reporter:
    """The collector's side. Each report renews its lease, `held`."""

    def __init__(
        self, address: str, name: str = 'collector', items_at_once: int = 0, lease_secs: float = control.LEASE_SECS
    ):
        """Sends nothing yet. For `items_at_once` see `control.Report`."""
        self._address, self._items_at_once = address, items_at_once
        self._unsent: list[Episode] = []
        self.held = control.HeldLease(control.new_lease(name, lease_secs))

    def report(self, counts: Mapping[str, int], episodes: Sequence[Episode], served: int = 0) -> None:
        """Sends one report, with at most the newest 64 episodes.

        Args:
          counts: counts since this collector's start, to be summed over collectors: 'env_steps', and more.
          episodes: the episodes that ended since the last report, each as metrics by name: 'return', and more.
          served: items made under the lease that are in the replay.
        """
        self._unsent = [*self._unsent, *episodes][-MAX_EPISODES:]
        lease, episodes = self.held.lease, [{**episode} for episode in self._unsent]
        text = control.encode(control.Report(lease, {**counts}, episodes, served, self._items_at_once))
        if connection.send(self._address, REPORTS, 'report', text):  # otherwise the next report includes these episodes
            self.held.renew()
            self._unsent = []


class ReportReader(tf.train.experimental.PythonState):
    """The learner's side. Keeps the run's total counts; belongs in the learner's checkpoint."""

    def __init__(self, address: str, on_report: Callable[[control.Report], None] = lambda report: None):
        """
        Args:
          on_report: called with each report, on the thread that reads it.
        """
        self._address, self._on_report = address, on_report
        self._reading = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}
        self._episodes: list[Episode] = []

    @property
    def env_steps(self) -> int:
        """The run's environment steps."""
        return self.count('env_steps')

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
        return json.dumps({'counts': self._counts, 'episodes': self._episodes})

    def deserialize(self, string_value: str) -> None:
        """Restores the counts and episodes of a checkpoint."""
        saved = json.loads(string_value)
        self._counts, self._episodes = saved['counts'], saved['episodes']

    def read(self, num_reports: int) -> None:
        """Reads the available reports. May be called from any thread."""
        with self._reading:
            for report in self._take(num_reports):
                known = self._counts.get(report.lease.owner, {})
                counts = {name: max(known.get(name, 0), count) for name, count in report.counts.items()}
                self._counts = {**self._counts, report.lease.owner: counts}  # a checkpoint may be reading the old dict
                self._episodes = [*self._episodes, *report.episodes][-_NEWEST_EPISODES:]
                self._on_report(report)

    def _take(self, num_reports: int) -> list[control.Report]:
        if not num_reports:
            return []
        texts = connection.receive(self._address, REPORTS, 'report', num_reports, timeout_ms=100)
        reports = map(_decoded, texts)
        return [report for report in reports if report is not None]


def _decoded(text: bytes) -> control.Report | None:
    try:
        message = control.decode(text)
    except ValueError as error:  # from another version of tflearn
        logging.warning('ignored a report: %s', error)
        return None
    return message if isinstance(message, control.Report) else None


def _mean(name: str, episodes: Sequence[Episode]) -> float:
    return float(np.mean([episode[name] for episode in episodes if name in episode]))
