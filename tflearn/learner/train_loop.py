"""TrainLoop: many train steps on all replicas as one compiled program.

There are two programs: a plain one, and one for the steps that are summarized, in which the agent, its networks and its
optimizers write their summaries. So steps that are not summarized do not pay for summaries.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from tflearn.errors import UserValueError
from tflearn.learner import batch_structure
from tflearn.learner.batch_structure import split
from tflearn.learner.batches import Batches
from tflearn.learner.metrics import Metrics, Reduction, StepMetrics
from tflearn.types import Agent

OnNonfinite = Literal['stop', 'skip', 'ignore']

AfterStep = Callable[[Any, Any], object]
Program = Callable[[int], Metrics]


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """How train steps are taken, and how their metrics are reduced.

    Attributes:
      jit_compile: compile the train step with XLA; for one replica. The steps that are summarized are not.
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

    jit_compile: bool = False
    on_nonfinite: OnNonfinite = 'stop'
    extra_reductions: Mapping[str, Reduction] = dataclasses.field(default_factory=dict)
    after_step: AfterStep | None = None
    run_options: tf.distribute.RunOptions | None = None
    preprocess: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.on_nonfinite not in get_args(OnNonfinite):
            raise UserValueError(
                f'got on_nonfinite={self.on_nonfinite!r}; need one of {", ".join(get_args(OnNonfinite))}'
            )
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
        if options.jit_compile and strategy.num_replicas_in_sync > 1:
            raise UserValueError(
                f'got jit_compile=True with {strategy.num_replicas_in_sync} replicas; need one replica, or '
                'jit_compile=False'
            )
        self._agent, self._strategy, self._options = agent, strategy, options
        self._reductions = options.extra_reductions, strategy.num_replicas_in_sync
        self._train = agent.train
        if options.jit_compile:
            self._train = tf.function(agent.train, autograph=False, jit_compile=True)
        self.num_traces = 0

    def program(self, batches: Batches, summarize: AfterStep | None = None) -> Program:
        """Compiles a program.

        Args:
          summarize: makes it the summary program; called in each replica after the train step, while that is traced,
            with data and info.
        """
        # The data's metrics are in the vector, or follow it.
        layout = StepMetrics(*self._reductions, with_info=not batches.last_info, last_info=batches.last_info)
        # XLA would leave out the summaries.
        train = self._agent.train if summarize else self._train
        step = tf.function(
            lambda element: self._distributed_step(element, layout, train, batches, summarize=summarize),
            autograph=False,
        )
        step.get_concrete_function(batches.element_spec)  # makes the optimizer's slots

        def take(sums: tf.Tensor, element: Any) -> Any:
            vector, loss, *errors = step(element)
            if self._options.on_nonfinite == 'ignore':
                return sums + vector, tf.constant(True), tuple(errors)
            finite = tf.math.is_finite(loss)
            goes_on = finite if self._options.on_nonfinite == 'stop' else tf.constant(True)
            return sums + tf.where(finite, vector, 0.0), goes_on, tuple(errors)

        loop = tf.function(batches.loop)
        # One tensor: fetching many small ones costs more than a small train step.
        compiled = tf.function(
            lambda num_steps: _packed(*loop(take, tf.zeros([layout.size]), num_steps)), autograph=False
        )
        concrete = compiled.get_concrete_function(tf.TensorSpec((), tf.int64))

        def run(num_steps: int) -> Metrics:
            packed, *errors = concrete(tf.constant(num_steps, tf.int64))
            steps, waited_secs, *sums = packed.numpy()
            if errors and steps:
                batches.update(int(self._agent.train_step_counter.numpy()), errors[0].numpy()[: int(steps)])
            return layout.read(np.array(sums), int(steps), float(waited_secs))

        return run

    def step(self, layout: StepMetrics) -> Any:
        """For other loops: compiles a function from an element of an iterator to the vector of a train step."""
        return tf.function(lambda element: self._distributed_step(element, layout, self._train)[0], autograph=False)

    def layout(self) -> StepMetrics:
        """For other loops: returns a new layout of metrics, without the data's own."""
        return StepMetrics(*self._reductions, with_info=False)

    def loss(self, batches: Batches | None = None) -> Callable[[Any], Metrics]:
        """Compiles a function from an element, per replica as the strategy has it, to metrics, without any update."""
        layout = StepMetrics(*self._reductions, with_info=batches is not None)
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
        batches: Batches | None = None,
        *,
        updates: bool = True,
        summarize: AfterStep | None = None,
    ) -> Any:
        """One train step on all replicas. Returns the vector of its metrics, its loss, and items' errors if wanted."""
        wanted = batches.prioritization if batches else None

        def replica_step(element: Any) -> Any:
            data, info = split(batches.own_part(element) if batches and updates else element)
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


def _packed(*results: Any) -> tuple[tf.Tensor, ...]:
    *numbers, sums, errors = results
    flat = tf.stack([tf.cast(value, tf.float64) for value in numbers])
    return tf.concat([flat, tf.cast(sums, tf.float64)], axis=0), *errors
