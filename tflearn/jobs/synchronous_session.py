"""The session of a job that collects and trains alternately in one process."""

import dataclasses
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import tensorflow as tf
from absl import logging

from tflearn.core import strategies, train_step, workers
from tflearn.core.errors import UserValueError
from tflearn.core.types import Agent
from tflearn.core.waiting import LOG_EVERY_SECS, PeerStopped
from tflearn.core.workers import Ending
from tflearn.files.run_dir import RunDir, Status
from tflearn.jobs import batch_source, run_outputs
from tflearn.jobs.policy_exports import PolicyExports
from tflearn.jobs.run_outputs import CollectSummaries
from tflearn.jobs.train_settings import Settings
from tflearn.learner.learner import Learner
from tflearn.learner.replica_check import ReplicaConsistency
from tflearn.learner.stop_conditions import Forecast, StopConditions
from tflearn.learner.triggers import IntervalTrigger
from tflearn.transforms.reward_weights import RewardWeights

_REPORT_SECS = 1.0


def check_strategy(strategy: str) -> None:
    """Raises ValueError for another strategy than that of one device."""
    if strategy != 'default':
        raise UserValueError(
            f"got strategy={strategy!r}; need 'default', since in this job the same device acts and trains; start "
            'separate jobs (tflearn-launch) for other strategies'
        )


def set_seed(seed: int | None, strategy: tf.distribute.Strategy | None = None) -> int:
    """Seeds Python, numpy and TensorFlow, differently on each worker of a strategy.

    Returns:
      The run's seed; the chief draws it if there is none.
    """
    strategy = strategy or tf.distribute.get_strategy()
    if seed is None:
        seed = workers.Agreement(strategy).of_chief(random.SystemRandom().randrange(2**31))
        logging.info('got no seed; drew %d: the same one gives the same run', seed)
    tf.keras.utils.set_random_seed(seed + strategies.layout(strategy).worker)
    if tf.config.list_physical_devices('GPU'):  # on a CPU operations are deterministic by default
        tf.config.experimental.enable_op_determinism()
    return seed


class Acting(Protocol):
    """What takes a session's environment steps: a `Collection`, or files in which they are recorded."""

    metrics: Any  # such as `EpisodeMetrics`

    @property
    def state(self) -> Mapping[str, Any]:
        """What belongs in the checkpoint, by name."""

    @property
    def num_rebuilt(self) -> int:
        """See `Collection`."""

    def run(self, num_steps: int, write: Callable[[Any], None], env_steps_of_run: int = 0, train_step: int = 0) -> None:
        """See `Collection.run`."""

    def begin(self) -> None:
        """Called before the first step, when the checkpoint was restored."""

    def end_reason(self) -> str | None:
        """Returns why training is over, besides the stop conditions of all jobs; None while it goes on."""


class Counts(tf.train.experimental.PythonState):
    """The run's counts over all sessions; they belong in the checkpoint.

    Attributes:
      env_steps: environment steps.
      episodes: finished episodes.
      secs: the time of collecting and training, without each session's first call of the learner, which compiles.
      policy_version: how often the weights that act have changed; None in a checkpoint that does not have it.
    """

    def __init__(self) -> None:
        self.env_steps = self.episodes = 0
        self.secs = 0.0
        self.policy_version: int | None = 0

    def serialize(self) -> str:
        """Returns the counts as JSON."""
        names = ('env_steps', 'episodes', 'secs', 'policy_version')
        return json.dumps({name: getattr(self, name) for name in names})

    def deserialize(self, string_value: str) -> None:
        """Restores the counts of a checkpoint."""
        saved = json.loads(string_value)
        self.env_steps, self.episodes, self.secs = saved['env_steps'], saved['episodes'], saved['secs']
        self.policy_version = saved.get('policy_version')


