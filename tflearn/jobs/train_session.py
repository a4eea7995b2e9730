"""A session of the train job: everything around the learner's train steps, from a start to a stop."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.coordinator import reports, weights_contract
from tflearn.coordinator.publisher import Publisher
from tflearn.coordinator.weights_contract import PRETRAINING
from tflearn.core import background, strategies, train_step, workers
from tflearn.core.types import Agent
from tflearn.core.waiting import LOG_EVERY_SECS, PeerLost
from tflearn.core.workers import Ending
from tflearn.files.manifests import LEARNER, Manifests
from tflearn.files.run_dir import RunDir, Status
from tflearn.jobs import batch_source, run_outputs
from tflearn.jobs.batch_source import Source
from tflearn.jobs.credit_issuer import CreditIssuer
from tflearn.jobs.policy_exports import PolicyExports
from tflearn.jobs.run_outputs import CollectSummaries, Progress
from tflearn.jobs.train_settings import Settings
from tflearn.learner.learner import Learner
from tflearn.learner.metrics import TrainResult
from tflearn.learner.replica_check import ReplicaConsistency
from tflearn.learner.stop_conditions import Forecast, StopConditions
from tflearn.learner.triggers import IntervalTrigger
from tflearn.replay import connection
from tflearn.replay.storage import REPLAY, ReplayStatistics, Storage
from tflearn.transforms.reward_weights import RewardWeights

_POLL_SECS = 1.0
_USED_UP_SECS = 5.0  # data may be on their way so long after the last environment step
_LAST_POLL_SECS = 5.0
_LAST_SEND_SECS = 15.0


class TrainSession:
    """A learner whose weights are published, whose policies are exported, and whose metrics are reported.

    Of several workers only the chief publishes, exports and reads reports; the others write to temporary directories.
    All workers end together, as soon as one of them has a reason.
    """

    def __init__(
        self,
        run_dir: RunDir,
        address: str,
        agent: Agent,
        storage: Storage,
        source: Source,
        strategy: tf.distribute.Strategy,
        settings: Settings,
        stop_conditions: StopConditions,
    ):
        """Restores the newest checkpoint; publishes and exports nothing yet.

        Args:
          run_dir: the run's directory, or this worker's own one, see `worker_files.writable_run_dir`.
          address: the replay server's address, 'host:port'. It must be running.
          agent: the agent to train.
          storage: the replay tables' layout.
          source: the source of the batches.
          strategy: the strategy that the agent was made in.
          settings: what the session does, and how often.
          stop_conditions: when training is over.

        Raises:
          ValueError: if the server's tables or the checkpoint are made for other networks.
        """
        self._run_dir = run_dir
        meanwhile = 'training goes on while there are data (train.Data.timeout_secs)'
        self._server = connection.ServerPoll(address, meanwhile, storage, settings.server_timeout_secs)
        self._lost: PeerLost | None = None
        self._storage, self._source, self._stop_conditions = storage, source, stop_conditions
        self._num_pretrain_steps = settings.num_pretrain_steps
        self._status = Status(run_dir.status('train'), 'train')
        self._chief, self._agreement = strategies.layout(strategy).is_chief, workers.Agreement(strategy)
        self._watchdog = settings.watchdog
        variables = weights_contract.published(agent.collect_policy)
        self._publisher = Publisher(address, variables, settings.plane, run_dir.epoch)
        self._credits = CreditIssuer.make(
            address, source, storage.experience, settings.intervals.publish_interval_steps, strategy
        )
        self._reports = reports.ReportReader(address, self._credits.renew if self._credits else lambda report: None)
        self._collect_summaries = CollectSummaries(run_dir.summaries('collect'))
        self._progress, self._forecast = Progress(), Forecast(stop_conditions)
        self._metrics: dict[str, Any] = {}
        self._reported_at = self._logged_at = time.monotonic()
        self._trained, self._reason, self._ending = False, '', Ending.NONE
        self._learner = Learner(
            agent,
            source,
            run_dir,
            strategy=strategy,
            triggers=self._triggers(settings, agent, strategy),
            options=settings.learner_options(
                lambda: self._progress.policy_version, lambda: {**self._metrics, **source.metrics()}
            ),
            state={'reports': self._reports, 'progress': self._progress, **batch_source.checkpointed(source)},
            manifests=Manifests(
                run_dir.root, run_dir.manifests, LEARNER, run_dir.epoch, read_only=not self._chief, store=run_dir.store
            ),
        )
        self._make_exports = lambda: PolicyExports(agent, run_dir, settings.exports, self._export_facts, settings.texts)

    def _triggers(self, settings: Settings, agent: Agent, strategy: tf.distribute.Strategy) -> list[IntervalTrigger]:
        triggers = [
            IntervalTrigger(settings.intervals.publish_interval_steps, self._publish),
            IntervalTrigger(settings.intervals.export_interval_steps, self._export),
        ]
        if strategies.layout(strategy).workers == 1:  # only the chief could read the file
            read = RewardWeights(agent, self._run_dir)
            triggers.insert(0, IntervalTrigger(settings.intervals.publish_interval_steps, read))
        if settings.summary_steps:
            write = lambda step: self._collect_summaries.write(self._reports.metrics())  # noqa: E731
            triggers.append(IntervalTrigger(settings.summary_steps, write))
        if settings.exports.update_interval_steps:
            triggers.append(IntervalTrigger(settings.exports.update_interval_steps, self._export_update))
        check = settings.intervals.replica_check_interval_steps
        if check and strategy.num_replicas_in_sync > 1:
            self._consistency = ReplicaConsistency(strategy, agent)
            triggers.append(IntervalTrigger(check, self._check_replicas))
        return triggers

    def _check_replicas(self, step: int) -> None:
        self._metrics = {**self._metrics, 'replica_difference': self._consistency(step)}

    def begin(self, on_restored: Callable[[], None]) -> None:
        """Publishes the first weights, takes their snapshot for an export, and compiles the learner.

        Args:
          on_restored: called on the chief before anything is written.
        """
        if self._chief:
            on_restored()
        learner = self._learner
        if self._end_reason() is None:  # an earlier session may have had stricter stop conditions
            self._run_dir.train_result.unlink(missing_ok=True)
        # After a crash the checkpoint's version may be older than the one that actors have.
        newest = self._agreement.of_chief(self._publisher.newest_version())  # the chief will publish soon
        if newest > self._progress.policy_version:
            self._progress.policy_version = newest + 1  # the weights of `newest` are lost
            logging.info('policy version %d was published after the checkpoint; continue with %d', newest, newest + 1)
        if self._credits:  # collectors gather the first data while the learner is traced
            self._credits.start(self._reports)
        self._set_env_steps()
        # Only now are the weights final: a checkpoint may have been restored.
        self._send(learner.step)
        if start := getattr(self._source, 'start', None):  # a queue's streams open before there are data
            start()
        self._exports = self._make_exports()  # collectors act while the policies are traced
        self._exports.drop_newer_than(learner.step)
        if self._chief:
            self._exports.begin(learner.step)  # on its thread; the first train steps do not wait for it
        learner.prepare(self._stop_conditions.num_train_steps)  # while collectors gather the first data
        self._status.update('waiting for data', train_step=learner.step, **dataclasses.asdict(self._stop_conditions))

    def run(self, stop: threading.Event, steps_per_call: int) -> None:
        """Trains until a stop condition or a requested stop (then it writes the result), or until `stop` is set.

        Raises:
          TimeoutError: if no data arrived for too long; the checkpoint is saved.
          PeerLost: if nothing was heard of the replay server for too long; the checkpoint is saved.
          PeerStopped: if another worker was asked to stop; the checkpoint is saved.
        """
        over = threading.Event()
        monitor = background.Thread(target=self._monitor, args=(stop, over), name='train_monitor')
        monitor.start()
        try:
            try:
                while not self._agree_on_ending(stop):
                    self._train(steps_per_call)
            finally:
                over.set()
                self._source.close()
                if self._credits:
                    self._credits.close()
                monitor.join(_LAST_POLL_SECS)
                with self._guard('the last checkpoint'):
                    self._learner.close()
                self._collect_summaries.write(self._reports.metrics())
            self._collect_summaries.close()
            self._end()
        except BaseException as error:
            self._status.update(f'failed: {error}')
            raise
        with self._guard('what the other workers write'):
            self._agreement.on_any(False)  # no worker leaves before all have written their files
        workers.check_own_stop(self._ending, stop, self._learner.step)

    def _agree_on_ending(self, stop: threading.Event) -> bool:
        """Agrees with the other workers on whether and how training ends: each has its own clock, signals and data."""
        mine = Ending.NONE
        if self._end_reason() is not None:
            mine = Ending.LIMIT
        elif self._lost or self._source.error is not None:
            mine = Ending.NO_DATA
        elif stop.is_set():
            mine = Ending.STOP
        with self._guard("the other workers' answers"):
            self._ending = Ending(self._agreement.greatest(mine))
        return self._ending != Ending.NONE

    def _guard(self, what: str) -> contextlib.AbstractContextManager[None]:
        return self._watchdog.guard(what) if self._watchdog else contextlib.nullcontext()

    def _train(self, steps_per_call: int) -> None:
        start = time.monotonic()
        steps_left = self._stop_conditions.most_steps(self._learner.step, steps_per_call)
        if pretrains := self._pretrains:  # the next call waits for steps that these weights collect
            steps_left = min(steps_left, self._num_pretrain_steps - self._learner.step)
        self._set_env_steps()
        with self._guard(f'a call from train step {self._learner.step}'):
            result = self._learner.run(self._learner.calls(steps_left))
        if self._chief:
            self._exports.raise_failure()
        self._progress.secs += time.monotonic() - start if self._trained else result.waited_secs
        if result.num_steps:
            self._trained = True
            self._report(result)
        if pretrains and not self._pretrains:
            logging.info('trained on demonstrations for %d train steps; collection begins', self._learner.step)
            self._learner.save()  # a restarted learner does not go back to a time before collection
            self._send(self._learner.step)

    @property
    def _pretrains(self) -> bool:
        """Whether training is on demonstrations alone, and collectors wait for its result."""
        return self._learner.step < self._num_pretrain_steps

    def _set_env_steps(self) -> None:
        if train_step.env_steps_are_used():
            train_step.set_env_steps(self._agreement.of_chief(self._reports.env_steps))

    def _monitor(self, stop: threading.Event, over: threading.Event) -> None:
        """Polls the replay, and closes the source when training should end, since the learner may wait for data."""
        ended, seen = None, -1
        while not ended:  # polls immediately, every second or oftener, and after the last train step
            ended = over.wait(0.0 if ended is None else self._reports.poll_secs)
            try:
                try:
                    self._poll_replay()
                except PeerLost as lost:
                    self._lost = lost
                waiting_secs = time.monotonic() - self._reported_at
                step = self._learner.step if waiting_secs > 2 * _POLL_SECS else seen
                if step != seen and self._watchdog:  # a long call makes progress
                    self._watchdog.progress()
                seen = step
                if waiting_secs > 2 * _POLL_SECS and not ended:
                    self._status.update('waiting for data', train_step=self._learner.step, **self._metrics)
                if (
                    stop.is_set()
                    or self._lost
                    or self._end_reason(waiting_secs if self._trained else self._learner.waiting_secs)
                ):
                    self._source.close()
            except Exception as error:  # reports and decisions may be late, but the thread must go on
                logging.warning('could not poll the replay: %s', error)

    def _end(self) -> None:
        with self._guard('the last export'):
            if self._ending == Ending.LIMIT:
                self._finish(self._end_reason() or 'max_secs reached on another worker')
            else:
                self._exports.settle()
            # A session that is resumed publishes again; the end of training must reach the collectors.
            self._publisher.close(_LAST_SEND_SECS if self._ending == Ending.LIMIT else _LAST_POLL_SECS)
        if self._ending == Ending.NO_DATA:
            raise (
                self._lost
                or self._source.error
                or RuntimeError('got no more data on another worker; need them; see its log')
            )
        if self._ending == Ending.STOP:
            logging.info('stopped at train step %d; its checkpoint is saved', self._learner.step)
            self._status.update('stopped')

    def _end_reason(self, more_secs: float = 0.0) -> str | None:
        """Returns why training is over; None while it goes on. `more_secs` have passed since the last call's end."""
        if not self._reason:
            secs = self._progress.secs + more_secs
            step, env_steps = self._learner.step, self._reports.env_steps
            self._reason = run_outputs.reason(self._run_dir, self._stop_conditions, step, env_steps, secs) or ''
            if not self._reason and self._reports.collection_ended and self._learner.waiting_secs > _USED_UP_SECS:
                self._reason = f'max_env_steps {self._reports.env_steps_limit} reached, and the data are used up'
        return self._reason or None

    def _finish(self, reason: str) -> None:
        """Publishes and exports the last weights, then writes the result."""
        step = self._learner.step
        self._export(step)
        self._exports.wait()
        self._send(step, finished=True)
        run_outputs.write_result(self._run_dir, reason, step, self._reports.env_steps, self._progress.secs)
        self._status.update('finished', train_step=step)

    def _publish(self, step: int) -> None:
        if step > self._num_pretrain_steps:
            self._progress.policy_version += 1
        if step != self._num_pretrain_steps:  # `_train` sends the last weights of pre-training
            self._send(step)

    def _send(self, step: int, finished: bool = False) -> None:
        self._run_dir.check_owner()
        batch_source.set_newest_version(self._source, self._progress.policy_version)
        if self._credits and not finished:
            self._credits.publish(self._progress.policy_version)
        if self._chief:
            version = PRETRAINING if self._pretrains and not finished else self._progress.policy_version
            self._publisher.publish(step, version, self._reports.env_steps, finished)

    def _export(self, step: int) -> None:
        self._run_dir.check_owner()
        if self._chief:
            self._exports.export(step)

    def _export_update(self, step: int) -> None:
        self._run_dir.check_owner()
        if self._chief:
            self._exports.export_update(step)

    def _export_facts(self) -> dict[str, Any]:
        reports = self._reports
        version = self._progress.policy_version
        return {'env_steps': reports.env_steps, 'mean_return': reports.mean_return, 'policy_version': version}

    def _report(self, result: TrainResult) -> None:
        now = self._reported_at = time.monotonic()
        lag = self._progress.policy_version - result.info.get('policy_version', 0.0)
        self._metrics = {**self._metrics, 'policy_lag': lag}
        step, env_steps, secs = self._learner.step, self._reports.env_steps, self._progress.secs
        self._status.update(
            'running',
            train_step=step,
            train_steps_per_sec=result.steps_per_sec,
            **self._forecast.update(step, env_steps, secs),
            loss=result.loss,
            data_wait_share=result.data_wait_share,
            policy_version=self._progress.policy_version,
            failed_saves=self._learner.checkpoints.num_failed,
            failed_exports=self._exports.num_failed,
            **self._metrics,
        )
        if now - self._logged_at >= LOG_EVERY_SECS:
            self._logged_at = now
            self._log(result)

    def _poll_replay(self) -> None:
        tables = self._server.counts()
        if tables is None:
            self._server.check()
            return
        if self._chief:  # each report can be read once
            self._reports.read(tables[reports.REPORTS].size)
        replay = ReplayStatistics.of(tables[REPLAY], self._storage)
        self._metrics = {
            **self._metrics,
            **self._reports.metrics(),
            'collectors': self._reports.num_live,
            'replay_size': replay.size,
            'samples_per_insert': replay.samples_per_insert,
            **self._source.metrics(),
        }

    def _log(self, result: TrainResult) -> None:
        mean_return = self._reports.mean_return
        logging.info(
            'train step %s (%.0f/s, %.0f%% waiting for data), %d environment steps, mean return %s, loss %.4g',
            run_outputs.of_total(self._learner.step, self._stop_conditions),
            result.steps_per_sec,
            100 * result.data_wait_share,
            self._reports.env_steps,
            'none' if mean_return is None else f'{mean_return:.1f}',
            result.loss,
        )
