"""Learner: many train steps per call as one compiled program, in a strategy;
checkpoints, summaries and triggers.
"""

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core import agent_data
from tflearn.core.errors import UserOSError, UserRuntimeError, UserValueError
from tflearn.core.settings import PositiveFloat, PositiveInt, checked, checked_dataclass
from tflearn.core.types import Agent
from tflearn.core.workers import Agreement
from tflearn.files import messages
from tflearn.files.manifests import Manifests
from tflearn.files.numbered import KeepEvery
from tflearn.files.run_dir import RunDir
from tflearn.learner import batches
from tflearn.learner.checkpoints import Checkpoints, OptimizerNumbers, random_state
from tflearn.learner.metrics import Metrics, TrainResult
from tflearn.learner.stop_conditions import StopConditions
from tflearn.learner.summaries import SummaryOptions
from tflearn.learner.train_loop import LoopOptions, TrainLoop
from tflearn.learner.triggers import PeriodicSave, own_triggers
from tflearn.sampling.source import DatasetFn, Source

Trigger = Callable[[int, int], bool]


@checked_dataclass(frozen=True)
class LearnerOptions:
    """When a learner saves and summarizes, and how it takes train steps.

    Attributes:
      checkpoint_interval_steps: train steps between two checkpoints; None: no such rule.
      max_checkpoints_to_keep: number of newest checkpoints that are kept.
      max_failed_saves: checkpoints in a row that could not be written, on a full disk for example,
        after which training ends; None: training continues.
      keep_checkpoint_every_steps: the first checkpoint at or after each multiple is never deleted;
        None: no such rule.
      keep_checkpoint_every_hours: the first checkpoint, and each that was written so long after the
        last one that is kept by this rule, is never deleted; None: no such rule.
      summaries: when summaries are written, and what they contain; None writes none.
      loop: how train steps are taken.
      after_run: called on the host after every call of `run`, with its result, before the triggers.
      make_triggers: called with the learner when it is made, on each worker; returns your own
        triggers, which are called after all others (see `learner.triggers`). They can use its
        `agent`, `step`, `collected()` (`docs/your-algorithm.md`), `summarize`, `save` and `stop`.
      checkpoint_on_error: whether the last complete train step is saved if an error ends training:
        'always', 'never', or 'ask' at the terminal (without a terminal it is saved).
      checkpoint_interval_secs: seconds between two checkpoints, beside `checkpoint_interval_steps`:
        a call of `run` ends first. With None of both, only `save` and `close` save.
    """

    checkpoint_interval_steps: PositiveInt | None = 5_000
    summaries: SummaryOptions | None = dataclasses.field(default_factory=SummaryOptions)
    max_checkpoints_to_keep: PositiveInt = 3
    max_failed_saves: PositiveInt | None = 3
    keep_checkpoint_every_steps: PositiveInt | None = None
    keep_checkpoint_every_hours: PositiveFloat | None = None
    loop: LoopOptions = dataclasses.field(default_factory=LoopOptions)
    after_run: Callable[[TrainResult], object] | None = None
    make_triggers: Callable[['Learner'], Sequence[Trigger]] | None = None
    checkpoint_on_error: Literal['always', 'never', 'ask'] = 'always'
    checkpoint_interval_secs: PositiveFloat | None = None


