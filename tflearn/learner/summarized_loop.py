"""SummarizedLoop: takes train steps by the plain program, and those that are summarized by the summary program."""

import pathlib
import time

import tensorflow as tf
from absl import logging

from tflearn.core import strategies
from tflearn.core.background import Background
from tflearn.core.errors import UserValueError
from tflearn.core.types import Agent
from tflearn.learner import agent_data
from tflearn.learner.batches import Batches, SourceBatches
from tflearn.learner.metrics import IntervalMetrics, Metrics, rss_mb
from tflearn.learner.summaries import StepSummaries, Summaries, SummaryOptions
from tflearn.learner.train_loop import LoopOptions, Program, TrainLoop

_SOON_STEPS = 2_000
_COMPILE_SECS = 3_600.0


class Profile:
    """Traces the train steps first..last once. A run that is resumed between them traces the rest."""

    def __init__(self, directory: pathlib.Path, steps: tuple[int, int] | None):
        """Traces nothing yet.

        Args:
          directory: the directory of the event files; the trace is written to its `plugins/profile`.
          steps: first and last train step, both in the trace; None never traces.
        """
        self._directory, self._steps = str(directory), steps
        self._running = False

    def boundary(self, before: int) -> int | None:
        """Returns the next train step at which the trace begins or ends; no program may run across it."""
        if not self._steps:
            return None
        first, last = self._steps
        return next((step for step in (first - 1, last) if step > before), None)

    def at(self, step: int) -> None:
        """Begins or ends the trace, if that is due when `step` train steps are done."""
        if not self._steps:
            return
        first, last = self._steps
        if self._running and step >= last:
            self.stop()
        elif not self._running and first <= step + 1 <= last:
            self._start()

    def stop(self) -> None:
        """Ends the trace if it runs, and writes it."""
        if self._running:
            self._running = False
            tf.profiler.experimental.stop()
            logging.info('wrote the trace of train steps %s to %s', self._steps, self._directory)

    def _start(self) -> None:
        try:
            tf.profiler.experimental.start(self._directory)
        except tf.errors.OpError as error:  # training continues without a trace
            logging.warning('could not trace train steps %s: %s', self._steps, error)
            self._steps = None
            return
        self._running = True


