"""RemoteCollectors: a train job's collectors in other processes: weights to them, reports and credits back."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tflearn.coordinator import published_weights, reports
from tflearn.coordinator.client import Coordinator
from tflearn.coordinator.published_weights import PRETRAINING, Publisher
from tflearn.core import strategies
from tflearn.core.types import Agent
from tflearn.files.manifests import LEARNER, Manifests
from tflearn.files.run_dir import RunDir
from tflearn.jobs.collectors import Collectors
from tflearn.jobs.credit_issuer import CreditIssuer
from tflearn.jobs.train_settings import Intervals
from tflearn.replay.storage import REPLAY, ReplayStatistics, Storage
from tflearn.replay.table_history import TableHistory
from tflearn.sampling.source import Source

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
        variables = published_weights.published(agent.collect_policy)
        self._publisher = Publisher(coordinator, variables)
        self._credits = CreditIssuer.make(
            coordinator, source, storage.experience, intervals.publish_interval_steps, strategy
        )
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
        self._polled = {'replay_size': replay.size, 'samples_per_insert': replay.samples_per_insert}

    def end_reason(self, used_up: bool) -> str | None:
        """See `Collectors`."""
        if self._reports.collection_ended and used_up:
            return f'max_env_steps {self._reports.env_steps_limit} reached, and the data are used up'
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
