"""Session: training from a start to an end, for every job that trains."""

import contextlib
import dataclasses
import functools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.core import agent_data, background, extensions, side_tasks, strategies, train_step, workers
from tflearn.core.types import Agent
from tflearn.core.waiting import LOG_EVERY_SECS, PeerLost, PeerStopped, Stopped, wants_save
from tflearn.core.workers import ReplicaConsistency, StopReason
from tflearn.files import messages
from tflearn.files.run_dir import read_json, write_json
from tflearn.jobs import initial_values
from tflearn.jobs.collectors import Collectors
from tflearn.jobs.policy_exports import PolicyExports
from tflearn.jobs.run import Run
from tflearn.jobs.train_settings import Device, Settings
from tflearn.learner import checkpoints, machine
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.metrics import TrainResult
from tflearn.learner.stop_conditions import Forecast
from tflearn.learner.summaries import Summaries, SummarySources
from tflearn.learner.triggers import PeriodicAction
from tflearn.sampling.source import Source
from tflearn.transforms.rewards import weights_reader

_REPORT_SECS = 1.0
_USED_UP_SECS = 5.0  # data may be on their way so long after the last environment step
_POLL_SECS, _LAST_POLL_SECS = 1.0, 5.0


def set_seed(seed: int | None, strategy: tf.distribute.Strategy, repeatable: bool = False) -> int:
    """Seeds Python, numpy and TensorFlow, differently on each worker of a strategy; the first weights are the chief's.

    Args:
      seed: the run's seed.
      strategy: where the agent will be made.
      repeatable: whether operations on a GPU are to be deterministic, as they are on a CPU.

    Returns:
      The run's seed; the chief draws it if there is none.
    """
    if seed is None:
        seed = workers.Agreement(strategy).of_chief(random.SystemRandom().randrange(2**31))
    tf.keras.utils.set_random_seed(seed + strategies.layout(strategy).worker)
    if repeatable and tf.config.list_physical_devices('GPU'):
        tf.config.experimental.enable_op_determinism()
    return seed


@contextlib.contextmanager
def only_learner(run: Run, device: Device) -> Iterator[tuple[Run, tf.distribute.Strategy, Callable[[], None]]]:
    """Makes this process the only learner of the run, or one of its workers, for the time of the block.

    It gives the run with the directory that this worker writes to, the strategy that trains, and a
    function that sets the job's status to 'stopped', which is called if the block raises Stopped.

    Raises:
      RuntimeError: if another process is the run's learner.
      PeerStopped: if another worker has died, or this machine will be stopped.
    """
    strategies.use_threads(device.inter_op_threads, device.intra_op_threads)  # before any other use of TensorFlow
    strategy = strategies.make(device.strategy)
    with (
        machine.notices_watched(device.watches_maintenance, run.stop),
        workers.peer_failures(strategy),
        checkpoints.writable_run_dir(strategy, run.dir) as own_dir,
        own_dir.own('train', run.stop),
    ):
        run = dataclasses.replace(run, dir=own_dir)
        status = run.status('train')
        try:
            yield run, strategy, lambda: status.update('stopped')
        except Stopped:
            status.update('stopped')
        except BaseException as error:
            if status.newest.get('state') != 'stopped':  # by a request to another worker
                status.update(f'failed: {error}')
            raise


