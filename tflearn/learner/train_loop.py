"""TrainLoop: many train steps on all replicas as one compiled program, with their summaries.

There are two programs: a plain one, and one for the steps that are summarized, which also returns
the summary tensors of the agent, its networks and its optimizers. So steps that are not summarized
do not pay for summaries. The plain program has a variant in XLA (see `XlaLoop`), which
`LoopOptions.jit_compile` asks for.
"""

import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import tensorflow as tf
from absl import logging

from tflearn.core import agent_data, side_tasks, strategies, summary_tensors
from tflearn.core.background import Background
from tflearn.core.errors import UserValueError
from tflearn.core.settings import checked_dataclass
from tflearn.core.types import Agent
from tflearn.learner import xla_loop
from tflearn.learner.batches import Batches, SourceBatches
from tflearn.learner.elements import importance_weights, item_errors, split
from tflearn.learner.metrics import IntervalMetrics, Metrics, Reduction, StepMetrics, rss_mb
from tflearn.learner.summaries import Profile, StepSummaries, Summaries, SummaryOptions
from tflearn.learner.xla_loop import Program, XlaLoop

OnNonfinite = Literal['stop', 'skip', 'ignore']
JitCompile = bool | Literal['auto']

AfterStep = Callable[[Any, Any], object]

_SOON_STEPS = 2_000
_COMPILE_SECS = 3_600.0


@checked_dataclass(frozen=True)
class LoopOptions:
    """How train steps are taken, and how their metrics are reduced.

    Attributes:
      jit_compile: whether train steps are compiled with XLA; 'auto' does so on one replica where it
        is faster: for small train steps on a CPU (see `why_slower_in_xla`), after 10,000 train
        steps of a session, since short runs would not make up for the compile time. With a
        `Source`, or a dataset of batches of one fixed shape, many steps are one XLA program (see
        `XlaLoop`); steps that XLA cannot compile are taken without it, with a line in the log. With
        other datasets, True compiles the single step, and 'auto' does nothing. On several replicas
        True compiles the gradients of each part of the agent, which TensorFlow sums and applies;
        'auto' does not, since that was slower on CPUs (docs/distributed.md has the figures). XLA
        ignores the steps' assertions, and a seed for random numbers that they draw. The steps that
        are summarized are not compiled with it.
      on_nonfinite: at a loss that is not finite, 'stop' ends the loop; 'skip' leaves it out of the
        means and continues, for optimizers that do not apply such gradients; 'ignore' does nothing.
      extra_reductions: by the name of one of the agent's extra metrics, how it is reduced to one
        number over its own axes and the replicas: 'mean', 'sum', 'max' or 'min'. The default is
        'mean'; but 'sum' for a scalar in a named tuple whose name ends with 'loss', since
        TF-Agents' agents return replicas' shares there.
      after_step: called in each replica after each train step, while it is traced, with the data
        and the LossInfo.
      run_options: options of `strategy.run`.
      preprocess: maps a replica's data to what `agent.train` takes, as `agent.preprocess_sequence`
        does for some of TF-Agents' agents; None if the data need no preprocessing.
    """

    jit_compile: JitCompile = 'auto'
    on_nonfinite: OnNonfinite = 'stop'
    extra_reductions: Mapping[str, Reduction] = dataclasses.field(default_factory=dict)
    after_step: AfterStep | None = None
    run_options: tf.distribute.RunOptions | None = None
    preprocess: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        for name, rule in self.extra_reductions.items():
            if rule not in get_args(Reduction):
                raise UserValueError(
                    f'got extra_reductions[{name!r}]={rule!r}; need one of {", ".join(get_args(Reduction))}'
                )


