"""Drop-in for `tf_agents.train.learner`: its constants, and its Learner with the same files and values, over our core.

docs/from-tf-agents.md lists the deliberate differences and the defects that are fixed. It is for existing programs; new
ones use `tflearn.Learner`.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tf_agents.specs import tensor_spec

from tflearn.core.errors import UserValueError
from tflearn.core.train_step import crossed
from tflearn.files.run_dir import RunDir
from tflearn.learner import datasets
from tflearn.learner.summarized_loop import StepCounter
from tflearn.learner.tf_agents_checkpointer import Checkpointer
from tflearn.learner.tf_agents_loop import SampleFormat, Steps, TFAgentsLoop
from tflearn.learner.train_loop import LoopOptions, Reduction
from tflearn.learner.triggers import IntervalTrigger, StepTrigger, TimeTrigger

TRAIN_DIR = 'train'
POLICY_SAVED_MODEL_DIR = 'policies'
COLLECT_POLICY_SAVED_MODEL_DIR = 'collect_policy'
GREEDY_POLICY_SAVED_MODEL_DIR = 'greedy_policy'
RAW_POLICY_SAVED_MODEL_DIR = 'policy'
POLICY_CHECKPOINT_DIR = 'checkpoints'
REPLAY_BUFFER_CHECKPOINT_DIR = 'replay_buffer_checkpoints'

DatasetFn = Callable[..., tf.data.Dataset]
Trigger = Callable[..., Any]


class Learner:
    """Trains an agent; saves and restores its checkpoints; writes summaries; calls triggers.

    Attributes:
      train_summary_writer: the summary writer, also for the caller's own summaries.
      triggers: a list that belongs to this object; more may be added.
    """

    def __init__(
        self,
        root_dir: str | os.PathLike[str],
        train_step: tf.Variable,
        agent: Any,
        experience_dataset_fn: DatasetFn | None = None,
        after_train_strategy_step_fn: Callable[..., Any] | None = None,
        triggers: Sequence[Trigger] | None = None,
        checkpoint_interval: int | None = 100000,
        summary_interval: int | None = 1000,
        max_checkpoints_to_keep: int | None = 3,
        use_kwargs_in_agent_train: bool = False,
        strategy: tf.distribute.Strategy | None = None,
        run_optimizer_variable_init: bool = True,
        use_reverb_v2: bool = False,
        direct_sampling: bool = False,
        experience_dataset_options: tf.distribute.InputOptions | None = None,
        strategy_run_options: tf.distribute.RunOptions | None = None,
        summary_root_dir: str | os.PathLike[str] | None = None,
        extra_reductions: Mapping[str, Reduction] | None = None,
    ):
        """Traces the train step and restores the newest checkpoint.

        Args:
          root_dir: local path; checkpoints are in `train/checkpoints` below it.
          train_step: int64 scalar, which should be the agent's `train_step_counter`.
          agent: a `TFAgent`, made within the strategy's scope.
          experience_dataset_fn: returns a dataset of (experience, sample_info), batched for one replica. If it has an
            argument without a default, it is called with the `InputContext`. None: each `run` gets an iterator.
          after_train_strategy_step_fn: called in each replica after each train step, while that is traced, with
            (experience, sample_info) and the LossInfo.
          triggers: called with the train step after each `run`. May include those of `tflearn.learner.triggers`.
          checkpoint_interval: a checkpoint is saved after a `run` that reached a multiple of it; None or below 1: none.
          summary_interval: train steps at its multiples are summarized; None or below 1: none.
          max_checkpoints_to_keep: number of newest checkpoints that are kept; None keeps all.
          use_kwargs_in_agent_train: experience is a dict of keyword arguments of `agent.train`.
          strategy: the strategy that runs train steps; default: the current one.
          run_optimizer_variable_init: trace the train step now, so that a checkpoint can be checked against it.
          use_reverb_v2: dataset elements are named tuples with `data` and `info`.
          direct_sampling: dataset elements are experience only.
          experience_dataset_options: how the strategy distributes the dataset.
          strategy_run_options: options of `strategy.run`.
          summary_root_dir: summaries go to `train` below it; default: `root_dir`.
          extra_reductions: see `LoopOptions`; not in TF-Agents.

        Raises:
          ValueError: if the newest checkpoint does not fit, the agent cannot be traced, or a subclass has a
            `single_train_step`.
        """
        check_subclass(type(self))
        _refuse_remote(root_dir, summary_root_dir or root_dir)
        if agent.train_step_counter is not train_step:
            logging.warning(
                "train_step is not the agent's train_step_counter: triggers and summaries depend on it only"
            )
        self.train_step, self._agent = train_step, agent
        self.strategy = strategy or tf.distribute.get_strategy()
        self._samples = SampleFormat(direct_sampling, use_reverb_v2, use_kwargs_in_agent_train)
        self._summary_interval = _interval(summary_interval)
        self.train_summary_writer = self._writer(RunDir(summary_root_dir or root_dir))
        self._counter = StepCounter(train_step, increment=None)
        self._due: int | None = None  # the train step that is summarized next
        self._loss_sum, self._num_summed = 0.0, 0
        after_step = _after_step(after_train_strategy_step_fn, use_kwargs_in_agent_train)
        options = LoopOptions(
            on_nonfinite='ignore',
            extra_reductions=extra_reductions or {},
            after_step=after_step,
            run_options=strategy_run_options,
        )
        self._dataset = self._iterator = None
        with self.strategy.scope():
            if experience_dataset_fn:
                self._dataset = self.strategy.distribute_datasets_from_function(
                    lambda context: call_dataset_fn(experience_dataset_fn, context), experience_dataset_options
                )
            agent.initialize()
            self._loop = TFAgentsLoop(agent, self.strategy, self._samples, options)
            if run_optimizer_variable_init:
                self._prepare()
            objects = {'agent': agent, 'train_step': train_step}
            self._checkpointer = Checkpointer(RunDir(root_dir), objects, max_checkpoints_to_keep)
            restored = self._checkpointer.restore(all_made=run_optimizer_variable_init)
        self.triggers = self._own_triggers(checkpoint_interval, triggers or (), restored)

    def _writer(self, run_dir: RunDir) -> tf.summary.SummaryWriter:
        if not self._summary_interval:
            return tf.summary.create_noop_writer()
        return tf.summary.create_file_writer(str(run_dir.checkpoints.parent), flush_millis=10000)

    def _prepare(self) -> None:
        if self._dataset is not None:
            self._loop.prepare_for(self._experience_iterator)
            return
        spec = tensor_spec.add_outer_dims_nest(
            self._agent.training_data_spec, (None, self._agent.train_sequence_length)
        )
        self._loop.prepare({'experience': spec} if self._samples.keywords else spec)

    def _own_triggers(self, interval: int | None, triggers: Sequence[Trigger], restored: bool) -> list[Trigger]:
        if restored:  # otherwise the caller's start value stays
            for trigger in triggers:
                if hasattr(trigger, 'set_start'):
                    trigger.set_start(self.train_step.numpy())
        save = _interval(interval)
        if not save:
            logging.warning('no checkpoints: they are switched off by checkpoint_interval=%s', interval)
            return [*triggers]
        # First, so that what the others export or publish is never newer than the checkpoint.
        return [IntervalTrigger(save, self._checkpointer.save), *triggers]

    @property
    def train_step_numpy(self) -> Any:
        """The train step now: numpy scalar."""
        return self.train_step.numpy()

    @property
    def _experience_iterator(self) -> Any:
        if self._iterator is None:
            self._iterator = self.new_iterator()
        return self._iterator

    def new_iterator(self) -> Any:
        """Returns another iterator over the dataset of `experience_dataset_fn`. Raises ValueError if there is none."""
        if self._dataset is None:
            raise UserValueError(
                'got neither an iterator nor experience_dataset_fn; need one of them; give run() an iterator'
            )
        with self.strategy.scope():
            return datasets.iterate(self._dataset)

    def run(self, iterations: int = 1, iterator: Any = None, parallel_iterations: int = 10) -> Any:
        """Takes train steps, then calls the triggers.

        Args:
          iterations: train steps; at least 1. Another number does not compile again.
          iterator: an iterator of the data; default: one over the dataset of `experience_dataset_fn`.
          parallel_iterations: has no effect, since each train step needs the one before it.

        Returns:
          LossInfo of the last step that was taken, in float32 scalars: the loss of the global batch; extras reduced by
          `extra_reductions`, means by default.

        Raises:
          AssertionError: if `iterations` is below 1, as in TF-Agents.
          tf.errors.OutOfRangeError: if the data had ended already.
        """
        if iterations < 1:
            raise AssertionError(f'Iterations must be greater or equal to 1, was {iterations}')
        taken = self.take(iterations, iterator)
        if taken.last is None:
            raise tf.errors.OutOfRangeError(None, None, f'the data ended at train step {self.train_step_numpy}')
        if taken.num_steps < iterations:
            logging.warning('the data ended after %d of %d train steps', taken.num_steps, iterations)
        return taken.last

    def take(self, max_steps: int, iterator: Any = None) -> Steps:
        """Takes train steps until the data end, then calls the triggers."""
        start = self._counter.step
        iterator = self._experience_iterator if iterator is None else iterator
        num_steps, last = 0, None
        with self.strategy.scope():
            while num_steps < max_steps:
                before, (count, summarized) = self._counter.step, self._part(max_steps - num_steps)
                part = self._loop.run(iterator, count, self.train_summary_writer if summarized else None)
                self._counter.observe(before, part.num_steps)
                num_steps, last = num_steps + part.num_steps, part.last or last
                self._loss_sum, self._num_summed = self._loss_sum + part.loss, self._num_summed + part.num_steps
                if summarized and part.num_steps:
                    self._due = None
                    self._write_loss(self._counter.step)
                if part.num_steps < count:
                    break
        self._call_triggers(start)
        return Steps(num_steps, 0.0, last)

    def _part(self, num_steps: int) -> tuple[int, bool]:
        """Returns how many steps to take next, and whether they are summarized: a step that reaches a multiple is.

        If a step passed a multiple without a summary, because it added more than the steps before, the next one is.
        """
        interval = self._summary_interval
        if not interval or interval == 1:
            return num_steps, interval == 1
        multiple = (self._counter.step // interval + 1) * interval
        self._due = multiple if self._due is None else min(self._due, multiple)
        until_due = self._counter.calls_before(self._due)
        return (min(num_steps, until_due), False) if until_due else (1, True)

    def _write_loss(self, step: int) -> None:
        """Writes the mean loss of the steps since the last time; agents only know one replica's share of one step's."""
        with self.train_summary_writer.as_default(), tf.summary.record_if(True):
            tf.summary.scalar('train/loss', self._loss_sum / self._num_summed, step=step)
        self._loss_sum, self._num_summed = 0.0, 0

    def _call_triggers(self, before: int) -> None:
        after = int(self.train_step_numpy)
        interval = self._summary_interval
        summarized = crossed(interval, before, after) if interval else False
        with self.train_summary_writer.as_default(), tf.summary.record_if(summarized):
            for trigger in self.triggers:
                if isinstance(trigger, StepTrigger | TimeTrigger):
                    trigger(before, after)
                else:
                    trigger(self.train_step_numpy)

    def loss(
        self,
        experience_and_sample_info: tuple[Any, Any] | None = None,
        reduce_op: tf.distribute.ReduceOp = tf.distribute.ReduceOp.SUM,
    ) -> Any:
        """Returns the LossInfo of a batch, without any update, callback or summary.

        Args:
          experience_and_sample_info: a batch; None takes the next one of the dataset.
          reduce_op: SUM or MEAN; both sum. Replicas return their shares of the global batch's mean loss, so only the
            sum of these is the mean.
        """
        if reduce_op not in (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN):
            raise UserValueError(f'got reduce_op={reduce_op}; need SUM or MEAN')
        with self.strategy.scope():
            if experience_and_sample_info is None:
                experience_and_sample_info = self._samples.split(next(self._experience_iterator))
            experience, sample_info = experience_and_sample_info
            return self._loop.loss(experience, sample_info)

    def close(self) -> None:
        """Calls the triggers a last time, saves a last checkpoint, and flushes the summaries. Not in TF-Agents."""
        step = int(self.train_step_numpy)
        if self._checkpointer.saved_step != step:
            self._checkpointer.save(step)
        with self.train_summary_writer.as_default():
            for trigger in self.triggers:
                if hasattr(trigger, 'end'):
                    trigger.end(step)
                elif hasattr(trigger, 'set_start'):  # TF-Agents' own
                    trigger(self.train_step_numpy, force_trigger=True)
        self.train_summary_writer.close()


def call_dataset_fn(dataset_fn: DatasetFn, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Calls a dataset function, with the InputContext if it takes an argument."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(dataset_fn).parameters.values()
    takes_context = any(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)
    return dataset_fn(context) if takes_context else dataset_fn()


def check_subclass(subclass: type) -> None:
    """Raises ValueError for a subclass that overrides TF-Agents' `single_train_step`, which nothing here calls."""
    if hasattr(subclass, 'single_train_step'):
        raise UserValueError(
            f'got {subclass.__name__}.single_train_step, which is never called here; need what it does in '
            "agent.train, in experience_dataset_fn or in after_train_strategy_step_fn; or keep TF-Agents' Learner"
        )


def _after_step(function: Callable[..., Any] | None, keywords: bool) -> Callable[[Any, Any], Any] | None:
    if function and keywords:
        return lambda sample, loss_info: function(experience=sample, loss_info=loss_info)
    return function


def _interval(interval: int | None) -> int | None:
    return interval if interval and interval > 0 else None


def _refuse_remote(*paths: str | os.PathLike[str]) -> None:
    for path in paths:
        if '://' in os.fspath(path):
            raise UserValueError(f'got {path}; need a path of the local file system (or one mounted there)')
