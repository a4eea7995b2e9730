"""TrainLoop: many train steps on all replicas as one compiled program.

There are two programs: a plain one, and one for the steps that are summarized, in which the agent, its networks and its
optimizers write their summaries. So steps that are not summarized do not pay for summaries. The plain program has a
variant in XLA (see `XlaLoop`), which `LoopOptions.jit_compile` asks for.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core.errors import UserValueError
from tflearn.core.settings import checked_dataclass
from tflearn.core.types import Agent
from tflearn.learner import batch_structure
from tflearn.learner.batch_structure import split
from tflearn.learner.batches import Batches, SourceBatches, TakeStep, XlaLoop
from tflearn.learner.metrics import Metrics, Reduction, StepMetrics

OnNonfinite = Literal['stop', 'skip', 'ignore']
JitCompile = bool | Literal['auto']

AfterStep = Callable[[Any, Any], object]
Program = Callable[[int], Metrics]

MIN_XLA_STEPS = 4  # for fewer, what a call costs is more than what XLA gains
AUTO_AFTER_STEPS = 10_000  # train steps before 'auto' compiles: a run that is shorter would not win the time back
_MAX_MULTIPLICATIONS = 8e6  # in the matrix products of a train step, for 'auto'
_PRODUCTS = ('MatMul', 'BatchMatMul', 'BatchMatMulV2')


@checked_dataclass(frozen=True)
class LoopOptions:
    """How train steps are taken, and how their metrics are reduced.

    Attributes:
      jit_compile: whether train steps are compiled with XLA, on one replica; 'auto' does so where it is faster: for
        small train steps on a CPU, see `why_slower_in_xla`, when a session has taken 10,000, since short runs would not
        win back the seconds that compiling takes. With a `BatchSource` many steps are one XLA program (see `XlaLoop`);
        steps that XLA cannot compile are taken without it, with a line in the log.
        With other data, True compiles the single step, and 'auto' does nothing. XLA ignores the steps' assertions, and
        a seed for random numbers that they draw. The steps that are summarized are not compiled with it.
      on_nonfinite: at a loss that is not finite, 'stop' ends the loop; 'skip' leaves it out of the means and goes on,
        for optimizers that do not apply such gradients; 'ignore' does nothing.
      extra_reductions: by the name of one of the agent's extra metrics, how it is reduced to one number over its own
        axes and the replicas: 'mean', 'sum', 'max' or 'min'. The default is 'mean'; but 'sum' for a scalar in a named
        tuple whose name ends with 'loss', since TF-Agents' agents return replicas' shares there.
      after_step: called in each replica after each train step, while it is traced, with the data and the LossInfo.
      run_options: options of `strategy.run`.
      preprocess: maps a replica's data to what `agent.train` takes, as `agent.preprocess_sequence` does for some of
        TF-Agents' agents; None where the data are that already.
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


