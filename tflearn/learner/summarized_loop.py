"""SummarizedLoop: takes train steps by the silent program, and those that are summarized by the recorded one."""

import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tflearn.distribute import strategies
from tflearn.errors import UserValueError
from tflearn.learner.interval_metrics import IntervalMetrics, rss_mb
from tflearn.learner.profile import Profile
from tflearn.learner.step_counter import StepCounter
from tflearn.learner.step_summaries import StepSummaries
from tflearn.learner.summaries import Summaries, SummaryOptions
from tflearn.learner.train_loop import LoopOptions, Program, Taken, TrainLoop
from tflearn.types import Agent


class SummarizedLoop:
    """Train steps with their summaries.

    The learner's own metrics have tags `train/...`, whatever the number of replicas. What agents write by themselves
    has other tags; it comes from one replica, so TF-Agents' `Losses/...` are that replica's share of the loss, at the
    train step before, since agents count a step when it is done.

    Attributes:
      metrics: since the last summary.
      summaries: their writer.
      num_traces: of the train step, since the start: two for each program, or one if the optimizer has its slots.
    """

    def __init__(
        self,
        agent: Agent,
        source: Any,
        strategy: tf.distribute.Strategy,
        directory: pathlib.Path,
        loop: LoopOptions,
        options: SummaryOptions,
    ):
        """Compiles the silent program, within the strategy's scope; this makes the optimizer's slots.

        Args:
          agent: to train.
          source: an iterator of the strategy, or a `BatchSource`.
          strategy: that the agent was made in.
          directory: of the summaries.
          loop: how steps are taken.
          options: what is summarized.

        Raises:
          ValueError: for summaries by the clock on several workers: they would not compile the same.
        """
        if options.interval_secs and strategies.layout(strategy).workers > 1:
            raise UserValueError(
                f'got interval_secs={options.interval_secs} with several workers, whose clocks differ; need '
                'interval_steps or total'
            )
        self._agent, self._source, self._strategy = agent, source, strategy
        self._counter = StepCounter(agent.train_step_counter)
        self._stop_at_nonfinite = loop.on_nonfinite == 'stop'
        self.metrics, self.summaries = IntervalMetrics(), Summaries(directory, options)
        self._step_summaries, self._profile = StepSummaries(agent, options), Profile(directory, options.profile_steps)
        self._loop = TrainLoop(agent, strategy, loop)
        with tf.summary.record_if(False):  # whatever writer the caller has
            self._silent = self._loop.program(source)
        self._recorded: Program | None = None
        self._loss_metrics = self._loop.metrics()
        self._loss = self._loop.loss(self._loss_metrics)
        self._texts = options.texts

    @property
    def num_traces(self) -> int:
        return self._loop.num_traces

    def loss(self, element: Any) -> tuple[float, dict[str, float], dict[str, float]]:
        """Returns loss, the agent's metrics and the data's of an element. Compiled once for each form of element."""
        _, loss, extra, info = self._loss_metrics.read(self._loss(element).numpy())
        return loss, extra, info

    def take(self, num_steps: int, add: Callable[[Taken], None]) -> bool:
        """Takes train steps, and writes the summaries of those that are due.

        Args:
          num_steps: to take.
          add: called with what each program did.

        Returns:
          Whether all could be taken, and training may go on.
        """
        if self._texts:
            self._write_texts(self._counter.step, self._texts())
            self._texts = None
        self.metrics.begin()
        while num_steps:
            before = self._counter.step
            self._profile.at(before)
            count, summarized = self._part(before, num_steps)
            taken = self._take_recorded(count) if summarized else self._silent(count)
            self._counter.observe(before, taken.num_steps)
            add(taken)
            self.metrics.add(taken)
            num_steps -= taken.num_steps
            if taken.num_steps < count or (taken.num_nonfinite and self._stop_at_nonfinite):
                return False
            if summarized:
                self._write(self._counter.step)
        self._profile.at(self._counter.step)
        return True

    def _part(self, before: int, num_steps: int) -> tuple[int, bool]:
        """Returns how many steps to take next, and whether they are summarized."""
        due, border = self.summaries.next_step(before), self._profile.border(before)
        if due is not None and not self._counter.calls_before(due):
            return 1, True
        counts = [num_steps]
        if due is not None:
            counts.append(self._counter.calls_before(due))
        if border is not None:
            counts.append(self._counter.calls_before(border) + 1)
        return min(counts), False

    def prepare(self, before: int, end: int) -> None:
        """Compiles the recorded program if one of the steps up to `end` is summarized, and the source is drawn from.

        An iterator cannot be asked without taking an element; then it is compiled when it is first wanted.
        """
        due = self.summaries.next_step(before)
        if due is not None and due <= end and hasattr(self._source, 'draw'):
            self._take_recorded(0)

    def close(self, step: int) -> None:
        """Writes the summary of the steps since the last one, and everything out."""
        self._profile.stop()
        if self.metrics.num_steps and self.summaries.wanted:
            self._write(step)
        self.summaries.close()

    def _take_recorded(self, num_steps: int) -> Taken:
        """Compiles the program with summaries when it is first wanted."""
        self._step_summaries.prepare()
        with self._strategy.scope(), self.summaries.recording(self._agent.train_step_counter):
            if self._recorded is None:
                start = time.perf_counter()
                self._recorded = self._loop.program(self._source, self._step_summaries)
                self.metrics.leave_out(time.perf_counter() - start)
            return self._recorded(num_steps)

    def _write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self.summaries.write_text(step, name, text)

    def _write(self, step: int) -> None:
        own = {'num_traces': self.num_traces, 'rss_mb': rss_mb()}
        self.summaries.write(step, {**self.metrics.take(), **own})
