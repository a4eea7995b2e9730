"""TrainLoop: many train steps on all replicas as one compiled program.

There are two programs: a silent one, and one for the steps that are summarized, in which the summaries of the agent,
its networks and its optimizers are recorded. So silence costs nothing.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from tflearn.experience import Agent, BatchSource
from tflearn.learner import elements, strategies
from tflearn.learner.elements import flatten_with_names, split

OnNonfinite = Literal['stop', 'skip', 'ignore']
Reduction = Literal['mean', 'sum', 'max', 'min']

Sums = tuple[tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor]]
AfterStep = Callable[[Any, Any], object]

_REDUCTIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    'mean': tf.reduce_mean,
    'sum': tf.reduce_sum,
    'max': tf.reduce_max,
    'min': tf.reduce_min,
}


@dataclasses.dataclass(frozen=True)
class Taken:
    """What a call of a program did.

    Attributes:
      num_steps: train steps taken; fewer than asked for only if the data ended or a loss was not finite.
      num_nonfinite: how many of them had a loss that was not finite.
      waited_secs: spent waiting for the iterator.
      loss: summed over the steps whose loss was finite.
      extra: the agent's further figures, likewise.
      info: the data's own figures, likewise.
      items: `LoopOptions.item_figure`, float32 [num_steps, B], B items of this process' batches; None if not wanted.
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
      extra_reductions: by the name of one of the agent's further figures, how it becomes one number over its own axes
        and the replicas: 'mean' (also of those that are not named), 'sum', 'max' or 'min'.
      after_step: called in each replica after each train step, while it is traced, with the data and the LossInfo.
      run_options: of `strategy.run`.
      item_figure: one of the agent's further figures, [B] on each replica, that is also handed out for each item.
      normalize_weights: divide the data's importance weights by the greatest one of the global batch.
    """

    jit_compile: bool = False
    on_nonfinite: OnNonfinite = 'stop'
    extra_reductions: Mapping[str, Reduction] = dataclasses.field(default_factory=dict)
    after_step: AfterStep | None = None
    run_options: tf.distribute.RunOptions | None = None
    item_figure: str | None = None
    normalize_weights: bool = False

    def __post_init__(self) -> None:
        if self.on_nonfinite not in get_args(OnNonfinite):
            raise ValueError(f'got on_nonfinite={self.on_nonfinite!r}; need one of {", ".join(get_args(OnNonfinite))}')
        for name, rule in self.extra_reductions.items():
            if rule not in _REDUCTIONS:
                raise ValueError(f'got extra_reductions[{name!r}]={rule!r}; need one of {", ".join(_REDUCTIONS)}')


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
            raise ValueError(
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
        # XLA would leave out the summaries.
        train = self._agent.train if summarize else self._train
        step = tf.function(
            lambda element: self._distributed_step(element, sliced, train, summarize=summarize), autograph=False
        )
        zeros = self._zeros(step, source)
        loop = tf.function(self._over_source if sliced else self._over_iterator)
        # One tensor: fetching many small ones costs more than a small train step.
        compiled = tf.function(lambda num_steps: _packed(*loop(step, zeros, source, num_steps)), autograph=False)
        concrete = compiled.get_concrete_function(tf.TensorSpec((), tf.int64))

        def run(num_steps: int) -> Taken:
            numbers, *items = concrete(tf.constant(num_steps, tf.int64))
            steps, nonfinite, waited_secs, *sums = numbers.numpy().tolist()
            sums = tf.nest.pack_sequence_as(zeros, sums)
            per_item = (part.numpy()[: int(steps)] for part in items)
            return Taken(int(steps), int(nonfinite), waited_secs, *sums, *per_item)

        return run

    def step(self) -> Any:
        """Returns a function to compile, for loops of others: an element of an iterator -> what a train step gives."""
        return tf.function(lambda element: self._distributed_step(element, False, self._train), autograph=False)

    def loss(self, element: Any) -> Sums:
        """Returns loss, extra and info of an element (per replica, as the strategy gives it), without any update."""
        return self._distributed_step(element, False, self._agent.loss, after_step=False)[:3]

    def _zeros(self, step: Any, source: Any) -> Sums:
        """Traces the step, which makes the optimizer's slots, and returns the zeros that sums begin with."""
        if hasattr(source, 'draw'):
            drawn = tf.function(source.draw, autograph=False).get_concrete_function(
                tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.int64)
            )
            spec = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape[1:], t.dtype), drawn.structured_outputs)
        else:
            spec = source.element_spec
        outputs = step.get_concrete_function(spec).structured_outputs
        return tf.nest.map_structure(lambda _: tf.constant(0.0), outputs[:3])

    def _over_source(self, step: Any, zeros: Sums, source: BatchSource, num_steps: tf.Tensor) -> Any:
        taken, nonfinite = tf.constant(0, tf.int64), tf.constant(0, tf.int64)
        sums, items = tf.zeros([len(tf.nest.flatten(zeros))]), self._item_arrays(num_steps)
        going_on = tf.constant(True)
        while going_on and taken < num_steps:
            count = tf.minimum(num_steps - taken, source.max_draw_steps)
            batches = source.draw(count, self._agent.train_step_counter)
            i = tf.constant(0, tf.int64)
            while going_on and i < count:
                outputs = step(tf.nest.map_structure(lambda column: tf.gather(column, i), batches))  # noqa: B023
                sums, finite = self._add(sums, outputs)
                items = _write(items, taken + i, outputs)
                nonfinite += 1 - tf.cast(finite, tf.int64)
                going_on = self._goes_on(finite)
                i += 1
            taken += i
        return taken, nonfinite, tf.constant(0.0, tf.float64), sums, _stack(items)

    def _over_iterator(self, step: Any, zeros: Sums, iterator: Any, num_steps: tf.Tensor) -> Any:
        taken, nonfinite = tf.constant(0, tf.int64), tf.constant(0, tf.int64)
        sums, items = tf.zeros([len(tf.nest.flatten(zeros))]), self._item_arrays(num_steps)
        going_on = tf.constant(True)
        element, waited_secs = _next(iterator, taken)
        while going_on and taken < num_steps and elements.is_whole(self._strategy, element):
            outputs = step(element.get_value())
            sums, finite = self._add(sums, outputs)
            items = _write(items, taken, outputs)
            nonfinite += 1 - tf.cast(finite, tf.int64)
            going_on = self._goes_on(finite)
            taken += 1
            if going_on and taken < num_steps:
                element, secs = _next(iterator, outputs[0])
                waited_secs += secs
        return taken, nonfinite, waited_secs, sums, _stack(items)

    def _item_arrays(self, num_steps: tf.Tensor) -> tuple[tf.TensorArray, ...]:
        wanted = self._options.item_figure is not None
        return (tf.TensorArray(tf.float32, tf.cast(num_steps, tf.int32)),) if wanted else ()

    def _goes_on(self, finite: tf.Tensor) -> tf.Tensor:
        return finite if self._options.on_nonfinite == 'stop' else tf.constant(True)

    def _add(self, sums: tf.Tensor, outputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        # One vector: an operation for each number would cost more than a small train step.
        numbers = tf.stack(tf.nest.flatten(outputs[:3]))
        if self._options.on_nonfinite == 'ignore':
            return sums + numbers, tf.constant(True)
        finite = tf.math.is_finite(outputs[0])
        return sums + tf.where(finite, numbers, 0.0), finite

    def _distributed_step(
        self,
        element: Any,
        sliced: bool,
        train: Callable[..., Any],
        after_step: bool = True,
        summarize: AfterStep | None = None,
    ) -> Any:
        """One train step on all replicas. Returns scalars: loss, extra, info; then the figure of items, if wanted."""

        def replica_step(whole: Any) -> Any:
            data, info = split(elements.own_part(whole, self._replicas_here) if sliced else whole)
            weights = elements.weights(info, self._options.normalize_weights)
            loss_info = train(data) if weights is None else train(data, weights)
            if after_step and self._options.after_step:
                self._options.after_step((data, info), loss_info)
            if summarize:
                summarize(data, info)
            loss = tf.cast(tf.reduce_sum(loss_info.loss), tf.float32)
            items = elements.of_items(loss_info.extra, self._options.item_figure)
            return loss, self._numbers(loss_info.extra), self._numbers(info), items

        if after_step:
            self.num_traces += 1
        loss, extra, info, items = self._strategy.run(replica_step, (element,), options=self._options.run_options)
        total = self._strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
        whole = tuple(tf.concat(self._strategy.experimental_local_results(part), axis=0) for part in items)
        return total, self._over_replicas(extra), self._over_replicas(info), *whole

    def _numbers(self, values: Any) -> dict[str, tf.Tensor]:
        """Returns each numeric tensor of a nest as one number, named by its path."""
        numbers = {}
        for path, value in flatten_with_names(values):
            tensor = tf.convert_to_tensor(value)
            if tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool:
                numbers[path] = _REDUCTIONS[self._rule(path)](tf.cast(tensor, tf.float32))
        return numbers

    def _over_replicas(self, numbers: dict[str, Any]) -> dict[str, tf.Tensor]:
        if self._strategy.num_replicas_in_sync == 1:
            return {name: self._strategy.reduce('SUM', number, axis=None) for name, number in numbers.items()}
        reduced = {}
        for name, number in numbers.items():
            rule = self._rule(name)
            if rule in ('mean', 'sum'):
                reduced[name] = self._strategy.reduce(rule.upper(), number, axis=None)
            else:
                gathered = self._strategy.gather(
                    tf.nest.map_structure(lambda part: part[None], number, expand_composites=True), axis=0
                )
                reduced[name] = _REDUCTIONS[rule](gathered)
        return reduced

    def _rule(self, name: str) -> Reduction:
        return self._options.extra_reductions.get(name, 'mean')


def _write(arrays: tuple[tf.TensorArray, ...], place: tf.Tensor, outputs: Any) -> tuple[tf.TensorArray, ...]:
    place = tf.cast(place, tf.int32)
    return tuple(array.write(place, items) for array, items in zip(arrays, outputs[3:], strict=True))


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
