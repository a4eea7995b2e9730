"""Drop-in for `tf_agents.train.learner`: its constants, and its Learner with the same files and values, of our parts.

docs/from-tf-agents.md lists the deliberate differences and the defects that are fixed. It is for
existing programs; new ones use `tflearn.Learner`.
"""

import atexit
import contextlib
import functools
import itertools
import os
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.specs import tensor_spec

from tflearn.core import agent_data, extensions, summary_tensors, workers
from tflearn.core.errors import UserValueError
from tflearn.core.train_step import crossed
from tflearn.extensions.tf_agents import programs
from tflearn.extensions.tf_agents.gin_names import LEARNER, in_place_of
from tflearn.extensions.tf_agents.loss_infos import LossInfos, with_summary
from tflearn.files.run_dir import RunDir, is_url
from tflearn.learner import batches, datasets, xla_loop
from tflearn.learner.checkpoints import Checkpoints, writable_run_dir
from tflearn.learner.datasets import StackBatches, is_complete
from tflearn.learner.metrics import LOSS, Reduction
from tflearn.learner.train_loop import JitCompile, StepCounter
from tflearn.learner.triggers import PeriodicAction
from tflearn.learner.xla_loop import Program

TRAIN_DIR = 'train'
POLICY_SAVED_MODEL_DIR = 'policies'
COLLECT_POLICY_SAVED_MODEL_DIR = 'collect_policy'
GREEDY_POLICY_SAVED_MODEL_DIR = 'greedy_policy'
RAW_POLICY_SAVED_MODEL_DIR = 'policy'
POLICY_CHECKPOINT_DIR = 'checkpoints'
REPLAY_BUFFER_CHECKPOINT_DIR = 'replay_buffer_checkpoints'

DatasetFn = Callable[..., tf.data.Dataset]
Trigger = Callable[..., Any]


class _Checkpointer(Checkpoints):
    """`Checkpoints` with the interface of TF-Agents' `common.Checkpointer`."""

    def save(self, step: Any) -> str:
        """Saves a checkpoint atomically; returns when it is written."""
        return super().save(int(tf.convert_to_tensor(step)))  # of several replicas it is no number

    @property
    def manager(self) -> Any:
        """What a `tf.train.CheckpointManager` knows of the directory now; the newest checkpoint is the last."""
        paths = [self._files.prefix(step) for step in self._files.numbers()]
        return types.SimpleNamespace(directory=str(self.directory), checkpoints=paths, latest_checkpoint=self.newest)

    @property
    def checkpoint_exists(self) -> bool:
        """Whether there is a checkpoint in the directory now."""
        return self.newest is not None