class TrainLoop:
    """Takes train steps."""

    def __init__(self, agent: Agent, strategy: tf.distribute.Strategy, options: LoopOptions):
        """Compiles nothing yet. To be made, like everything else here, within the strategy's scope.

        Raises:
          ValueError: for XLA on more than one replica.
        """
        if options.jit_compile is True and strategy.num_replicas_in_sync > 1:
            raise UserValueError(
                f'got jit_compile=True with {strategy.num_replicas_in_sync} replicas; need one replica, or '
                'jit_compile=False'
            )
        self._agent, self._strategy, self._options = agent, strategy, options
        self._reductions = options.extra_reductions, strategy.num_replicas_in_sync
        self._train = agent.train
        if options.jit_compile is True:
            self._train = tf.function(agent.train, autograph=False, jit_compile=True)
        self._xla: _XlaProgram | None = None
        self.num_traces = 0

    def program(self, batches: Batches, summarize: AfterStep | None = None) -> Program:
        """Compiles a program.

        Args:
          summarize: makes it the summary program; called in each replica after the train step, while that is traced,
            with data and info.
        """
        # The data's metrics are in the vector, or follow it.
        layout = StepMetrics(*self._reductions, with_info=not batches.last_info, last_info=batches.last_info)
        wants_xla = not summarize and self._wants_xla_loop(batches)
        # XLA would leave out the summaries.
        train = self._agent.train if summarize or wants_xla else self._train
        step = tf.function(
            lambda element: self._distributed_step(element, layout, train, batches, summarize=summarize),
            autograph=False,
        )
        graph = step.get_concrete_function(batches.element_spec).graph  # makes the optimizer's slots

        def take(sums: tf.Tensor, element: Any) -> Any:
            vector, loss, *errors = step(element)
            if self._options.on_nonfinite == 'ignore':
                return sums + vector, tf.constant(True), tuple(errors)
            finite = tf.math.is_finite(loss)
            goes_on = finite if self._options.on_nonfinite == 'stop' else tf.constant(True)
            return sums + tf.where(finite, vector, 0.0), goes_on, tuple(errors)

        plain = self._compiled(layout, batches, batches.loop, take)
        if wants_xla and isinstance(batches, SourceBatches):
            return self._with_xla(plain, batches, take, layout, graph)
        return plain

    def _wants_xla_loop(self, batches: Batches) -> bool:
        if not self._options.jit_compile or self._strategy.num_replicas_in_sync > 1:
            return False
        return isinstance(batches, SourceBatches)

    def _with_xla(
        self, plain: Program, batches: SourceBatches, take: TakeStep, layout: StepMetrics, graph: tf.Graph
    ) -> Program:
        """Returns a program that uses XLA for as many steps as it is worth it; `plain` if XLA is not chosen."""
        size, slower, auto = batches.num_together, None, self._options.jit_compile == 'auto'
        if auto:
            on_cpu = not (tf.config.list_logical_devices('GPU') or tf.config.list_logical_devices('TPU'))
            slower = why_slower_in_xla(graph) if on_cpu else "'auto' is a rule for CPUs"
        if slower or size < MIN_XLA_STEPS:
            logging.info('trains without XLA: %s', slower or 'batches are too large to gather, or have no fixed shape')
            return plain

        def make() -> Program | None:
            with self._strategy.scope():
                xla = XlaLoop(batches, take, layout.size, size)
                return self._compiled(layout, batches, xla.loop) if xla.compile() else None

        self._xla = _XlaProgram(make, plain, AUTO_AFTER_STEPS if auto else 0)
        return self._xla

    @property
    def jit_compiles(self) -> bool:
        """Whether XLA has compiled the plain program's train steps, many in one program."""
        return bool(self._xla and self._xla.has_compiled)

    def prepare(self) -> None:
        """Lets XLA compile, if it is to be used from the first train step; otherwise it does so when it is needed."""
        if self._xla:
            self._xla.prepare()

    def _compiled(self, layout: StepMetrics, batches: Batches, loop: Callable[..., Any], *first: Any) -> Program:
        """Compiles a loop, (*first, sums, number of steps) -> what `Batches.loop` returns."""
        in_graph = tf.function(loop, autograph=False)
        # One tensor: fetching many small ones costs more than a small train step.
        compiled = tf.function(
            lambda num_steps: _packed(*in_graph(*first, tf.zeros([layout.size]), num_steps)), autograph=False
        )
        concrete = compiled.get_concrete_function(tf.TensorSpec((), tf.int64))

        def run(num_steps: int) -> Metrics:
            packed, *errors = concrete(tf.constant(num_steps, tf.int64))
            steps, waited_secs, *sums = packed.numpy()
            if errors and steps:
                batches.update(int(self._agent.train_step_counter.numpy()), errors[0].numpy()[: int(steps)])
            return layout.read(np.array(sums), int(steps), float(waited_secs))

        return run

    def replica_step(self, batches: Batches) -> Callable[[Any], Any]:
        """For a dry run: returns the train step of the plain program, from an element to metrics; not compiled."""
        layout = StepMetrics(*self._reductions, with_info=not batches.last_info, last_info=batches.last_info)
        return lambda element: self._distributed_step(element, layout, self._agent.train, batches)

    def loss(self, batches: Batches) -> Callable[[Any], Metrics]:
        """Compiles a function from an element, per replica as the strategy has it, to metrics, without any update."""
        layout = StepMetrics(*self._reductions)
        vector = tf.function(
            lambda element: self._distributed_step(element, layout, self._agent.loss, batches, updates=False)[0],
            autograph=False,
        )
        return lambda element: layout.read(vector(element).numpy())

    def _distributed_step(
        self,
        element: Any,
        layout: StepMetrics,
        train: Callable[..., Any],
        batches: Batches,
        *,
        updates: bool = True,
        summarize: AfterStep | None = None,
    ) -> Any:
        """One train step on all replicas. Returns the vector of its metrics, its loss, and items' errors if wanted."""
        wanted = batches.prioritization

        def replica_step(element: Any) -> Any:
            data, info = split(element)
            if self._options.preprocess:
                data = self._options.preprocess(data)
            weights = batch_structure.weights(info, bool(wanted and wanted.normalize_by_max))
            loss_info = train(data) if weights is None else train(data, weights)
            if updates and self._options.after_step:
                self._options.after_step((data, info), loss_info)
            if summarize:
                summarize(data, info)
            loss = tf.cast(tf.reduce_sum(loss_info.loss), tf.float32)
            errors = batch_structure.of_items(loss_info.extra, wanted.error if wanted and updates else None)
            return *layout.of_replica(loss, loss_info.extra, info), loss, errors

        if updates:
            self.num_traces += 1
        summed, extremes, loss, errors = self._strategy.run(replica_step, (element,), options=self._options.run_options)
        vector = layout.over_replicas(self._strategy, summed, extremes)
        total = self._strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
        per_item = (tf.concat(self._strategy.experimental_local_results(part), axis=0) for part in errors)
        return vector, total, *per_item


