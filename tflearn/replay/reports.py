"""What collectors tell the learner: how many environment steps they made, and how their episodes went.

Each report carries the collector's count since its own start, not a difference, so no lost or doubled report makes it
wrong; the run's total is the sum over all collectors that were ever heard of.
"""

import json
import uuid
from collections.abc import Mapping, Sequence

import numpy as np
import reverb
import tensorflow as tf

from tflearn.waiting import listens

Episode = Mapping[str, float]

REPORTS = 'reports'
MAX_EPISODES = 64
_FLUSH_TIMEOUT_MS = 2000
_NEWEST_EPISODES = 100

# One JSON object: {'collector': name, 'counts': {'env_steps': ..., ...}, 'episodes': [{'return': ..., ...}, ...]}. What
# there is to tell of an episode depends on the environment.
_SIGNATURE = {'report': tf.TensorSpec((), tf.string, 'report')}


def table() -> reverb.Table:
    """The table of reports: each is read once; the oldest go if nobody reads."""
    return reverb.Table(
        REPORTS,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1000,
        max_times_sampled=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=_SIGNATURE,
    )


class Reporter:
    """A collector's end."""

    def __init__(self, address: str):
        self._address = address
        self._untold: list[Episode] = []
        self._collector = uuid.uuid4().hex

    def report(self, counts: Mapping[str, int], episodes: Sequence[Episode]) -> None:
        """Sends one report; of more than 64 episodes the newest count.

        Args:
          counts: what there is to be added up over collectors, since this one started: 'env_steps', and more.
          episodes: those that ended since the last report, each its figures by name: 'return', and more.
        """
        self._untold = [*self._untold, *episodes][-MAX_EPISODES:]
        told = {'collector': self._collector, 'counts': {**counts}, 'episodes': [{**told} for told in self._untold]}
        if not listens(self._address):
            return  # the next report carries it all again
        # Validation asks the server for its signatures first, without a deadline.
        writer = reverb.Client(self._address).trajectory_writer(num_keep_alive_refs=1, validate_items=False)
        try:
            writer.append({'report': np.array(json.dumps(told).encode(), object)})
            writer.create_item(REPORTS, 1.0, {'report': writer.history['report'][-1]})
            writer.flush(timeout_ms=_FLUSH_TIMEOUT_MS)
        except (reverb.DeadlineExceededError, RuntimeError):
            return  # likewise
        self._untold = []


class ReportReader(tf.train.experimental.PythonState):
    """The learner's end. Keeps the run's total of environment steps; a checkpoint can carry it."""

    def __init__(self, address: str):
        self._address = address
        self._counts: dict[str, dict[str, int]] = {}
        self._episodes: list[Episode] = []

    @property
    def env_steps(self) -> int:
        """Environment steps of the run."""
        return sum(counts.get('env_steps', 0) for counts in self._counts.values())

    @property
    def mean_return(self) -> float | None:
        """Mean return of the newest 100 episodes; None before the first has ended."""
        episodes = self._episodes
        return _mean('return', episodes) if episodes else None

    def figures(self) -> dict[str, float | None]:
        """Returns the counts, added up over collectors, and 'mean_<name>' of the newest 100 episodes' figures."""
        figures: dict[str, float | None] = {'env_steps': 0, 'mean_return': None}
        for counts in self._counts.values():
            for name, count in counts.items():
                figures[name] = (figures.get(name) or 0) + count
        episodes = self._episodes  # another thread may read newer ones meanwhile
        names = {name: None for episode in episodes for name in episode}
        return figures | {f'mean_{name}': _mean(name, episodes) for name in names}

    def serialize(self) -> str:
        """Returns the counts by collector and the newest episodes, for a checkpoint."""
        return json.dumps({'counts': self._counts, 'episodes': self._episodes})

    def deserialize(self, string_value: str) -> None:
        """Takes over what a checkpoint holds."""
        saved = json.loads(string_value)
        self._counts, self._episodes = saved['counts'], saved['episodes']

    def read(self, num_reports: int) -> None:
        """Reads the reports that are there.

        Args:
          num_reports: how many the server says there are.
        """
        for report in self._take(num_reports):
            known = self._counts.get(report['collector'], {})
            counts = {name: max(known.get(name, 0), count) for name, count in report['counts'].items()}
            self._counts = {**self._counts, report['collector']: counts}  # a new one: a checkpoint may read the old
            self._episodes = [*self._episodes, *report['episodes']][-_NEWEST_EPISODES:]

    def _take(self, num_reports: int) -> list[dict]:
        if not num_reports:
            return []
        dataset = reverb.TrajectoryDataset(
            self._address,
            REPORTS,
            dtypes={key: spec.dtype for key, spec in _SIGNATURE.items()},
            shapes={key: spec.shape for key, spec in _SIGNATURE.items()},
            max_in_flight_samples_per_worker=1,
            num_workers_per_iterator=1,
            max_samples=num_reports,
            rate_limiter_timeout_ms=100,
        )
        try:
            return [json.loads(sample.data['report']) for sample in dataset.as_numpy_iterator()]
        except tf.errors.OpError:  # the server is going down; counts come again with the next reports
            return []


def _mean(name: str, episodes: Sequence[Episode]) -> float:
    return float(np.mean([episode[name] for episode in episodes if name in episode]))