class SynchronousSession:
    """Alternates between one batched environment step and the train steps that are due.

    Each action is computed with the newest weights, whose version counts the calls of the learner. Of several workers,
    which need steps in files, only the chief exports; the others write to temporary directories. All end together.
    """

    def __init__(
        self,
        run_dir: RunDir,
        acting: Acting,
        source: Any,
        write: Callable[[Any, int], None],
        agent: Agent,
        settings: Settings,
        stop_conditions: StopConditions,
        strategy: tf.distribute.Strategy | None = None,
    ):
        """Restores the newest checkpoint; exports nothing yet.

        Args:
          run_dir: the run's directory.
          acting: takes the environment steps.
          source: gives the batches; its `owed_steps` are the train steps that are due.
          write: stores a step of every environment, with the version of the policy that took it.
          agent: the agent to train, whose collect policy acts.
          settings: what the session does, and how often.
          stop_conditions: when training is over.
          strategy: the strategy that the agent was made in; None is that of one device.

        Raises:
          ValueError: if the checkpoint is made for other networks.
        """
        self._run_dir, self._collection = run_dir, acting
        self._source, self._write = source, write
        self._stop_conditions, self._num_pretrain_steps = stop_conditions, settings.num_pretrain_steps
        self._status = Status(run_dir.status('train'), 'train')
        self._collect_summaries = CollectSummaries(run_dir.summaries('collect'))
        self._counts, self._forecast = Counts(), Forecast(stop_conditions)
        self._counted_at = time.monotonic()
        self._reported_at = self._logged_at = 0.0
        self._loss: float | None = None
        self._data_failed = False
        strategy = strategy or tf.distribute.get_strategy()
        self._chief, self._agreement = strategies.layout(strategy).is_chief, workers.Agreement(strategy)
        self._consistency: ReplicaConsistency | None = None
        self._learner = Learner(
            agent,
            source,
            run_dir,
            triggers=self._triggers(settings, agent, strategy),
            strategy=strategy,
            options=settings.learner_options(lambda: self._version, self._metrics),
            state={'in_step': self._counts, **acting.state, **batch_source.checkpointed(source)},
        )
        if self._counts.policy_version is None:
            self._counts.policy_version = self._learner.step
        self._earlier = {'env_steps': self._counts.env_steps, 'episodes': self._counts.episodes}
        self._exports = PolicyExports(agent, run_dir, settings.exports, self._export_facts, settings.texts)

    def _triggers(self, settings: Settings, agent: Agent, strategy: tf.distribute.Strategy) -> list[IntervalTrigger]:
        intervals = settings.intervals
        triggers = [IntervalTrigger(intervals.export_interval_steps, self._export)]
        if strategies.layout(strategy).workers == 1:  # only the chief could read the file
            read = RewardWeights(agent, self._run_dir)
            triggers.insert(0, IntervalTrigger(intervals.publish_interval_steps, read))
        if updates := settings.exports.update_interval_steps:
            triggers.append(IntervalTrigger(updates, self._export_update))
        if settings.summary_steps:
            write = lambda step: self._collect_summaries.write(self._metrics())  # noqa: E731
            triggers.append(IntervalTrigger(settings.summary_steps, write))
        if intervals.replica_check_interval_steps and strategy.num_replicas_in_sync > 1:
            self._consistency = ReplicaConsistency(strategy, agent)
            triggers.append(IntervalTrigger(intervals.replica_check_interval_steps, self._consistency))
        return triggers

    @property
    def _version(self) -> int:
        return self._counts.policy_version or 0

    @property
    def train_step(self) -> int:
        """The train step now."""
        return self._learner.step

    def run(self, stop: threading.Event) -> None:
        """Runs until a stop condition or a requested stop (then it writes the result), or until `stop` is set.

        Raises:
          PeerStopped: if another worker was asked to stop, or got an error of its data; the checkpoint is saved.
        """
        try:
            try:
                while not (ending := self._agree_on_ending(stop)):
                    if self._learner.step >= self._num_pretrain_steps:
                        self._collect()
                    self._train()
                    self._report_if_due()
            finally:
                self._learner.close()
                self._collect_summaries.close()
            self._end(ending)
        except BaseException as error:
            self._status.update(f'failed: {error}')
            raise
        workers.check_own_stop(ending, stop, self._learner.step)

    def _agree_on_ending(self, stop: threading.Event) -> Ending:
        """Agrees with the other workers on whether and how training ends: each has its own clock, signals and data."""
        mine = Ending.NONE
        if self._end_reason() is not None:
            mine = Ending.LIMIT
        elif self._data_failed:
            mine = Ending.NO_DATA
        elif stop.is_set():
            mine = Ending.STOP
        return Ending(self._agreement.greatest(mine))

    def _end(self, ending: Ending) -> None:
        if ending == Ending.LIMIT:
            reasons = self._agreement.texts(self._end_reason() or '')
            self._finish(next(filter(None, reasons)))
        else:
            self._exports.settle()
        self._agreement.on_any(False)  # no worker leaves before all have written their files
        if ending == Ending.NO_DATA:
            raise self._source.error or PeerStopped(
                'got an error of the data of another worker; see its log; fix it, and start all again'
            )
        if ending == Ending.STOP:
            logging.info('stopped at train step %d; its checkpoint is saved', self._learner.step)
            self._status.update('stopped')

    def begin(self) -> None:
        """Exports the first policies. Nothing is lost if the process ends here."""
        if self._end_reason() is None:  # an earlier session may have had stricter stop conditions
            self._run_dir.train_result.unlink(missing_ok=True)
        self._exports.drop_newer_than(self._learner.step)
        if self._chief:
            self._exports.export(self._learner.step)
        if self._learner.step and not self._collection.state:
            logging.info('the replay is in no checkpoint: it is filled again before training continues')
        self._status.update(
            'waiting for data', train_step=self._learner.step, **dataclasses.asdict(self._stop_conditions)
        )
        self._collection.begin()
        self._counted_at = time.monotonic()

    def _collect(self) -> None:
        version = self._version
        train_step.set_env_steps(self._counts.env_steps)
        self._collection.run(1, lambda row: self._write(row, version), self._counts.env_steps, self._learner.step)
        metrics = self._collection.metrics
        self._counts.env_steps = self._earlier['env_steps'] + metrics.env_steps
        self._counts.episodes = self._earlier['episodes'] + metrics.episodes
        self._count_secs()

    def _count_secs(self) -> None:
        now = time.monotonic()
        self._counts.secs += now - self._counted_at
        self._counted_at = now

    def _train(self) -> None:
        before = self._learner.step
        owed = self._stop_conditions.most_steps(before, self._source.owed_steps)
        if owed:
            first = self._loss is None
            result = self._learner.run(self._learner.calls(owed))
            self._data_failed = result.data_ended and self._source.error is not None
            if result.num_steps:
                self._loss = result.loss
                self._counts.policy_version = self._version + 1
                batch_source.set_newest_version(self._source, self._version)
            if first:  # the time of compiling does not count
                self._counted_at = time.monotonic()
            self._count_secs()
            if before < self._num_pretrain_steps <= self._learner.step:
                logging.info('trained on demonstrations for %d train steps; collection begins', self._learner.step)
                self._learner.save()

    def _end_reason(self) -> str | None:
        """Returns why training is over; None while it goes on."""
        counts = self._counts
        common = run_outputs.reason(
            self._run_dir, self._stop_conditions, self._learner.step, counts.env_steps, counts.secs
        )
        return common or self._collection.end_reason()

    def _export(self, step: int) -> None:
        self._run_dir.check_owner()
        if self._chief:
            self._exports.export(step)
            self._exports.settle()  # so that it does not depend on the clock which exports replace others
            self._exports.raise_failure()

    def _export_update(self, step: int) -> None:
        if self._chief:
            self._exports.export_update(step)

    def _export_facts(self) -> dict[str, Any]:
        mean_return = self._collection.metrics.mean_return
        return {
            'env_steps': self._counts.env_steps,
            'mean_return': mean_return,
            'policy_version': self._version,
        }

    def _finish(self, reason: str) -> None:
        """Exports the last weights, then writes the result."""
        step = self._learner.step
        self._run_dir.check_owner()
        if self._chief:
            self._exports.export(step)
        self._exports.wait()
        run_outputs.write_result(self._run_dir, reason, step, self._counts.env_steps, self._counts.secs)
        self._status.update('finished', train_step=step, **self._metrics())

    def _metrics(self) -> dict[str, Any]:
        """Returns the metrics besides the learner's, without those that depend on the clock."""
        return {
            'env_steps': self._counts.env_steps,
            'episodes': self._counts.episodes,
            'dropped_episodes': self._collection.metrics.dropped_episodes,
            'rebuilt_environments': self._collection.num_rebuilt,
            'failed_saves': self._learner.checkpoints.num_failed,
            'failed_exports': self._exports.num_failed,
            **({'replica_difference': self._consistency.difference} if self._consistency else {}),
            **self._collection.metrics.means(),
            **self._source.metrics(),
        }

    def _report_if_due(self) -> None:
        now = time.monotonic()
        if now - self._reported_at < _REPORT_SECS:
            return
        self._reported_at = now
        step, metrics = self._learner.step, self._collection.metrics
        rate = metrics.env_steps_per_sec
        state = 'waiting for data' if self._loss is None else 'running'
        ends = {} if self._loss is None else self._forecast.update(step, self._counts.env_steps, self._counts.secs)
        self._status.update(state, train_step=step, loss=self._loss, env_steps_per_sec=rate, **ends, **self._metrics())
        if now - self._logged_at >= LOG_EVERY_SECS:
            self._logged_at = now
            logging.info(
                'train step %s, %d environment steps (%.0f/s), %d episodes, mean return %s',
                run_outputs.of_total(step, self._stop_conditions),
                self._counts.env_steps,
                rate,
                self._counts.episodes,
                'none' if metrics.mean_return is None else f'{metrics.mean_return:.1f}',
            )