class StepCounter:
    """Reads the variable, since a call of `agent.train` need not add 1.

    TF-Agents' PPOAgent adds 1 for each of its epochs, and an optimizer adds 1 more where its
    `iterations` are the agent's train step.

    Attributes:
      observed: what a call has added; None before the first.
    """

    def __init__(self, train_step: tf.Variable, increment: int | None = 1):
        """Starts at the variable's value; `increment` is what a call adds,
        None before the first has shown it.
        """
        self._train_step, self._increment = train_step, increment
        self.observed: int | None = None

    @property
    def step(self) -> int:
        """The train step now."""
        return int(self._train_step.numpy())

    def calls_before(self, step: int) -> int:
        """Returns how many calls there are before the one that reaches `step`;
        0 if the next call does.

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


class TrainLoop:
    """Takes train steps by the plain program, and those that are summarized by the summary program.

    The learner's own metrics have tags `train/...`. Norms and histograms are summary tensors: those
    of gradients are of the global batch, others of the first replica's. All of these are there on
    any number of replicas and workers, and on TPUs. Agents may write other tags themselves, from one
    replica: TF-Agents' `Losses/...` are that replica's share of the loss, at the train step before,
    since agents count a step when it is done. They do not on a TPU, whose programs cannot write, nor
    on several workers: a program that writes on the chief alone is another one there, and its
    collectives do not find those of the other workers.

    Attributes:
      num_traces: traces of the train step so far: one for each program, or two where the first
        makes variables, such as the slots of an optimizer that is not one of `OptimizerOptions`.
      batches: the batches, as the programs take them: a dataset's in stacks only where XLA does.
      loss: computes the metrics of an element, per replica as the strategy has it, without any
        update.
      metrics: those since the last summary.
      summaries: where they are written to.
    """

    loss: Callable[[Any], Metrics]
    metrics: IntervalMetrics
    summaries: Summaries

    def __init__(self, agent: Agent, batches: Batches, strategy: tf.distribute.Strategy, options: LoopOptions):
        """Compiles nothing yet. To be made, like everything else here, within the strategy's scope.

        Raises:
          ValueError: for XLA on more than one replica of an agent that is none of this package.
        """
        self._compiles_parts = options.jit_compile is True and strategy.num_replicas_in_sync > 1
        if self._compiles_parts and not agent_data.is_packaged(agent):
            raise UserValueError(
                f'got jit_compile=True with {strategy.num_replicas_in_sync} replicas and {type(agent).__name__}; need '
                "one replica, or one of tflearn's agents, whose gradients are compiled apart; set jit_compile=False"
            )
        self._agent, self.batches, self._strategy, self._options = agent, batches, strategy, options
        self._reductions = options.extra_reductions, strategy.num_replicas_in_sync
        self._train = agent.train
        if options.jit_compile is True and not self._compiles_parts:
            self._train = tf.function(agent.train, autograph=False, jit_compile=True)
        self._xla: XlaLoop | None = None
        self._counter = StepCounter(agent.train_step_counter)
        self._summary: Program | None = None
        self._compiling, self._tracing = Background('compile'), Background('trace_summaries')
        self.num_traces = 0

    def begin(self, directory: pathlib.Path, options: SummaryOptions) -> None:
        """Compiles the plain program; this makes the optimizer's slots.

        Args:
          directory: the directory of the event files.
          options: when there are summaries, and what is in them.

        Raises:
          ValueError: for summaries by the clock on several workers, which would not compile the
            same programs.
        """
        num_workers = strategies.layout(self._strategy).workers
        if options.interval_secs and num_workers > 1:
            raise UserValueError(
                f'got interval_secs={options.interval_secs} with several workers, whose clocks differ; need '
                'interval_steps'
            )
        self.metrics, self.summaries = IntervalMetrics(), Summaries(directory, options)
        self._texts = options.sources.texts
        self._step_summaries = StepSummaries(self._agent, options)
        self._profile = Profile(directory, options.profile_steps)
        with tf.summary.record_if(False):  # also if the caller has a default writer
            layout = StepMetrics(*self._reductions, self.batches.last_info)
            step = self._step(layout)
            # Makes the optimizer's slots; and then the layout knows the metrics.
            graph = step.get_concrete_function(self.batches.element_spec).graph
            take = functools.partial(self._taken, step)
            source = self._xla_source
            if not (source and self._chooses_xla(source, graph)):
                source, self.batches = None, self.batches.without_xla()
            self._plain = self._compiled(layout, self.batches.loop, take)
            if source:
                after_steps = xla_loop.AUTO_AFTER_STEPS if self._options.jit_compile == 'auto' else 0
                compile_loop = functools.partial(self._compiled, layout)
                self._xla = XlaLoop(self._plain, source, take, layout.size, compile_loop, after_steps)
                self._plain = self._xla
        # Whose programs can write agents' own summaries, and run at any time: several workers trace
        # and run theirs in one order, in which they number the collectives.
        self._is_local = num_workers == 1 and not isinstance(self._strategy, tf.distribute.TPUStrategy)
        self.loss = self._make_loss()
        if isinstance(self.batches, SourceBatches):
            batches = self.batches
            self._compiling.submit(lambda: self._compile(batches))

    def _compile(self, batches: SourceBatches) -> None:
        """Compiles the plain program, or XLA's in its place;
        outside of Python, while the caller does other things.
        """
        batches.compile()
        if self._xla:
            self._xla.prepare()
        if self._is_local and not (self._xla and self._xla.has_compiled):
            self._plain(0)  # TensorFlow optimizes the program, and takes no step

    def state(self) -> dict[str, Any]:
        """Returns what belongs in the checkpoint, by name."""
        return {'loop': self._xla} if self._xla else {}

    @property
    def jit_compiles(self) -> bool:
        """Whether XLA has compiled the steps that are not summarized, many in one program."""
        self._compiling.join(_COMPILE_SECS)
        return bool(self._xla and self._xla.has_compiled)

    @property
    def steps_per_call(self) -> int | None:
        """Train steps that a call of `agent.train` counts;
        None before a first call has shown it.
        """
        return self._counter.observed or (1 if agent_data.is_packaged(self._agent) else None)

    def take(self, num_steps: int) -> Metrics:
        """Takes train steps, and writes the summaries of those that are due.

        Returns:
          Their metrics; fewer steps than requested if the data ended, or if a loss that is not
          finite stops training.
        """
        if self._texts and self.summaries.can_record():
            with side_tasks.guarded('write texts for the summaries'):
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
            in_program = summarized and (not self._is_local or self.summaries.can_record())
            taken = self._take_summarized(count) if in_program else self._plain(count)
            self._counter.observe(before, taken.num_steps)
            self.metrics.add(taken)
            total += taken
            if taken.num_steps < count or (taken.num_nonfinite and self._options.on_nonfinite == 'stop'):
                return total
            if summarized:
                self._write(self._counter.step)
        self._profile.at(self._counter.step)
        return total

    def _part(self, before: int, num_steps: int) -> tuple[int, bool]:
        """Returns how many steps to take next, and whether they are summarized."""
        due, boundary = self.summaries.next_step(before), self._profile.boundary(before)
        count = num_steps if due is None else min(num_steps, self._counter.calls_before(due))
        if not count:
            return 1, True
        if boundary is not None:
            count = min(count, self._counter.calls_before(boundary) + 1)
        return count, False

    def prepare(self, before: int, end: int | None) -> None:
        """Compiles what needs no data: the program,
        and that of summaries if a step up to `end` is summarized soon.

        The first train steps wait for the program, and those of summaries for theirs, which is
        traced on a thread while training begins. A summary program that is needed only later is
        compiled then: a short run may end before. Both are for a `Source`: a dataset's program
        cannot run without taking an element.
        """
        self._compiling.join(_COMPILE_SECS)
        due, last = self.summaries.next_step(before), before + _SOON_STEPS
        is_soon = due is not None and due <= (last if end is None else min(end, last))
        if is_soon and self._is_local and isinstance(self.batches, SourceBatches) and self.summaries.can_record():
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
        with self._strategy.scope(), self._recording():
            return program(num_steps)

    def _summary_program(self) -> Program:
        if self._summary is None:
            with self._strategy.scope(), self._recording():
                layout = StepMetrics(*self._reductions, self.batches.last_info)
                step = self._step(layout, self._step_summaries)
                # Then the layout knows the metrics.
                step.get_concrete_function(self.batches.element_spec)
                self._summary = self._compiled(layout, self.batches.loop, functools.partial(self._taken, step))
        return self._summary

    def _recording(self) -> contextlib.AbstractContextManager[None]:
        """Records what agents write themselves, where programs can."""
        if not self._is_local:
            return tf.summary.record_if(False)
        return self.summaries.recording(self._agent.train_step_counter)

    def _write(self, step: int) -> None:
        self.summaries.write(step, {**self.metrics.take(), 'num_traces': self.num_traces, 'rss_mb': rss_mb()})

    @property
    def _xla_source(self) -> SourceBatches | None:
        """The batches of an XLA program of many train steps; None if there can be none."""
        wants_xla = self._options.jit_compile and self._strategy.num_replicas_in_sync == 1
        return self.batches if wants_xla and isinstance(self.batches, SourceBatches) else None

    def _step(self, layout: StepMetrics, summarize: AfterStep | None = None) -> Any:
        """Returns the compiled train step on an element, for the strategy's scope.

        Args:
          layout: of its metrics. The data's are in the vector, or follow it.
          summarize: makes it that of the summary program; called in each replica after the train
            step, while that is traced, with data and info.
        """
        # XLA would leave out the summaries.
        train = self._agent.train if summarize or self._xla_source else self._train
        step = functools.partial(self._distributed_step, layout=layout, train=train, summarize=summarize)
        return tf.function(step, autograph=False)

    def _taken(self, step: Callable[[Any], Any], sums: tf.Tensor, element: Any) -> Any:
        """Takes a train step; see `Batches.loop`."""
        vector, loss, summary, *errors = step(element)
        goes_on = tf.constant(True)
        if self._options.on_nonfinite != 'ignore':
            finite = tf.math.is_finite(loss)
            vector = tf.where(finite, vector, 0.0)
            goes_on = finite if self._options.on_nonfinite == 'stop' else goes_on
        # A summary shows also what is not finite.
        return sums + (tf.concat([vector, *summary], axis=0) if summary else vector), goes_on, tuple(errors)

    def _chooses_xla(self, batches: SourceBatches, graph: tf.Graph) -> bool:
        """Returns whether to take train steps like that of a graph in XLA; logs it if not."""
        is_auto = self._options.jit_compile == 'auto'
        slower = xla_loop.why_slower_in_xla(graph) if is_auto else None
        few = batches.num_together < xla_loop.MIN_XLA_STEPS
        if slower or few:
            logging.info('trains without XLA: %s', slower or 'batches are too large to gather, or have no fixed shape')
        return not (slower or few)

    def _compiled(self, layout: StepMetrics, loop: Callable[..., Any], *first: Any) -> Program:
        """Compiles a loop, (*first, sums, number of steps) -> what `Batches.loop` returns."""
        in_graph = tf.function(loop, autograph=False)
        # One tensor: fetching many small ones costs more than a small train step.
        compiled = tf.function(
            lambda num_steps: _packed(*in_graph(*first, tf.zeros([layout.size]), num_steps)), autograph=False
        )
        concrete = compiled.get_concrete_function(tf.TensorSpec((), tf.int64))

        def run(num_steps: int) -> Metrics:
            packed, *errors = concrete(tf.constant(num_steps, tf.int64))
            steps, waited_secs, *_ = numbers = packed.numpy()
            sums = numbers[2:]
            if errors and steps:
                self.batches.update(int(self._agent.train_step_counter.numpy()), errors[0].numpy()[: int(steps)])
            if steps and (summary := layout.read_summary(sums)):
                self.summaries.write_tags(self._counter.step, summary)
            return layout.read(sums, int(steps), float(waited_secs))

        return run

    def replica_step(self) -> Callable[[Any], Any]:
        """For a dry run: returns the train step of the plain program, from an element to metrics;
        not compiled.
        """
        layout = StepMetrics(*self._reductions, self.batches.last_info)
        return functools.partial(self._distributed_step, layout=layout, train=self._agent.train)

    def _make_loss(self) -> Callable[[Any], Metrics]:
        """Compiles a function from an element, per replica as the strategy has it, to metrics,
        without any update.
        """
        layout = StepMetrics(*self._reductions)
        vector = tf.function(
            lambda element: self._distributed_step(element, layout=layout, train=self._agent.loss, updates=False)[0],
            autograph=False,
        )
        return lambda element: layout.read(vector(element).numpy())

    def _distributed_step(
        self,
        element: Any,
        *,
        layout: StepMetrics,
        train: Callable[..., Any],
        updates: bool = True,
        summarize: AfterStep | None = None,
    ) -> Any:
        """One train step on all replicas. Returns the vector of its metrics, its loss, the summary
        of the first replica, and items' errors if wanted.
        """
        wanted = self.batches.prioritization

        def replica_step(element: Any) -> Any:
            data, info = split(element)
            weights = importance_weights(info, bool(wanted and wanted.normalize_by_max))
            # XLA would leave out the summaries.
            compiles = self._compiles_parts and updates and not summarize
            with summary_tensors.collecting(bool(summarize)) as tensors:
                if self._options.preprocess:
                    data = self._options.preprocess(data)
                with agent_data.demonstrated_by(info), strategies.compiling(compiles):
                    loss_info = train(data) if weights is None else train(data, weights)
                if updates and self._options.after_step:
                    self._options.after_step((data, info), loss_info)
                if summarize:
                    summarize(data, info)
            loss = tf.cast(tf.reduce_sum(loss_info.loss), tf.float32)
            errors = item_errors(loss_info.extra, wanted.error if wanted and updates else None)
            return *layout.of_replica(loss, loss_info.extra, info), loss, errors, tensors

        if updates:
            self.num_traces += 1
        results = self._strategy.run(replica_step, (element,), options=self._options.run_options)
        summed, extremes, loss, errors, tensors = results
        vector = layout.over_replicas(self._strategy, summed, extremes)
        total = self._strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
        per_item = (tf.concat(self._strategy.experimental_local_results(part), axis=0) for part in errors)
        local = self._strategy.experimental_local_results
        return vector, total, layout.of_summary({tag: local(part)[0] for tag, part in tensors.items()}), *per_item


def _packed(taken: tf.Tensor, waited_secs: tf.Tensor, sums: tf.Tensor, errors: Any) -> tuple[tf.Tensor, ...]:
    numbers = tf.stack([tf.cast(taken, tf.float64), tf.cast(waited_secs, tf.float64)])
    return tf.concat([numbers, tf.cast(sums, tf.float64)], axis=0), *errors
