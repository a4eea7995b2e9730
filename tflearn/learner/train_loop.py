"""TrainLoop: many train steps on all replicas as one compiled program.

There are two programs: a silent one, and one for the steps that are summarized, in which the summaries of the agent,
its networks and its optimizers are recorded. So silence costs nothing.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from tflearn.distribute import strategies
from tflearn.errors import UserValueError
from tflearn.learner import batch_structure
from tflearn.learner.batch_structure import is_number, split
from tflearn.learner.step_metrics import Reduction, StepMetrics
from tflearn.types import Agent, BatchSource

OnNonfinite = Literal['stop', 'skip', 'ignore']

AfterStep = Callable[[Any, Any], object]


@dataclasses.dataclass(frozen=True)
class Taken:
    """What a call of a program did.

    Attributes:
      num_steps: train steps taken; fewer than asked for only if the data ended or a loss was not finite.
      num_nonfinite: how many of them had a loss that was not finite.
      waited_secs: spent waiting for the iterator.
      loss: summed over the steps whose loss was finite.
      extra: the agent's extra metrics, likewise.
      info: the data's own metrics, likewise; of a `BatchSource` those of the last batch, as often.
      items: `LoopOptions.item_metric`, float32 [num_steps, B], B items of this process' batches; None if not wanted.
    """

    num_steps: int
    num_nonfinite: int
    waited_secs: float
    loss: float
    extra: dict[str, float]
    info: dict[str, float]
    items: np.ndarray | None = None


Program = Callable[[int], Taken]


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """How train steps are taken and what is told of them.

    Attributes:
      jit_compile: compile the train step with XLA; for one replica. The steps that are summarized are not.
      on_nonfinite: at a loss that is not finite, 'stop' ends the loop; 'skip' leaves it out of the means and goes on,
        for optimizers that do not apply such gradients; 'ignore' does nothing.
      extra_reductions: by the name of one of the agent's extra metrics, how it becomes one number over its own axes
        and the replicas: 'mean', 'sum', 'max' or 'min'. Of those that are not named it is 'mean'; but 'sum' of a scalar
        in a named tuple whose name ends with 'loss', since TF-Agents' agents return replicas' shares there.
      after_step: called in each replica after each train step, while it is traced, with the data and the LossInfo.
      run_options: of `strategy.run`.
      item_metric: one of the agent's extra metrics, [B] on each replica, that is also handed out for each item.
      normalize_weights: divide the data's importance weights by the greatest one of the global batch.
    """

    jit_compile: bool = False
    on_nonfinite: OnNonfinite = 'stop'
    extra_reductions: Mapping[str, Reduction] = dataclasses.field(default_factory=dict)
    after_step: AfterStep | None = None
    run_options: tf.distribute.RunOptions | None = None
    item_metric: str | None = None
    normalize_weights: bool = False

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
    """Takes train steps with the batches of an iterator, or of a `BatchSource`."""

    def __init__(self, agent: Agent, strategy: tf.distribute.Strategy, options: LoopOptions):
        """Compiles nothing yet. To be made, like everything else here, within the strategy's scope.

        Args:
          agent: to train.
          strategy: that the agent was made in.
          options: of the loop.

        Raises:
          ValueError: for XLA on more than one replica.
        """
        if options.jit_compile and strategy.num_replicas_in_sync > 1:
            raise UserValueError(
                f'got jit_compile=True with {strategy.num_replicas_in_sync} replicas; need one replica, or '
                'jit_compile=False'
            )
        self._agent, self._strategy, self._options = agent, strategy, options
        place = strategies.layout(strategy)
        self._replicas_here = place.replicas // place.workers
        self._train = agent.train
        if options.jit_compile:
            self._train = tf.function(agent.train, autograph=False, jit_compile=True)
        self.num_traces = 0

    def program(self, source: Any, summarize: AfterStep | None = None) -> Program:
        """Compiles a program.

        Args:
          source: an iterator of the strategy, or a `BatchSource`.
          summarize: makes it the program whose summaries are recorded; called in each replica after the train step,
            while that is traced, with data and info.

        Returns:
          A function of the number of train steps.
        """
        sliced = hasattr(source, 'draw')
        metrics = self.metrics(with_info=not sliced)
        # XLA would leave out the summaries.
        train = self._agent.train if summarize else self._train
        step = tf.function(
            lambda element: self._distributed_step(element, metrics, sliced, train, summarize=summarize),
            autograph=False,
        )
        spec = _element_spec(source)
        step.get_concrete_function(spec)  # makes the optimizer's slots
        names = [name for name, leaf in spec[1].items() if is_number(leaf.dtype)] if sliced else []
        loop = tf.function(functools.partial(self._over_source, names=names) if sliced else self._over_iterator)
        # One tensor: fetching many small ones costs more than a small train step.
        compiled = tf.function(lambda num_steps: _packed(*loop(step, metrics, source, num_steps)), autograph=False)
        concrete = compiled.get_concrete_function(tf.TensorSpec((), tf.int64))

        def run(num_steps: int) -> Taken:
            packed, *items = concrete(tf.constant(num_steps, tf.int64))
            steps, waited_secs, *sums = packed.numpy()
            num_finite, loss, extra, info = metrics.read(np.array(sums[: metrics.size]))
            info |= {name: num_finite * mean for name, mean in zip(names, sums[metrics.size :], strict=True)}
            per_item = items[0].numpy()[: int(steps)] if items else None
            return Taken(int(steps), int(steps) - num_finite, float(waited_secs), loss, extra, info, per_item)

        return run

    def metrics(self, with_info: bool = True) -> StepMetrics:
        """Returns a new layout of metrics, for one kind of step."""
        return StepMetrics(self._options.extra_reductions, self._strategy.num_replicas_in_sync, with_info)

    def step(self, metrics: StepMetrics) -> Any:
        """For loops of others: compiles a function from an element of an iterator to the metrics of a train step."""
        return tf.function(
            lambda element: self._distributed_step(element, metrics, False, self._train)[0], autograph=False
        )

    def loss(self, metrics: StepMetrics) -> Any:
        """Likewise, but without any update; the element is per replica, as the strategy gives it."""
        return tf.function(
            lambda element: self._distributed_step(element, metrics, False, self._agent.loss, after_step=False)[0],
            autograph=False,
        )

    def _over_source(
        self, step: Any, metrics: StepMetrics, source: BatchSource, num_steps: tf.Tensor, names: Sequence[str]
    ) -> Any:
        """Returns steps, seconds that were waited, sums of metrics and means of the data's `names`, and items."""
        taken, going_on = tf.constant(0, tf.int64), tf.constant(True)
        sums, items = tf.zeros([metrics.size]), self._item_arrays(num_steps)
        means = tf.zeros([len(names)])
        # `and` would be a conditional, which costs more than the comparison that it may save.
        while tf.logical_and(going_on, taken < num_steps):
            count = tf.minimum(num_steps - taken, source.max_draw_steps)
            drawn = source.draw(count, self._agent.train_step_counter)
            i = tf.constant(0, tf.int64)
            while tf.logical_and(going_on, i < count):
                outputs = step(source.batch(drawn, i))
                sums, going_on = self._add(sums, outputs)
                items = _write(items, taken + i, outputs)
                i += 1
            taken += i
            if names:  # of each step they would cost more than the step's own metrics
                _, info = source.batch(drawn, i - 1)
                means = tf.stack([tf.reduce_mean(tf.cast(info[name], tf.float32)) for name in names])
        return taken, tf.constant(0.0, tf.float64), tf.concat([sums, means], axis=0), _stack(items)

    def _over_iterator(self, step: Any, metrics: StepMetrics, iterator: Any, num_steps: tf.Tensor) -> Any:
        taken, going_on = tf.constant(0, tf.int64), tf.constant(True)
        sums, items = tf.zeros([metrics.size]), self._item_arrays(num_steps)
        element, waited_secs = _next(iterator, taken)
        while going_on and taken < num_steps and batch_structure.is_whole(self._strategy, element):
            outputs = step(element.get_value())
            sums, going_on = self._add(sums, outputs)
            items = _write(items, taken, outputs)
            taken += 1
            if going_on and taken < num_steps:
                element, secs = _next(iterator, outputs[1])
                waited_secs += secs
        return taken, waited_secs, sums, _stack(items)

    def _item_arrays(self, num_steps: tf.Tensor) -> tuple[tf.TensorArray, ...]:
        wanted = self._options.item_metric is not None
        return (tf.TensorArray(tf.float32, tf.cast(num_steps, tf.int32)),) if wanted else ()

    def _add(self, sums: tf.Tensor, outputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        vector, loss = outputs[:2]
        if self._options.on_nonfinite == 'ignore':
            return sums + vector, tf.constant(True)
        finite = tf.math.is_finite(loss)
        goes_on = finite if self._options.on_nonfinite == 'stop' else tf.constant(True)
        return sums + tf.where(finite, vector, 0.0), goes_on

    def _distributed_step(
        self,
        element: Any,
        metrics: StepMetrics,
        sliced: bool,
        train: Callable[..., Any],
        after_step: bool = True,
        summarize: AfterStep | None = None,
    ) -> Any:
        """One train step on all replicas. Returns its metrics, the loss, and the metric of items, if wanted."""

        def replica_step(whole: Any) -> Any:
            data, info = split(batch_structure.own_part(whole, self._replicas_here) if sliced else whole)
            weights = batch_structure.weights(info, self._options.normalize_weights)
            loss_info = train(data) if weights is None else train(data, weights)
            if after_step and self._options.after_step:
                self._options.after_step((data, info), loss_info)
            if summarize:
                summarize(data, info)
            loss = tf.cast(tf.reduce_sum(loss_info.loss), tf.float32)
            items = batch_structure.of_items(loss_info.extra, self._options.item_metric)
            return *metrics.of_replica(loss, loss_info.extra, info), loss, items

        if after_step:
            self.num_traces += 1
        summed, extremes, loss, items = self._strategy.run(replica_step, (element,), options=self._options.run_options)
        vector = metrics.over_replicas(self._strategy, summed, extremes)
        total = self._strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
        whole = tuple(tf.concat(self._strategy.experimental_local_results(part), axis=0) for part in items)
        return vector, total, *whole


def _element_spec(source: Any) -> Any:
    found: list[Any] = []

    def find(seed: tf.Tensor) -> None:
        # Not `iterator.element_spec`: where replicas may run out of data one by one, batch sizes are unknown.
        drawn = hasattr(source, 'draw')
        element = source.batch(source.draw(1, seed), 0) if drawn else source.get_next_as_optional().get_value()
        found.append(tf.nest.map_structure(tf.type_spec_from_value, element))

    tf.function(find, autograph=False).get_concrete_function(tf.TensorSpec((), tf.int64))
    return found[0]


def _write(arrays: tuple[tf.TensorArray, ...], place: tf.Tensor, outputs: Any) -> tuple[tf.TensorArray, ...]:
    place = tf.cast(place, tf.int32)
    return tuple(array.write(place, items) for array, items in zip(arrays, outputs[2:], strict=True))


def _stack(arrays: tuple[tf.TensorArray, ...]) -> tuple[tf.Tensor, ...]:
    return tuple(array.stack() for array in arrays)


def _packed(*results: Any) -> tuple[tf.Tensor, ...]:
    *numbers, sums, items = results
    flat = tf.stack([tf.cast(value, tf.float64) for value in numbers])
    return tf.concat([flat, tf.cast(sums, tf.float64)], axis=0), *items


def _next(iterator: Any, after: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Returns the next element, and the seconds that it took to come once `after` was known."""
    with tf.control_dependencies([after]):
        start = tf.timestamp()
    with tf.control_dependencies([start]):
        element = iterator.get_next_as_optional()
    with tf.control_dependencies([element.has_value()]):
        return element, tf.timestamp() - start