class Session:
    """A learner, and everything around its train steps: collection, evaluation's exports, reports, the end.

    One cycle collects, trains on what is due, and exports. Of several workers only the chief
    publishes, exports and reads reports; the others write to temporary directories. All workers end
    together, as soon as one has a reason.
    """

    def __init__(
        self,
        run: Run,
        agent: Agent,
        source: Source,
        collectors: Collectors,
        strategy: tf.distribute.Strategy,
        settings: Settings,
    ):
        """Restores the newest checkpoint; publishes and exports nothing yet.

        Args:
          run: the run.
          agent: the agent to train.
          source: the source of the batches.
          collectors: who takes the environment steps.
          strategy: the strategy that the agent was made in.
          settings: what the session does, and how often.

        Raises:
          ValueError: if the checkpoint is made for other networks.
        """
        self._run, self._run_dir, self._source, self._collectors = run, run.dir, source, collectors
        self._settings, self._stop_conditions = settings, settings.stop_conditions
        self._status = run.status('train')
        self._chief, self._agreement = strategies.layout(strategy).is_chief, workers.Agreement(strategy)
        self._alone = strategies.layout(strategy).workers == 1  # workers save together, at their intervals
        self._collect_summaries, self._summarized_env_steps = Summaries(run.dir.summaries('collect')), -1
        self._iteration_summaries, self._summarized_iteration = Summaries(run.dir.summaries('iterations')), 0
        self._progress, self._forecast = collectors.progress, Forecast(settings.stop_conditions)
        self._result: TrainResult | None = None  # of the newest call that took train steps
        self._data_failed, self._reason, self._is_cut = False, '', False
        self._lost: PeerLost | None = None
        self._consistency: ReplicaConsistency | None = None
        self._learner = Learner(
            agent,
            source,
            run.dir,
            strategy=strategy,
            triggers=self._triggers(agent, strategy),
            options=self._learner_options(agent),
            state=collectors.state(),
            manifests=collectors.manifests,
        )
        self._learner.collected = collectors.metrics
        if settings.initial.seed is None:
            use = ' for what the checkpoint does not hold; other draws go on from it' if self._learner.step else ''
            logging.info('got no seed; drew %d%s', settings.seed, use)
        self._step = self._learner.step  # of the variable, whose reading takes long beside a small environment's step
        initial_values.load_optimizers(agent, settings.initial, run.dir)  # the learner has made their slots
        self._make_exports = lambda: PolicyExports(agent, run.dir, settings.exports, self._export_facts, self._texts)

    def _texts(self) -> dict[str, str]:
        """Returns texts about the run by tag: its seed, its configuration, the code's revision, ..."""
        own = {'run/seed': str(self._settings.seed), 'run/networks': agent_data.module_tree(self._learner.agent)}
        return {**own, **self._run.hooks.describe()}

    def _learner_options(self, agent: Agent) -> LearnerOptions:
        """Returns the learner's settings with the functions that only the session can provide."""
        learner, summaries = self._settings.learner, self._settings.learner.summaries
        if not self._source.prepared and (preprocess := agent_data.preprocessing(agent)):
            learner = dataclasses.replace(learner, loop=dataclasses.replace(learner.loop, preprocess=preprocess))
        if summaries is None:
            return learner
        users = summaries.sources
        sources = SummarySources(
            lambda: self._progress.policy_version,
            lambda: {**(users.metrics() if users.metrics else {}), **self._metrics()},
            lambda: {**(users.texts() if users.texts else {}), **self._texts()},
            functools.partial(self._watch, users.watch or self._metric_checks()),
        )
        return dataclasses.replace(learner, summaries=dataclasses.replace(summaries, sources=sources))

    def _metric_checks(self) -> Callable[[int, Any], None]:
        """Returns what warns of metrics that look wrong; without the extension that brings it, it does nothing."""
        checks = extensions.find('metric_checks')
        return checks.Watch(self._run_dir) if checks else lambda step, metrics: None

    def _watch(self, watch: Callable[[int, Any], None], step: int, metrics: Mapping[str, Any]) -> None:
        """Hands a summary on, and writes it with the iteration as the step, if there are iterations."""
        watch(step, metrics)
        if (iteration := metrics.get('num_iterations', 0)) > self._summarized_iteration:
            self._summarized_iteration = iteration
            self._iteration_summaries.write_values(iteration, metrics, 'iterations')

    def _triggers(self, agent: Agent, strategy: tf.distribute.Strategy) -> list[PeriodicAction]:
        settings, intervals = self._settings, self._settings.intervals
        triggers = [
            PeriodicAction(self._publish, every_steps=self._collectors.publish_interval_steps),
            PeriodicAction(self._export, every_steps=intervals.export_interval_steps),
        ]
        if strategies.layout(strategy).workers == 1:  # only the chief could read the file
            read = weights_reader(agent, self._run_dir)
            triggers.insert(0, PeriodicAction(read, every_steps=intervals.publish_interval_steps))
        if settings.summary_steps:
            summarize = lambda step: self._summarize_collectors()  # noqa: E731
            triggers.append(PeriodicAction(summarize, every_steps=settings.summary_steps))
        if settings.exports.update_interval_steps:
            triggers.append(PeriodicAction(self._export_update, every_steps=settings.exports.update_interval_steps))
        if intervals.replica_check_interval_steps and strategy.num_replicas_in_sync > 1:
            self._consistency = ReplicaConsistency(strategy, agent)
            triggers.append(PeriodicAction(self._consistency, every_steps=intervals.replica_check_interval_steps))
        return triggers

    def _summarize_collectors(self) -> None:
        """Writes the collectors' metrics with the run's environment steps as the step, if there are new ones."""
        with side_tasks.guarded("write the collectors' metrics to the summaries"):
            metrics = self._collectors.metrics()
            env_steps = int(metrics.get('env_steps') or 0)
            if env_steps > self._summarized_env_steps and metrics.get('mean_return') is not None:
                self._summarized_env_steps = env_steps
                self._collect_summaries.write_values(env_steps, metrics, 'collect')

    @property
    def train_step(self) -> int:
        """The train step now."""
        return self._learner.step

    def begin(self) -> None:
        """Publishes and exports the first weights, and compiles. Nothing is lost if the process ends here."""
        if self._chief:
            self._run.hooks.on_restored()
        learner, progress = self._learner, self._progress
        if self._end_reason() is None:  # an earlier session may have had stricter stop conditions
            self._run_dir.train_result.unlink(missing_ok=True)
        if progress.policy_version < 0:  # of a checkpoint that does not know it
            progress.policy_version = learner.step
        # After a crash the checkpoint's version may be older than the one that actors have.
        newest = self._agreement.of_chief(self._collectors.newest_version())  # the chief will publish soon
        if newest > progress.policy_version:
            progress.policy_version = newest + 1  # the weights of `newest` are lost
            logging.info('policy version %d was published after the checkpoint; continue with %d', newest, newest + 1)
        self._collectors.begin(learner.step)
        self._set_env_steps()
        # Only now are the weights final: a checkpoint may have been restored.
        self._send(learner.step)
        self._source.start()  # a queue's streams open before there are data
        self._exports = self._make_exports()  # collectors act while the policies are traced
        self._exports.drop_newer_than(learner.step)
        if self._collectors.are_remote:
            if self._chief:
                self._exports.begin(learner.step)  # on its thread; the first train steps do not wait for it
            learner.prepare(self._stop_conditions.num_train_steps)  # while collectors gather the first data
        elif self._chief:
            self._exports.export(learner.step)
            self._run.hooks.on_exported(learner.step)
        self._status.update('waiting for data', train_step=learner.step, **dataclasses.asdict(self._stop_conditions))
        self._called_at = self._reported_at = time.monotonic()
        self._logged = (self._called_at, learner.step)

    def run(self) -> None:
        """Trains until a stop condition or a requested stop (then it writes the result), or until the job is stopped.

        Raises:
          TimeoutError: if no data arrived for too long; the checkpoint is saved.
          PeerLost: if nothing was heard of the coordinator for too long; the checkpoint is saved.
          PeerStopped: if another worker was asked to stop, or got an error of its data; the
            checkpoint is saved.
        """
        with self._monitored():
            while not (reason := self._agree_on_stop_reason()):
                self._turn()
                if self._alone and wants_save(self._run.stop):
                    self._learner.save()
        self._collect_summaries.close()
        self._end(reason)
        workers.check_own_stop(reason, self._run.stop, self._learner.step)

    @contextlib.contextmanager
    def _monitored(self) -> Iterator[None]:
        """Watches the collectors of other processes during the block; then closes everything but the exports."""
        over = threading.Event()
        monitor = background.Thread(target=self._monitor, args=(over,), name='train_monitor')
        if self._collectors.are_remote:
            monitor.start()
        try:
            yield
        finally:
            over.set()
            self._source.close()
            self._collectors.close()
            if self._collectors.are_remote:
                monitor.join(_LAST_POLL_SECS)
            with self._guard('the last checkpoint'):
                self._learner.close()
            self._summarize_collectors()
            self._iteration_summaries.close()

    def _agree_on_stop_reason(self) -> StopReason:
        """Agrees with the other workers on whether and how training ends: each has its own clock, signals and data."""
        mine = StopReason.NONE
        if self._end_reason() is not None:
            mine = StopReason.CONDITION
        elif self._lost or self._data_failed:
            mine = StopReason.NO_DATA
        elif self._run.stop.is_set():
            mine = StopReason.REQUEST
        with self._guard("the other workers' answers"):
            return StopReason(self._agreement.greatest(mine))

    def _guard(self, what: str) -> contextlib.AbstractContextManager[None]:
        watchdog = self._settings.watchdog
        return watchdog.guard(what) if watchdog else contextlib.nullcontext()

    def _turn(self) -> None:
        """Collects, then takes the train steps that are due."""
        step, start = self._step, time.monotonic()
        pretrains = self._pretrains  # the first call after that waits for steps that these weights collect
        self._set_env_steps()
        if not (pretrains or self._collectors.due_steps(self._source)):
            self._collectors.collect(step)
        due = self._stop_conditions.most_steps(step, self._collectors.due_steps(self._source))
        due = min(due, self._settings.num_pretrain_steps - step) if pretrains else due
        # Where others collect, a call ends with new weights for them. Here the next turn takes the rest.
        cut = due if self._collectors.are_remote else min(due, self._settings.steps_to_next_file(step))
        self._is_cut, due = cut < due, cut
        collected_at = time.monotonic()
        if due:
            self._train(due, collected_at - start)
        else:
            self._progress.secs += collected_at - start
        if pretrains and not self._pretrains:
            logging.info('trained on demonstrations for %d train steps; collection begins', self._learner.step)
            self._learner.save()  # a restarted learner does not go back to a time before collection
            self._send(self._learner.step)
        self._report_if_due()

    def _train(self, num_steps: int, collect_secs: float) -> None:
        start = time.monotonic()
        with self._guard(f'a call from train step {self._learner.step}'):
            result = self._learner.run(self._learner.calls(num_steps))
        self._step = self._learner.step
        if self._chief:
            self._exports.raise_failure()
        self._called_at = time.monotonic()
        secs = self._called_at - start if self._result else result.waited_secs  # without the time of compiling
        self._progress.secs += collect_secs + secs
        self._data_failed = result.data_ended and self._source.error is not None
        self._result = result if result.num_steps else self._result

    @property
    def _pretrains(self) -> bool:
        """Whether training is on demonstrations alone, and collectors wait for its result."""
        pretrain_steps = self._settings.num_pretrain_steps
        return pretrain_steps > 0 and self._learner.step < pretrain_steps

    def _set_env_steps(self) -> None:
        if train_step.env_steps_are_used():
            train_step.set_env_steps(self._agreement.of_chief(self._collectors.env_steps))

    def _monitor(self, over: threading.Event) -> None:
        """Polls the collectors, and closes the source when training should end, since the learner may wait for data."""
        ended, seen = None, -1
        # Polls immediately, every second or more often, and after the last train step.
        while not ended:
            ended = over.wait(0.0 if ended is None else _POLL_SECS)
            # Reports and decisions may be late, but the thread must go on.
            with side_tasks.guarded('poll the collectors'):
                try:
                    self._collectors.poll()
                except PeerLost as lost:
                    self._lost = lost
                waiting_secs = time.monotonic() - self._called_at
                waits = waiting_secs > 2 * _REPORT_SECS
                step = self._learner.step if waits else seen
                if step != seen and self._settings.watchdog:  # a long call makes progress
                    self._settings.watchdog.progress()
                seen = step
                if waits and not ended:
                    self._status.update('waiting for data', train_step=step, **self._metrics())
                more_secs = waiting_secs if self._result else self._learner.waiting_secs
                if self._run.stop.is_set() or self._lost or self._end_reason(more_secs):
                    self._source.close()

    def _end(self, reason: StopReason) -> None:
        with self._guard('the last export'):
            if reason == StopReason.CONDITION:
                self._finish(next(filter(None, self._agreement.texts(self._end_reason() or ''))))
            else:
                self._exports.settle()
            # A session that is resumed publishes again; the end of training must reach the
            # collectors.
            self._collectors.end(finished=reason == StopReason.CONDITION)
        with self._guard('what the other workers write'):
            self._agreement.on_any(False)  # no worker leaves before all have written their files
        if reason == StopReason.NO_DATA:
            raise (
                self._lost
                or self._source.error
                or PeerStopped('got an error of the data of another worker; see its log; fix it, and start all again')
            )
        if reason == StopReason.REQUEST:
            logging.info('stopped at train step %d; its checkpoint is saved', self._learner.step)
            self._status.update('stopped', train_step=self._learner.step)

    def _end_reason(self, more_secs: float = 0.0) -> str | None:
        """Returns why training is over; None while it goes on. `more_secs` have passed since the last call's end."""
        if not self._reason:
            step, env_steps, secs = self._step, self._collectors.env_steps, self._progress.secs + more_secs
            request = None
            with side_tasks.guarded(f'look for {self._run_dir.stop_request}'):
                request = read_json(self._run_dir.stop_request, messages.StopRequest)
            if request is not None:
                self._reason = request.get('reason', 'stop requested')
            else:
                used_up = self._collectors.end_reason(self._learner.waiting_secs > _USED_UP_SECS)
                reached = self._stop_conditions.reached(step, env_steps, secs)
                self._reason = self._learner.stop_reason or reached or used_up or ''
        return self._reason or None

    def _finish(self, reason: str) -> None:
        """Publishes and exports the last weights, then writes the result."""
        step = self._learner.step
        self._run_dir.check_owner()
        if self._chief:
            self._exports.export(step)
        self._exports.wait()
        self._send(step, finished=True)
        env_steps, secs = self._collectors.env_steps, self._progress.secs
        result = {'reason': reason, 'train_step': step, 'env_steps': env_steps, 'seconds': round(secs, 3)}
        result['conditions'] = self._stop_conditions.given()
        write_json(self._run_dir.train_result, result)  # after which the run writes nothing else
        logging.info('finished: %s, at train step %d, %d environment steps', reason, step, env_steps)
        self._status.update('finished', train_step=step, **self._newest_metrics())

    def _publish(self, step: int) -> None:
        if self._is_cut and self._collectors.due_steps(self._source):
            return  # nobody acts before the next turn
        if step > self._settings.num_pretrain_steps:
            self._progress.policy_version += 1
        # `_turn` sends the last weights of pre-training.
        if step != self._settings.num_pretrain_steps:
            self._send(step)

    def _send(self, step: int, finished: bool = False) -> None:
        self._source.on_version(self._progress.policy_version)
        self._collectors.publish(step, self._pretrains, finished)

    def _export(self, step: int) -> None:
        self._run_dir.check_owner()
        if not self._chief:
            return
        self._exports.export(step)
        if not self._collectors.are_remote:
            self._exports.settle()  # so that it does not depend on the clock which exports replace others
            self._exports.raise_failure()
            start = time.monotonic()
            self._run.hooks.on_exported(step)
            if self._result:  # the first call's seconds do not count anyway
                self._progress.secs -= time.monotonic() - start

    def _export_update(self, step: int) -> None:
        self._run_dir.check_owner()
        if self._chief:
            self._exports.export_update(step)

    def _export_facts(self) -> dict[str, Any]:
        return {**self._collectors.facts(), 'policy_version': self._progress.policy_version}

    def _metrics(self) -> dict[str, Any]:
        """Returns the metrics besides the learner's."""
        lag = {}
        if self._result and 'policy_version' in self._result.info:
            lag = {'policy_lag': self._progress.policy_version - self._result.info['policy_version']}
        return {
            **self._collectors.metrics(),
            **lag,
            **({'replica_difference': self._consistency.difference} if self._consistency else {}),
            'failed_saves': self._learner.checkpoints.num_failed,
            'failed_exports': self._exports.num_failed,
            **self._source.metrics(),
        }

    def _newest_metrics(self) -> dict[str, Any]:
        """Returns all metrics of the status."""
        ofs: dict[str, Any] = {}
        if result := self._result:
            secs, env_steps = self._progress.secs, self._collectors.env_steps
            ofs |= {'loss': result.loss, 'data_wait_share': result.data_wait_share}
            ofs |= {'train_steps_per_sec': result.steps_per_sec, 'policy_version': self._progress.policy_version}
            ofs |= self._forecast.update(self._learner.step, env_steps, secs)
        return {**ofs, **self._metrics(), **self._collectors.rates()}

    def _report_if_due(self) -> None:
        now, result, step = time.monotonic(), self._result, self._step
        if now - self._reported_at < _REPORT_SECS:
            return
        self._reported_at = now
        self._status.update('running' if result else 'waiting for data', train_step=step, **self._newest_metrics())
        if now - self._logged[0] < LOG_EVERY_SECS:
            return
        rate = (step - self._logged[1]) / (now - self._logged[0])
        self._logged = now, step
        mean_return, total = self._collectors.mean_return, self._stop_conditions.num_train_steps
        logging.info(
            'train step %s, %d environment steps, mean return %s%s',
            step if total is None else f'{step} of {total}',
            self._collectors.env_steps,
            'none' if mean_return is None else f'{mean_return:.1f}',
            f'; {rate:.1f} train steps/s, {100 * result.data_wait_share:.0f}% waiting for data; loss {result.loss:.4g}'
            if result
            else '',
        )