class Learner:
    """Trains an agent; restores and saves its checkpoints.
    `with Learner(...) as learner` closes it at the end.

    Each replica of the agent must divide its loss by the global batch size, as TF-Agents' agents
    do: the losses are summed over replicas. Extra metrics are averaged, unless
    `LoopOptions.extra_reductions` names another rule; but scalar losses in a named tuple, as
    TF-Agents' agents return them, are summed like the loss.

    Attributes:
      collected: returns what a run's collectors report, such as 'env_steps', and the 'mean_return'
        of their newest episodes (None before the first); {} of a learner on its own.
    """

    def __init__(
        self,
        agent: Agent,
        data: DatasetFn | Source,
        run_dir: RunDir,
        *,
        strategy: tf.distribute.Strategy | None = None,
        triggers: Sequence[Trigger] = (),
        options: LearnerOptions = LearnerOptions(),
        state: Mapping[str, Any] | None = None,
        manifests: Manifests | None = None,
    ):
        """Traces the train step, and restores the newest complete checkpoint.

        Args:
          agent: made within the strategy's scope; its `train_step_counter` is the train step.
          data: a function that is called once per input pipeline, with its InputContext, and
            returns a dataset whose elements are (data, info) or data, batched for one replica; data
            is what `agent.train` takes, info a dict of numbers that are only averaged. With an
            argument `consumed` it skips so many batches, see `DatasetSource`. Or a `Source`, whose
            batches are drawn inside the compiled program.
          run_dir: where checkpoints and summaries are written.
          strategy: where train steps run; default: the current one.
          triggers: each is called with the train steps (before, after) of every call of `run`,
            after checkpoints are saved. `close` calls `end(step)` of those that have it.
          options: intervals, and how train steps are taken.
          state: additional trackable objects for the checkpoint, by name ('agent' and 'train_step'
            are there already).
          manifests: see `Checkpoints`.

        Raises:
          TypeError: if the agent has an optimizer of Keras 3.
          ValueError: if the run directory cannot be written to, the newest readable checkpoint does
            not fit, or the strategy did not make the agent or cannot train on such a dataset.
        """
        run_dir.make()
        self.train_step = agent.train_step_counter
        self._agent, self._options, self._run_dir = agent, options, run_dir
        self._strategy = strategy or tf.distribute.get_strategy()
        self._healthy, self._had_data, self._data_ended = True, False, False
        self.stop_reason: str | None = None
        self.collected: Callable[[], Mapping[str, Any]] = dict
        self._waits_since: float | None = None
        self._closed_at: int | None = None
        with self._strategy.scope():
            self._batches = batches.wrap(data, self._strategy, self.train_step, bool(options.loop.jit_compile))
            agent_data.initialize(agent, self._strategy)
            agent_data.make_slots(agent)
            summaries = options.summaries or SummaryOptions(interval_steps=None)
            # Traced here, so that the optimizer's slots are there to be restored, and saved with
            # the first checkpoint.
            self._loop = TrainLoop(agent, self._batches, self._strategy, options.loop)
            self._loop.begin(run_dir.summaries('train'), summaries)
            self._batches = self._loop.batches
            self._triggers = self._all_triggers(triggers)
            self.checkpoints = self._checkpoints(run_dir, {**self._batches.state(), **(state or {})}, manifests)
            self.restored_from = self.checkpoints.restore_newest()
            self._numbers.keep()
            self._had_data = self._batches.num_consumed > 0
        Agreement(self._strategy).check_same(self.step, 'the train step that was restored')
        replicas, source = self._strategy.num_replicas_in_sync, self.restored_from or 'from scratch'
        logging.info('learner: %d replica(s), train step %d, %s', replicas, self.step, source)

    def _checkpoints(self, run_dir: RunDir, state: Mapping[str, Any], manifests: Manifests | None) -> Checkpoints:
        clocks = ((i, getattr(each, 'phase', None)) for i, each in enumerate(self._triggers))
        phases = {f'trigger_{i}': phase for i, phase in clocks if phase is not None}
        self._numbers = OptimizerNumbers(self._agent)
        more = {'random': random_state(), 'optimizer_numbers': self._numbers, **self._loop.state(), **phases, **state}
        elsewhere = ('data', 'dataset', 'in_process', 'loop')  # what only other data or jobs of the run have
        checkpoints = Checkpoints(
            run_dir.checkpoints,
            {'agent': self._agent, 'train_step': self.train_step, **more},
            self._options.max_checkpoints_to_keep,
            keep_every=KeepEvery(self._options.keep_checkpoint_every_steps, self._options.keep_checkpoint_every_hours),
            optional={*more, *elsewhere},
            finite=('agent',),
            asynchronous=True,
            manifests=manifests,
        )
        checkpoints.after_write = run_dir.store.upload
        return checkpoints

    def _all_triggers(self, triggers: Sequence[Trigger]) -> tuple[Trigger, ...]:
        own = own_triggers(self._options.make_triggers, self)
        steps, secs = self._options.checkpoint_interval_steps, self._options.checkpoint_interval_secs
        saving = [PeriodicSave(self.save, steps, secs, self._strategy)] if steps or secs else []
        return (*saving, *triggers, *own)

    def __enter__(self) -> 'Learner':
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def step(self) -> int:
        """The train step now."""
        return int(self.train_step.numpy())

    @property
    def agent(self) -> Agent:
        """The agent that it trains."""
        return self._agent

    @property
    def waiting_secs(self) -> float:
        """How long the call of `run` on another thread has been waiting for data;
        0 if it is not waiting.
        """
        since = self._waits_since
        in_grant = 0.0 if since is None else time.perf_counter() - since
        return in_grant or self._batches.waiting_secs

    @property
    def num_traces(self) -> int:
        """How often the train step was traced: a few times at the beginning, never again."""
        return self._loop.num_traces

    @property
    def jit_compiles(self) -> bool:
        """Whether XLA has compiled many train steps as one program,
        see `LoopOptions.jit_compile`.
        """
        return self._loop.jit_compiles

    def calls(self, num_train_steps: int) -> int:
        """Returns how many calls of `agent.train` take at most so many train steps, for `run`;
        at least 1.

        It is 1 before the first `run` has shown how many steps a call of the agent counts.
        tflearn's own count one, TF-Agents' PPO counts each of its epochs.
        """
        return max(1, num_train_steps // self._loop.steps_per_call) if self._loop.steps_per_call else 1

    def prepare(self, num_train_steps: int | None) -> None:
        """Compiles what train steps up to `num_train_steps` need, before there are data;
        only for a `Source`.

        None has no limit.
        """
        self._loop.prepare(self.step, num_train_steps)

    @checked
    def run(self, num_steps: PositiveInt) -> TrainResult:
        """Takes train steps, then calls the triggers.

        Args:
          num_steps: train steps to take; at least 1. Another number does not compile again.

        Returns:
          The means over the steps taken. If the data ended, `data_ended` is true, and there may be
          fewer steps.

        Raises:
          ValueError: if `num_steps` is below 1, or the data give no batch at all.
          RuntimeError: if the data had ended in an earlier call, unless they come in rounds
            (`rounds.RoundSource`).
          FloatingPointError: at a loss that is not finite, if `on_nonfinite` is 'stop'; a
            checkpoint is saved first if the variables are finite. If it is 'skip', as soon as they
            are not. In both cases, if a checkpoint was refused because of them. Also if the agent
            raises it itself.
          OSError: if `max_failed_saves` checkpoints in a row could not be written.
        """
        if self.checkpoints.refusal and self._options.loop.on_nonfinite != 'ignore':
            self._healthy = False  # `close` need not try again
            raise self.checkpoints.refusal
        self._check_saves()
        if self._data_ended and not self._batches.has_rounds:
            raise self._no_more_data()
        before, start = self.step, time.perf_counter()
        metrics = self._take(num_steps)
        self._data_ended = metrics.num_steps < num_steps and not self._stops(metrics)
        result = TrainResult.of(metrics, time.perf_counter() - start, self._data_ended)
        if result.num_nonfinite:  # always 0 if they are ignored
            self._check_numbers()
        if result.data_ended and self._batches.may_end:  # a source ends because it was closed
            if not (result.num_steps or self._had_data):
                raise UserValueError(
                    'got data that give no batch; need one at least; check that the dataset is not empty, nor shorter '
                    'than a batch with drop_remainder=True'
                )
            logging.warning('the data ended after %d of %d train steps', result.num_steps, num_steps)
        self._had_data = True
        if self._options.after_run:
            self._options.after_run(result)
        # Reading the variable takes as long as a small network's train step in XLA.
        after = self.step
        for trigger in self._triggers:
            start = time.perf_counter()
            trigger(before, after)
            self._loop.metrics.add_trigger(time.perf_counter() - start)
        return result

    def loss(self, element: Any = None) -> TrainResult:
        """Returns the loss of a batch, without any update or other effect.

        Args:
          element: an element of the data; None takes the next one.
        """
        start = time.perf_counter()
        with self._strategy.scope():
            if element is None:
                element = self._batches.next()
                if element is None:
                    raise self._no_more_data()
            metrics = self._loop.loss(element)
        return dataclasses.replace(TrainResult.of(metrics, time.perf_counter() - start), num_steps=0)

    @checked
    def train(
        self,
        stop_conditions: StopConditions,
        steps_per_call: PositiveInt = 200,
        env_steps: Callable[[], int] = lambda: 0,
        stop: threading.Event | None = None,
    ) -> str:
        """Trains until a stop condition holds, the data end, or `stop` is set;
        then closes the learner.

        Args:
          stop_conditions: when training ends; of the first call of `run`, which compiles, only
            waits for data count.
          steps_per_call: train steps of a call of `run`.
          env_steps: returns the environment steps so far, for `stop_conditions.max_env_steps`.
          stop: ends training when set, after a call of `run`.

        Returns:
          Why training ended.
        """
        start: float | None = None
        self.stop_reason = None
        stop_conditions.check()
        try:
            while True:
                secs = 0.0 if start is None else time.monotonic() - start
                reason = self.stop_reason or stop_conditions.reached(self.step, env_steps(), secs)
                if reason:
                    return reason
                if stop and stop.is_set():
                    return 'stopped'
                result = self.run(self.calls(stop_conditions.most_steps(self.step, steps_per_call)))
                if result.data_ended:
                    return 'the data ended'
                if start is None:
                    start = time.monotonic() - result.waited_secs
        finally:
            self.close()

    def stop(self, reason: str) -> None:
        """Ends training after the call of `run` under way: for triggers and `after_run`.

        A run of jobs that ends so goes on when one of its stop conditions is raised.

        Args:
          reason: why, for the log and for who reads the run's result.
        """
        self.stop_reason = f'{messages.STOPPED} {reason}'

    def save(self) -> None:
        """Saves a checkpoint of this train step, unless there is one.
        It is written on a background thread.

        Variables that are not finite are not saved: this is logged, and the previous checkpoint
        stays the newest.
        """
        if self._healthy and self.checkpoints.saved_step != self.step:
            self._run_dir.check_owner()
            self.checkpoints.save(self.step)

    def close(self) -> None:
        """Saves a last checkpoint, calls `end` of the triggers that have it, and flushes all files.

        Closing it again at the same train step does nothing. All of it is done, whatever fails;
        then the last error is raised, which has the earlier ones as its context.

        Raises:
          OSError: if the checkpoint could not be written.
          FloatingPointError: if the variables are not finite, unless `on_nonfinite` is 'ignore'.
          Exception: what a trigger raises.
        """
        if self._closed_at == self.step:
            return
        self._closed_at = self.step
        with contextlib.ExitStack() as ending:  # the last one comes first
            ending.callback(self._loop.close, self.step)
            for trigger in reversed(self._triggers):
                if hasattr(trigger, 'end'):
                    ending.callback(trigger.end, self.step)
            self._batches.close()
            # Before the triggers end: an action that fails again there must not cost the train
            # steps.
            if self._saves_now():
                self.save()
            self._wait_for_checkpoints()

    def _saves_now(self) -> bool:
        """Returns whether to save where training ends: if it is by an error, as the options say."""
        error, rule = sys.exc_info()[1], self._options.checkpoint_on_error
        if not isinstance(error, Exception) or rule == 'always' or self.checkpoints.saved_step == self.step:
            return True
        if rule == 'ask' and not sys.stdin.isatty():  # nobody is there
            return True
        question = f'{type(error).__name__}: {error}\nSave a checkpoint of train step {self.step}? [y/n] '
        if rule == 'ask' and input(question).strip().lower().startswith('y'):
            return True
        newest = self.checkpoints.newest or 'the beginning'
        logging.info('train step %d is not saved after the error: the run continues from %s', self.step, newest)
        return False

    def summarize(self, values: Mapping[str, float], group: str = 'train') -> None:
        """Adds the caller's metrics to the summaries of this train step,
        under the tags `<group>/<name>`.
        """
        self._loop.summaries.write_values(self.step, values, group)

    def write_text(self, name: str, markdown: str) -> None:
        """Writes a text for TensorBoard, under the tag `name`."""
        self._loop.summaries.write_text(self.step, name, markdown)

    def _take(self, num_steps: int) -> Metrics:
        """Takes train steps: `num_steps`, or fewer if the data end or a loss stops training."""
        total = Metrics()
        while total.num_steps < num_steps and not self._stops(total):
            granted, waited = self._grant(num_steps - total.num_steps)
            taken = self._take_granted(granted) if granted else Metrics()
            total += waited + taken
            if not granted or taken.num_steps < granted:
                break
        return total

    def _stops(self, metrics: Metrics) -> bool:
        return metrics.num_nonfinite > 0 and self._options.loop.on_nonfinite == 'stop'

    def _grant(self, num_steps: int) -> tuple[int, Metrics]:
        self._waits_since = start = time.perf_counter()
        granted = self._batches.grant(num_steps)
        self._waits_since = None
        waited = Metrics(waited_secs=time.perf_counter() - start)
        self._loop.metrics.add(waited)
        return granted, waited

    def _take_granted(self, num_steps: int) -> Metrics:
        try:
            taken = self._loop.take(num_steps)
        except tf.errors.OpError as error:
            self._healthy = False  # some variables may be of another step than others
            if isinstance(error, tf.errors.InvalidArgumentError) and 'Tensor had' in error.message:
                # TF-Agents' agents check by tf.debugging.check_numerics.
                raise self._not_finite() from error
            raise
        self._batches.count(taken.num_steps)
        return taken

    def _no_more_data(self) -> UserRuntimeError:
        error = UserRuntimeError(
            f'got no more data at train step {self.step}: they have ended; need data for another batch; use endless '
            'data (dataset.repeat()), or stop when TrainResult.data_ended is true'
        )
        error.__cause__ = self._batches.error
        return error

    def _check_numbers(self) -> None:
        """Raises, after a loss that was not finite,
        unless such steps are skipped and the variables are finite.
        """
        parts = tf.train.TrackableView(self._agent).descendants()
        variables = [part for part in parts if isinstance(part, tf.Variable)]
        bad = [v.name for v in variables if v.dtype.is_floating and not np.isfinite(v.numpy()).all()]
        if bad:
            self._healthy = False  # `close` must not save it either
        elif self._options.loop.on_nonfinite == 'skip':
            return
        else:
            self.save()
        more = f'{bad[0]} and {len(bad) - 1} more variables are not finite either; ' if bad else ''
        raise self._not_finite(more)

    def _check_saves(self) -> None:
        failed, most = self.checkpoints.num_failed, self._options.max_failed_saves
        if most is not None and failed >= most:
            self._healthy = False  # `close` need not try again
            raise UserOSError(
                f'got {failed} checkpoints in a row that could not be saved in {self.checkpoints.directory}, up to '
                f'train step {self.step}; need room for them; make room, and start the same command again: it '
                f'continues from {self.checkpoints.newest or "the beginning"}'
            )

    def _wait_for_checkpoints(self) -> None:
        try:
            self.checkpoints.wait()
        except FloatingPointError:
            if self._healthy and self._options.loop.on_nonfinite != 'ignore':
                raise
        except OSError:
            if self._healthy:
                raise

    def _not_finite(self, more: str = '') -> FloatingPointError:
        self._wait_for_checkpoints()
        if columns := self._batches.nonfinite.names():
            return FloatingPointError(
                f'got a loss that is not finite at train step {self.step}; {more}its batch has numbers that are not '
                f'finite in {", ".join(columns)}; need finite data; correct what they come from: the environment, a '
                f'transform, or recorded episodes; then continue from {self.checkpoints.newest or "the beginning"}'
            )
        return FloatingPointError(
            f'got a loss that is not finite at train step {self.step}; {more}'
            f'continue from {self.checkpoints.newest or "the beginning"} with a smaller learning rate or with clipped '
            "gradients, or set on_nonfinite to 'skip' with OptimizerOptions(skip_nonfinite=True)"
        )
