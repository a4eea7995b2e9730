"""What collectors tell the learner: how many environment steps they made, and how their episodes went.

Each report carries the collector's count since its own start, not a difference, so no lost or doubled report makes it
wrong; the run's total is the sum over all collectors that were ever heard of.
"""

import json
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

REPORTS = 'reports'
MAX_EPISODES = 64
_FLUSH_TIMEOUT_MS = 2000
_NEWEST_RETURNS = 100

_SIGNATURE = {
    'collector': tf.TensorSpec((16,), tf.uint8, 'collector'),
    'env_steps': tf.TensorSpec((), tf.int64, 'env_steps'),
    # Finished episodes since the last report, padded with NaN.
    'returns': tf.TensorSpec((MAX_EPISODES,), tf.float32, 'returns'),
}


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
        self._untold: list[float] = []
        self._collector = np.frombuffer(uuid.uuid4().bytes, np.uint8)

    def report(self, env_steps: int, returns: Sequence[float]) -> None:
        """Sends one report; of more than 64 episodes the newest count.

        Args:
          env_steps: environment steps since this collector started.
          returns: of the episodes that ended since the last report.
        """
        padded = np.full(MAX_EPISODES, np.nan, np.float32)
        newest = self._untold = [*self._untold, *returns][-MAX_EPISODES:]
        padded[: len(newest)] = newest
        values = {'collector': self._collector, 'env_steps': np.int64(env_steps), 'returns': padded}
        # Validation asks the server for its signatures first, without a deadline.
        writer = reverb.Client(self._address).trajectory_writer(num_keep_alive_refs=1, validate_items=False)
        try:
            writer.append(values)
            writer.create_item(REPORTS, 1.0, {name: writer.history[name][-1] for name in values})
            writer.flush(timeout_ms=_FLUSH_TIMEOUT_MS)
        except (reverb.DeadlineExceededError, RuntimeError):
            return  # the server is away; the next report carries it all again
        self._untold = []


class ReportReader(tf.train.experimental.PythonState):
    """The learner's end. Keeps the run's total of environment steps; a checkpoint can carry it."""

    def __init__(self, address: str):
        self._address = address
        self._counts: dict[str, int] = {}
        self._returns: list[float] = []

    @property
    def env_steps(self) -> int:
        """Environment steps of the run."""
        return sum(self._counts.values())

    @property
    def mean_return(self) -> float | None:
        """Mean return of the newest 100 episodes; None before the first has ended."""
        return float(np.mean(self._returns)) if self._returns else None

    def serialize(self) -> str:
        """Returns the counts by collector and the newest returns, for a checkpoint."""
        return json.dumps({'counts': self._counts, 'returns': self._returns})

    def deserialize(self, string_value: str) -> None:
        """Takes over what a checkpoint holds."""
        saved = json.loads(string_value)
        self._counts, self._returns = saved['counts'], saved['returns']

    def read(self, num_reports: int) -> None:
        """Reads the reports that are there.

        Args:
          num_reports: how many the server says there are.
        """
        for report in self._take(num_reports):
            collector = report['collector'].tobytes().hex()
            env_steps = max(self._counts.get(collector, 0), int(report['env_steps']))
            self._counts = {**self._counts, collector: env_steps}  # a new one: a checkpoint may be reading the old
            returns = report['returns'][~np.isnan(report['returns'])].tolist()
            self._returns = [*self._returns, *returns][-_NEWEST_RETURNS:]

    def _take(self, num_reports: int) -> list[dict[str, Any]]:
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
            return [sample.data for sample in dataset.as_numpy_iterator()]
        except tf.errors.OpError:  # the server is going down; counts come again with the next reports
            return []