class _XlaProgram:
    """The plain program, and after a number of train steps the one in XLA.

    Attributes:
      has_compiled: whether XLA has compiled it.
    """

    def __init__(self, make: Callable[[], Program | None], plain: Program, after_steps: int):
        """Compiles nothing yet.

        Args:
          make: compiles, and returns the program in XLA; None if XLA cannot.
          plain: the program without XLA.
          after_steps: train steps without XLA before it compiles; those of short calls do not count.
        """
        self._make, self._plain, self._steps_left = make, plain, after_steps
        self._many: Program | None = None
        self._tried = self.has_compiled = False

    def prepare(self) -> None:
        """Compiles if it is time, unless it was tried before."""
        if not self._tried and self._steps_left <= 0:
            self._tried = True
            self._many = self._make()
            self.has_compiled = self._many is not None

    def __call__(self, num_steps: int) -> Metrics:
        """Takes train steps."""
        if num_steps < MIN_XLA_STEPS:
            return self._plain(num_steps)
        self.prepare()
        self._steps_left -= num_steps
        return (self._many or self._plain)(num_steps)


def why_slower_in_xla(graph: tf.Graph) -> str | None:
    """Returns why XLA is not expected to take the train steps of a graph faster, on a CPU; None if it is.

    XLA removes the overhead of operations, but its own matrix products and convolutions are slower than TensorFlow's
    (`benchmarks/train_loops.py`). So it is for train steps with small matrix products alone. Random numbers with a seed
    would be others in XLA.
    """
    nested = [node.op for function in graph.as_graph_def().library.function for node in function.node_def]
    operations = graph.get_operations()
    for kind in (*nested, *(operation.type for operation in operations)):
        if kind.startswith(('Conv', 'DepthwiseConv')):
            return f'the train step has convolutions ({kind})'
        if kind.startswith('Random'):
            return f'the train step draws random numbers ({kind}), and XLA would draw others'
    if not set(_PRODUCTS).isdisjoint(nested):
        return 'the train step has matrix products in loops or functions, whose size is not known'
    multiplications = 0.0
    for operation in operations:
        if operation.type in _PRODUCTS:
            shapes = [tensor.shape for tensor in (*operation.inputs, *operation.outputs)]
            if not all(shape.is_fully_defined() for shape in shapes):
                return 'the train step has matrix products of varying size'
            # The square of m * k * n, for [m, k], [k, n] and [m, n].
            multiplications += math.prod(float(shape.num_elements()) for shape in shapes) ** 0.5
    if multiplications > _MAX_MULTIPLICATIONS:
        return (
            f'its matrix products are too large ({multiplications / 1e6:.0f} million multiplications in a train step)'
        )
    return None


def _packed(*results: Any) -> tuple[tf.Tensor, ...]:
    *numbers, sums, errors = results
    flat = tf.stack([tf.cast(value, tf.float64) for value in numbers])
    return tf.concat([flat, tf.cast(sums, tf.float64)], axis=0), *errors