@in_place_of(LEARNER)
class Learner:
    """Trains an agent; saves and restores its checkpoints; writes summaries; calls triggers.

    A subclass may have a `single_train_step` of its own, which is traced in place of this one.

    Attributes:
      train_summary_writer: the summary writer, also for the caller's own summaries.
      triggers: a list that belongs to this object; more may be added.
    """

    _dataset: Any = None
    _iterator: Any = None
    _due: int | None = None  # the train step that is summarized next
    _traced: Any = None  # the train step without a summary
    # Of the train step that is being traced, by tag; None: it is not summarized.
    _summary: dict[str, tf.Tensor] | None = None
    _stacks: StackBatches | None = None  # the dataset's batches, for XLA; else `_iterator` has single ones
    _own_programs: dict[bool, Program]  # on the learner's own dataset, with and without a summary

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
        jit_compile: JitCompile = 'auto',
    ):
        """Traces the train step and restores the newest checkpoint.

        Args:
          root_dir: a path or a URL; checkpoints are in `train/checkpoints` below it. If workers
            that train as one give the same path, only the chief's files are kept, and all restore
            the chief's checkpoint.
          train_step: int64 scalar, which should be the agent's `train_step_counter`.
          agent: a `TFAgent`, made within the strategy's scope.
          experience_dataset_fn: returns a dataset of (experience, sample_info), batched for one
            replica. If it has an argument without a default, it is called with the `InputContext`.
            None: each `run` gets an iterator.
          after_train_strategy_step_fn: called in each replica after each train step, while that is
            traced, with (experience, sample_info) and the LossInfo.
          triggers: called with the train step after each `run`. May include those of
            `tflearn.learner.triggers`.
          checkpoint_interval: a checkpoint is saved after a `run` that reached a multiple of it;
            None or below 1: none.
          summary_interval: train steps at its multiples are summarized; None or below 1: none.
          max_checkpoints_to_keep: number of newest checkpoints that are kept; None keeps all.
          use_kwargs_in_agent_train: experience is a dict of keyword arguments of `agent.train`.
          strategy: the strategy that runs train steps; default: the current one.
          run_optimizer_variable_init: without a dataset, trace a train step on the agent's
            `training_data_spec` now, so that a checkpoint can be checked against the optimizer's
            variables.
          use_reverb_v2: dataset elements are named tuples with `data` and `info`.
          direct_sampling: dataset elements are experience only.
          experience_dataset_options: how the strategy distributes the dataset.
          strategy_run_options: options of `strategy.run`.
          summary_root_dir: summaries go to `train` below it; default: `root_dir`.
          extra_reductions: see `LoopOptions`; not in TF-Agents.
          jit_compile: whether many train steps of a call are one program of XLA, and read up to 128
            batches of `experience_dataset_fn` before they are taken. See `LoopOptions`, but other
            batches than those of one fixed shape, other strategies than the default one,
            `after_train_strategy_step_fn`, a `single_train_step` of a subclass, and learners whose
            first `run` takes one train step are without XLA. Not in TF-Agents.

        Raises:
          ValueError: if the newest checkpoint does not fit, or the agent cannot be traced.
        """
        if agent.train_step_counter is not train_step:
            logging.warning(
                "train_step is not the agent's train_step_counter: triggers and summaries depend on it only"
            )
        self.train_step, self._agent = train_step, agent
        self.strategy = strategy or tf.distribute.get_strategy()
        self.after_train_strategy_step_fn = after_train_strategy_step_fn
        self.use_kwargs_in_agent_train = use_kwargs_in_agent_train
        self._direct_sampling, self._use_reverb_v2 = direct_sampling, use_reverb_v2
        self._strategy_run_options, self._jit_compile = strategy_run_options, jit_compile
        self._opened = contextlib.ExitStack()
        atexit.register(self._opened.close)  # TF-Agents' programs do not close their learner
        run_dir = self._own_run_dir(root_dir)
        self.summary_interval = summary_interval if summary_interval and summary_interval > 0 else None
        self.train_summary_writer = self._writer(run_dir if summary_root_dir is None else self._open(summary_root_dir))
        self._counter = StepCounter(train_step, increment=None)
        self._loss_sum, self._num_summed, self._own_programs = 0.0, 0, {}
        plain, recorded, self._evaluated = (LossInfos(self.strategy, extra_reductions or {}) for _ in range(3))
        self._trained = {False: plain, True: recorded}
        self._overridden = type(self).single_train_step is not Learner.single_train_step  # then AutoGraph converts it
        self._graph_step = tf.function(self._step, autograph=self._overridden)
        self._many_steps = tf.function(self._over_iterator, autograph=False)
        self._loss = tf.function(
            lambda experience: self._evaluated.vector(self._run_agent(agent.loss, experience), {}), autograph=False
        )
        with self.strategy.scope():
            if function := experience_dataset_fn:
                self._dataset = self.strategy.distribute_datasets_from_function(
                    lambda context: programs.call_dataset_fn(function, context), experience_dataset_options
                )
            agent_data.initialize(agent, self.strategy)
            if self._dataset is not None:
                self._traced = self._trace()
            elif run_optimizer_variable_init:
                self._make_slots()
            keep = sys.maxsize if max_checkpoints_to_keep is None else max_checkpoints_to_keep
            restored = self._restore(run_dir, keep, run_optimizer_variable_init)
        self.triggers = self._own_triggers(checkpoint_interval, triggers or (), restored)

    def _own_run_dir(self, root: str | os.PathLike[str]) -> RunDir:
        """Returns the directory that this learner is the only writer of.

        Where workers that train as one have the same `root`, it is the chief's; the others write to
        temporary ones.
        """
        run_dir = self._open(root)
        # Also of one worker.
        if len(set(workers.Agreement(self.strategy).texts(os.path.abspath(root)))) == 1:
            run_dir = self._opened.enter_context(writable_run_dir(self.strategy, run_dir))
        if is_url(root):
            self._opened.enter_context(run_dir.own('train', threading.Event()))
        return run_dir

    def _open(self, root: str | os.PathLike[str]) -> RunDir:
        """Returns the directory; of a URL a local copy."""
        if not is_url(root):
            return RunDir(root)
        return self._opened.enter_context(extensions.load('run_directories').opened(str(root), 'train'))

    def _writer(self, run_dir: RunDir) -> tf.summary.SummaryWriter:
        if not self.summary_interval:
            return tf.summary.create_noop_writer()
        return tf.summary.create_file_writer(str(run_dir.checkpoints.parent), flush_millis=10000)

    def _trace(self, data: Any = None, recorded: bool = False) -> Any:
        """Traces a train step, which makes the optimizer's slots, for elements of data; default: the own ones."""
        if data is None:
            data = self._dataset if isinstance(self._dataset, tf.data.Dataset) else self._experience_iterator
        # An iterator's own specs are not enough: where replicas may run out of data one by one,
        # batch sizes are unknown.
        next_value = lambda: data.get_next_as_optional().get_value()  # noqa: E731
        has_spec = isinstance(data, tf.data.Dataset | StackBatches)
        spec = data.element_spec if has_spec else batches.traced_spec(next_value)
        with tf.summary.record_if(recorded):
            return self._graph_step.get_concrete_function(recorded, spec)

    def _make_slots(self) -> None:
        """Makes the optimizer's slots by the agent's specs: there are no data yet."""
        spec = tensor_spec.add_outer_dims_nest(
            self._agent.training_data_spec, (None, self._agent.train_sequence_length)
        )
        step = tf.function(lambda experience: self._run_agent(self._agent.train, experience), autograph=False)
        with tf.summary.record_if(False):
            step.get_concrete_function({'experience': spec} if self.use_kwargs_in_agent_train else spec)

    def _restore(self, run_dir: RunDir, max_to_keep: int, has_slots: bool) -> bool:
        """Restores the newest checkpoint; returns whether there is one."""
        objects = {'agent': self._agent, 'train_step': self.train_step}
        self._checkpointer = _Checkpointer(run_dir.checkpoints, objects, max_to_keep)
        self._checkpointer.after_write = run_dir.store.upload
        newest = self._checkpointer.newest
        if newest and not has_slots and self._traced is None:
            logging.warning('restoring %s without a check whether it fits', newest)
            tf.train.Checkpoint(**objects).read(newest).expect_partial()  # also what is made later
            return True
        restored = self._checkpointer.restore_newest() is not None
        workers.Agreement(self.strategy).check_same(int(self.train_step_numpy), 'the restored train step')
        return restored

    def _own_triggers(self, interval: int | None, triggers: Sequence[Trigger], restored: bool) -> list[Trigger]:
        if restored:  # otherwise the caller's start value stays
            for trigger in triggers:
                if hasattr(trigger, 'set_start'):
                    trigger.set_start(self.train_step.numpy())
        if not interval or interval < 0:
            logging.warning('no checkpoints: they are switched off by checkpoint_interval=%s', interval)
            return [*triggers]
        # First, so that what the others export or publish is never newer than the checkpoint.
        return [PeriodicAction(self._checkpointer.save, every_steps=interval), *triggers]

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
          iterator: an iterator of the data; default: one over the dataset of
            `experience_dataset_fn`.
          parallel_iterations: has no effect, since each train step needs the one before it.

        Returns:
          LossInfo of the last step that was taken, in float32 scalars: the loss of the global
          batch; extras reduced by `extra_reductions`, means by default.

        Raises:
          AssertionError: if `iterations` is below 1, as in TF-Agents.
          tf.errors.OutOfRangeError: if the data had ended already.
        """
        del parallel_iterations
        if iterations < 1:
            raise AssertionError(f'Iterations must be greater or equal to 1, was {iterations}')
        if iterator is None:
            self._choose_stacks(iterations)
            iterator = self._stacks or self._experience_iterator
        num_steps, last = self._take(iterations, iterator)
        if last is None:
            raise tf.errors.OutOfRangeError(None, None, f'the data ended at train step {self.train_step_numpy}')
        if num_steps < iterations:
            logging.warning('the data ended after %d of %d train steps', num_steps, iterations)
        return last

    def _take(self, max_steps: int, iterator: Any) -> tuple[int, Any]:
        """Takes train steps until the data end, then calls the triggers. Returns their number and the last LossInfo."""
        start, num_steps, last = self._counter.step, 0, None
        with self.strategy.scope():
            if self._traced is None:
                self._traced = self._trace(iterator)
            while num_steps < max_steps:
                before, (count, recorded) = self._counter.step, self._part(max_steps - num_steps)
                # Summarized or not, the caller's own default writer receives nothing.
                with self.train_summary_writer.as_default(), tf.summary.record_if(recorded):
                    vector = self._program(recorded, iterator)(count)
                taken = int(vector[0])
                self._counter.observe(before, taken)
                if taken:
                    num_steps, last = num_steps + taken, self._trained[recorded].read(vector[2:])
                    self._loss_sum, self._num_summed = self._loss_sum + float(vector[1]), self._num_summed + taken
                    if recorded:
                        self._due = None
                        self._write(self._counter.step, self._trained[True].read_summary(vector[2:]))
                if taken < count:
                    break
        self._call_triggers(start)
        return num_steps, last

    def _choose_stacks(self, num_steps: int) -> None:
        """Decides by the first call, for so many train steps, whether the dataset's batches are read in stacks."""
        has_own_code = self._overridden or self.after_train_strategy_step_fn
        has_begun = self._stacks is not None or self._iterator is not None
        if has_begun or has_own_code or not self._jit_compile or not isinstance(self._dataset, tf.data.Dataset):
            return
        slower = xla_loop.why_slower_in_xla(self._traced.graph) if self._jit_compile == 'auto' else None
        if not slower and num_steps > 1:  # a stack of one batch costs more than the batch
            with self.strategy.scope():
                self._stacks = datasets.stacks(self._dataset, self.strategy, self.train_step)

    def _program(self, recorded: bool, iterator: Any) -> Program:
        """Returns what takes a number of train steps, and returns what `_over_iterator` does."""
        if recorded and not self._trained[True].is_traced:  # then the length of its vector is known
            self._trace(iterator, recorded)
        # Traced once for all that have the same elements.
        if iterator is not (self._stacks or self._iterator):
            return lambda count: self._many_steps(recorded, iterator, tf.constant(count, tf.int64)).numpy()
        if recorded not in self._own_programs:
            if self._stacks:
                jit_compile = False if recorded else self._jit_compile
                step, size = functools.partial(self._graph_step, recorded), self._trained[recorded].size
                program = programs.over_stacks(step, size, self._stacks, jit_compile)
            else:
                program = programs.traced_once(functools.partial(self._over_iterator, recorded, iterator))
            self._own_programs[recorded] = program
        return self._own_programs[recorded]

    def _part(self, num_steps: int) -> tuple[int, bool]:
        """Returns how many steps to take next, and whether they are summarized: a step that reaches a multiple is.

        If a step passed a multiple without a summary, because it added more than the steps before,
        the next one is.
        """
        if not self.summary_interval:
            return num_steps, False
        multiple = (self._counter.step // self.summary_interval + 1) * self.summary_interval
        self._due = min(self._due or multiple, multiple)
        until_due = self._counter.calls_before(self._due)
        return (min(num_steps, until_due), False) if until_due else (1, True)

    def _over_iterator(self, recorded: bool, iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
        """Takes train steps. Returns how many, their loss's sum, and the last one's metrics, in one float64 vector."""
        step = functools.partial(self._graph_step, recorded)
        if self._overridden:  # it may take further elements of the iterator
            step = tf.function(lambda element: self._step(recorded, element, iterator))

        def goes_on(taken: tf.Tensor, total: tf.Tensor, last: tf.Tensor, element: Any) -> tf.Tensor:
            del total, last
            return tf.cond(taken < num_steps, lambda: is_complete(self.strategy, element), lambda: tf.constant(False))

        def one(taken: tf.Tensor, total: tf.Tensor, last: tf.Tensor, element: Any) -> Any:
            last = step(element.get_value())
            taken += 1
            element = tf.cond(taken < num_steps, iterator.get_next_as_optional, lambda: element)
            return taken, total + last[LOSS], last, element

        zeros = tf.constant(0, tf.int64), tf.constant(0.0), tf.zeros([self._trained[recorded].size])
        taken, total, last, _ = tf.while_loop(goes_on, one, (*zeros, iterator.get_next_as_optional()))
        # One tensor: fetching many small ones costs more than a small train step.
        counts = tf.stack([tf.cast(taken, tf.float64), tf.cast(total, tf.float64)])
        return tf.concat([counts, tf.cast(last, tf.float64)], axis=0)

    def _step(self, recorded: bool, element: Any, more: Any = None) -> tf.Tensor:
        """Takes a train step on an element; where it is only traced, without `more`, that comes again and again."""
        iterator = itertools.repeat(element) if more is None else itertools.chain((element,), more)
        self._summary = {} if recorded and not self._overridden else None
        loss_info, tensors, self._summary = self.single_train_step(iterator), self._summary, None
        return self._trained[recorded].vector(loss_info, tensors or {})

    @tf.autograph.experimental.do_not_convert
    def single_train_step(self, iterator: Any) -> Any:
        """Takes a train step on all replicas. For a graph.

        Args:
          iterator: its next element is that of this step.

        Returns:
          The LossInfo, as `strategy.run` returns it.
        """
        experience, sample_info = self._split(next(iterator))
        loss_info = self._run_agent(self._agent.train, experience)
        if self.after_train_strategy_step_fn:
            found = {'experience': (experience, sample_info), 'loss_info': loss_info}
            args, kwargs = ((), found) if self.use_kwargs_in_agent_train else (tuple(found.values()), {})
            self.strategy.run(self.after_train_strategy_step_fn, args, kwargs, self._strategy_run_options)
        return loss_info

    def _run_agent(self, method: Callable[..., Any], experience: Any) -> Any:
        args, kwargs = ((), experience) if self.use_kwargs_in_agent_train else ((experience,), {})
        run = functools.partial(self.strategy.run, args=args, kwargs=kwargs, options=self._strategy_run_options)
        if self._summary is None:
            return run(method)
        found, tensors = run(with_summary(method))
        self._summary |= {tag: self.strategy.experimental_local_results(each)[0] for tag, each in tensors.items()}
        return found

    def _split(self, sample: Any) -> tuple[Any, Any]:
        """Returns (experience, sample_info) of an element."""
        if self._direct_sampling:
            return sample, None
        if self._use_reverb_v2:
            return sample.data, sample.info
        if not isinstance(sample, list | tuple) or len(sample) != 2:
            raise UserValueError(
                f'got {type(sample).__name__} as an element of the dataset; need (experience, sample_info), or '
                'direct_sampling=True for a dataset of experience only'
            )
        return sample[0], sample[1]

    def _write(self, step: int, tensors: Mapping[str, np.ndarray]) -> None:
        """Writes a step's summary tensors, and the mean loss since the last time; agents know only one step's share."""
        values: dict[str, Any] = {'train/loss': self._loss_sum / self._num_summed, **tensors}
        with self.train_summary_writer.as_default(step), tf.summary.record_if(True):
            tf.summary.experimental.write_raw_pb(summary_tensors.serialized(values))
        self._loss_sum, self._num_summed = 0.0, 0

    def _call_triggers(self, before: int) -> None:
        after = int(self.train_step_numpy)
        summarized = self.summary_interval is not None and crossed(self.summary_interval, before, after)
        with self.train_summary_writer.as_default(), tf.summary.record_if(summarized):
            for trigger in self.triggers:
                if isinstance(trigger, PeriodicAction):
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
          reduce_op: SUM or MEAN; both sum. Replicas return their shares of the global batch's mean
            loss, so only the sum of these is the mean.
        """
        if reduce_op not in (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN):
            raise UserValueError(f'got reduce_op={reduce_op}; need SUM or MEAN')
        with self.strategy.scope(), tf.summary.record_if(False):
            experience, _ = experience_and_sample_info or self._split(self._next())
            return self._evaluated.read(self._loss(experience).numpy())

    def _next(self) -> Any:
        """Returns the next element of the learner's own dataset. Raises StopIteration at its end."""
        self._choose_stacks(xla_loop.MIN_XLA_STEPS)  # since it is no train step
        if self._stacks is None:
            return next(self._experience_iterator)
        if (element := self._stacks.next()) is None:
            raise StopIteration
        return element

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
        self._opened.close()