class StepCounter:
    """Reads the variable, since a call of `agent.train` need not add 1.

    TF-Agents' PPOAgent adds 1 for each of its epochs, and an optimizer adds 1 more where its `iterations` are the
    agent's train step.

    Attributes:
      observed: what a call has added; None before the first.
    """

    def __init__(self, train_step: tf.Variable, increment: int | None = 1):
        """Starts at the variable's value; `increment` is what a call adds, None before the first has shown it."""
        self._train_step, self._increment = train_step, increment
        self.observed: int | None = None

    @property
    def step(self) -> int:
        """The train step now."""
        return int(self._train_step.numpy())

    def calls_before(self, step: int) -> int:
        """Returns how many calls there are before the one that reaches `step`; 0 if the next call does.

        As long as it is not known what a call adds, the result is at most 1.
        """
        missing = step - self.step
        if self._increment is None:
            return int(missing > 1)
        return max(0, -(-missing // self._increment) - 1)

    def observe(self, before: int, num_calls: int) -> None:
        """Records what `num_calls` calls have added since the step `before`."""
        gained = self.step - before
        if num_calls and gained > 0:
            self._increment = self.observed = max(1, gained // num_calls)


class SummarizedLoop:
    """Train steps with their summaries.

    The learner's own metrics have tags `train/...`, on any number of replicas. Agents write other tags
    themselves, from one replica: TF-Agents' `Losses/...` are that replica's share of the loss, at the train step
    before, since agents count a step when it is done. On a TPU, whose programs cannot write any, and on several workers
    only the learner's own metrics are written: a program that records summaries on the chief alone is another one
    there, and its collectives do not find those of the other workers.

    Attributes:
      num_traces: traces of the train step so far: one for each program, or two where the first makes variables, such as
        the slots of an optimizer that is not one of `OptimizerOptions`.
    """

    def __init__(
        self,
        agent: Agent,
        batches: Batches,
        strategy: tf.distribute.Strategy,
        directory: pathlib.Path,
        loop: LoopOptions,
        options: SummaryOptions,
    ):
        """Compiles the plain program, within the strategy's scope; this makes the optimizer's slots.

        Raises:
          ValueError: for summaries by the clock on several workers, which would not compile the same programs.
        """
        if options.interval_secs and strategies.layout(strategy).workers > 1:
            raise UserValueError(
                f'got interval_secs={options.interval_secs} with several workers, whose clocks differ; need '
                'interval_steps or total'
            )
        self._agent, self._batches, self._strategy = agent, batches, strategy
        self._counter = StepCounter(agent.train_step_counter)
        self._stop_at_nonfinite = loop.on_nonfinite == 'stop'
        self.metrics, self.summaries = IntervalMetrics(), Summaries(directory, options)
        self._step_summaries, self._profile = StepSummaries(agent, options), Profile(directory, options.profile_steps)
        self._loop = TrainLoop(agent, strategy, loop)
        with tf.summary.record_if(False):  # also if the caller has a default writer
            self._plain = self._loop.program(batches)
        on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)  # whose programs cannot write summaries
        self._has_summary_program = strategies.layout(strategy).workers == 1 and not on_tpu
        self._summary: Program | None = None
        self.loss = self._loop.loss(batches)
        self._texts = options.sources.texts
        self._compiling, self._tracing = Background('compile'), Background('trace_summaries')
        if isinstance(batches, SourceBatches):
            self._compiling.submit(lambda: self._compile(batches))

    def _compile(self, batches: SourceBatches) -> None:
        """Compiles the plain program, or XLA's in its place; outside of Python, while the caller does other things."""
        batches.compile()
        self._loop.prepare()
        if self._has_summary_program and not self._loop.jit_compiles:
            self._plain(0)  # TensorFlow optimizes the program, and takes no step

    @property
    def num_traces(self) -> int:
        return self._loop.num_traces

    @property
    def jit_compiles(self) -> bool:
        """Whether XLA has compiled the steps that are not summarized, many in one program."""
        self._compiling.join(_COMPILE_SECS)
        return self._loop.jit_compiles

    @property
    def steps_per_call(self) -> int | None:
        """Train steps that a call of `agent.train` counts; None before a first call has shown it."""
        return self._counter.observed or (1 if agent_data.is_packaged(self._agent) else None)

    def take(self, num_steps: int) -> Metrics:
        """Takes train steps, and writes the summaries of those that are due.

        Returns:
          Their metrics; fewer steps than requested if the data ended, or if a loss that is not finite stops training.
        """
        if self._texts:
            for name, text in self._texts().items():
                self.summaries.write_text(self._counter.step, name, text)
            self._texts = None
        self._compiling.join(_COMPILE_SECS)
        self.metrics.begin()
        total = Metrics()
        while total.num_steps < num_steps:
            before = self._counter.step
            self._profile.at(before)
            count, summarized = self._part(before, num_steps - total.num_steps)
            in_program = summarized and self._has_summary_program
            taken = self._take_summarized(count) if in_program else self._plain(count)
            self._counter.observe(before, taken.num_steps)
            self.metrics.add(taken)
            total += taken
            if taken.num_steps < count or (taken.num_nonfinite and self._stop_at_nonfinite):
                return total
            if summarized:
                self._write(self._counter.step)
        self._profile.at(self._counter.step)
        return total

    def _part(self, before: int, num_steps: int) -> tuple[int, bool]:
        """Returns how many steps to take next, and whether they are summarized."""
        due, boundary = self.summaries.next_step(before), self._profile.boundary(before)
        if due is not None and not self._counter.calls_before(due):
            return 1, True
        counts = [num_steps]
        if due is not None:
            counts.append(self._counter.calls_before(due))
        if boundary is not None:
            counts.append(self._counter.calls_before(boundary) + 1)
        return min(counts), False

    def prepare(self, before: int, end: int | None) -> None:
        """Compiles what needs no data: the program, and that of summaries if a step up to `end` is summarized soon.

        The first train steps wait for the program, and those of summaries for theirs, which is traced on a thread while
        training begins. A summary program that is needed only later is compiled then: a short run may end before. Both
        are for a `BatchSource`: a dataset's program cannot run without taking an element.
        """
        self._compiling.join(_COMPILE_SECS)
        due = self.summaries.next_step(before)
        if not self._has_summary_program or not isinstance(self._batches, SourceBatches):
            return
        last = before + _SOON_STEPS
        if due is not None and due <= (last if end is None else min(end, last)):
            self._tracing.submit(self._summary_program)

    def close(self, step: int) -> None:
        """Writes the summary of the steps since the last one, and flushes the event file."""
        self._tracing.join(_COMPILE_SECS)
        self._profile.stop()
        if self.metrics.num_steps and self.summaries.wanted:
            self._write(step)
        self.summaries.close()

    def _take_summarized(self, num_steps: int) -> Metrics:
        """Takes train steps by the summary program, which is compiled when it is first needed."""
        start = time.perf_counter()
        self._tracing.join(_COMPILE_SECS)
        program = self._summary_program()
        self.metrics.leave_out(time.perf_counter() - start)
        self._step_summaries.prepare()
        with self._strategy.scope(), self.summaries.recording(self._agent.train_step_counter):
            return program(num_steps)

    def _summary_program(self) -> Program:
        if self._summary is None:
            with self._strategy.scope(), self.summaries.recording(self._agent.train_step_counter):
                self._summary = self._loop.program(self._batches, self._step_summaries)
        return self._summary

    def _write(self, step: int) -> None:
        own = {'num_traces': self.num_traces, 'rss_mb': rss_mb()}
        self.summaries.write(step, {**self.metrics.take(), **own})
