"""Batches: a dataset or a `BatchSource`, wrapped once, so that the learner sees one kind of input."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.distribute import strategies
from tflearn.distribute.workers import Agreement
from tflearn.experience import Prioritization
from tflearn.learner import batch_structure
from tflearn.types import BatchSource, PrioritizedSource

DatasetFn = Callable[[tf.distribute.InputContext], tf.data.Dataset]
TakeStep = Callable[[tf.Tensor, Any], tuple[tf.Tensor, tf.Tensor, tuple[tf.Tensor, ...]]]


class DatasetBatches:
    """Batches of a dataset, as the strategy distributes them.

    Attributes:
      last_info: names of the data's metrics that are averaged over one batch of `loop`, not over all of them.
      prioritization: how items are drawn, if they are drawn by priority; then `update` receives their errors.
      error: why there are no more batches; None if there are, or they ended.
      has_rounds: whether more batches may come after they have ended.
    """

    last_info: Sequence[str] = ()
    prioritization: Prioritization | None = None
    error: Exception | None = None
    has_rounds = False

    def __init__(self, dataset_fn: DatasetFn, strategy: tf.distribute.Strategy):
        """Makes the iterator; raises a ValueError if the strategy cannot train on such a dataset."""

        def checked(context: tf.distribute.InputContext) -> tf.data.Dataset:
            dataset = dataset_fn(context)
            batch_structure.check_dataset(dataset, strategy)
            return dataset

        self._strategy = strategy
        self._iterator = iter(strategy.distribute_datasets_from_function(checked))

    @functools.cached_property
    def element_spec(self) -> Any:
        """Specs of what `loop` hands to a train step."""
        # Not `iterator.element_spec`: where replicas may run out of data one by one, batch sizes are unknown.
        return _traced_spec(lambda: self._iterator.get_next_as_optional().get_value())

    def grant(self, num_steps: int) -> int:
        """Waits until train steps may be taken. Returns how many now, at most `num_steps`; 0 if there will be none."""
        return num_steps

    def next(self) -> Any:
        """Returns the next element; None if there are no more."""
        return next(self._iterator, None)

    def own_part(self, element: Any) -> Any:
        """Returns a replica's part of an element. In replica context."""
        return element

    def loop(self, take: TakeStep, sums: tf.Tensor, num_steps: tf.Tensor) -> Any:
        """Takes train steps. For a graph.

        Args:
          take: (sums, element) -> the sums after a train step, whether to go on, and (the items' errors [B],) or ().
          sums: zeros, float32 [n].
          num_steps: int64 scalar, train steps to take.

        Returns:
          Train steps taken; seconds waited; the sums and the means of `last_info`; and (the items' errors
          [num_steps, B],) or ().
        """
        taken, going_on = tf.constant(0, tf.int64), tf.constant(True)
        element, waited_secs = _next(self._iterator, taken)
        while going_on and taken < num_steps and batch_structure.is_complete(self._strategy, element):
            sums, going_on, _ = take(sums, element.get_value())
            taken += 1
            if going_on and taken < num_steps:
                element, secs = _next(self._iterator, sums)
                waited_secs += secs
        return taken, waited_secs, sums, ()

    def update(self, step: int, errors: np.ndarray) -> None:
        """Receives the items' errors [num_steps, B] of the train steps up to `step`."""

    def close(self) -> None:
        """Ends the batches, also for a learner that waits for them."""


class SourceBatches:
    """Batches of a `BatchSource`, as many at a time as each worker may take; otherwise like `DatasetBatches`."""

    def __init__(self, source: BatchSource, strategy: tf.distribute.Strategy, train_step: tf.Variable):
        """Draws nothing yet; the train step is the seed of draws."""
        layout = strategies.layout(strategy)
        self._source, self._train_step = source, train_step
        self._replicas_here = layout.replicas // layout.workers
        self._agreement, self._surplus = Agreement(strategy), 0
        self.prioritization = source.prioritization if isinstance(source, PrioritizedSource) else None
        self.has_rounds = getattr(source, 'has_rounds', False)

    @property
    def error(self) -> Exception | None:
        return self._source.error

    @functools.cached_property
    def element_spec(self) -> Any:
        return _traced_spec(lambda: self._source.batch(self._source.draw(1, self._train_step), 0))

    @functools.cached_property
    def last_info(self) -> list[str]:
        return [name for name, leaf in self.element_spec[1].items() if batch_structure.is_number(leaf.dtype)]

    def grant(self, num_steps: int) -> int:
        # What other workers may not take yet is kept for the next call.
        mine = min(self._surplus, num_steps) or self._source.grant(num_steps)
        granted = self._agreement.least(mine)
        self._surplus = max(self._surplus, mine) - granted
        return granted

    def next(self) -> Any:
        if not self._source.grant(1):
            return None
        return self._source.batch(self._source.draw(tf.constant(1, tf.int64), self._train_step.read_value()), 0)

    def own_part(self, element: Any) -> Any:
        return batch_structure.own_part(element, self._replicas_here)

    def loop(self, take: TakeStep, sums: tf.Tensor, num_steps: tf.Tensor) -> Any:
        taken, going_on = tf.constant(0, tf.int64), tf.constant(True)
        means = tf.zeros([len(self.last_info)])
        arrays = (tf.TensorArray(tf.float32, tf.cast(num_steps, tf.int32)),) if self.prioritization else ()
        # `and` would be a conditional, which costs more than the comparison that it may save.
        while tf.logical_and(going_on, taken < num_steps):
            count = tf.minimum(num_steps - taken, self._source.max_draw_steps)
            drawn = self._source.draw(count, self._train_step)
            i = tf.constant(0, tf.int64)
            while tf.logical_and(going_on, i < count):
                sums, going_on, errors = take(sums, self._source.batch(drawn, i))
                arrays = _write(arrays, tf.cast(taken + i, tf.int32), errors)
                i += 1
            taken += i
            if self.last_info:  # of each step they would cost more than the step's own metrics
                _, info = self._source.batch(drawn, i - 1)
                means = tf.stack([tf.reduce_mean(tf.cast(info[name], tf.float32)) for name in self.last_info])
        stacked = tuple(array.stack() for array in arrays)
        return taken, tf.constant(0.0, tf.float64), tf.concat([sums, means], axis=0), stacked

    def update(self, step: int, errors: np.ndarray) -> None:
        if isinstance(self._source, PrioritizedSource):
            self._source.update(step, errors)

    def close(self) -> None:
        self._source.close()


Batches = DatasetBatches | SourceBatches


def wrap(data: DatasetFn | BatchSource, strategy: tf.distribute.Strategy, train_step: tf.Variable) -> Batches:
    """Returns the batches of a dataset or a `BatchSource`; to be called within the strategy's scope."""
    if isinstance(data, BatchSource):
        return SourceBatches(data, strategy, train_step)
    return DatasetBatches(data, strategy)


def _traced_spec(make_element: Callable[[], Any]) -> Any:
    found: list[Any] = []
    find = lambda: found.append(tf.nest.map_structure(tf.type_spec_from_value, make_element()))  # noqa: E731
    tf.function(find, autograph=False).get_concrete_function()
    return found[0]


def _write(arrays: Sequence[tf.TensorArray], index: tf.Tensor, values: Sequence[tf.Tensor]) -> Any:
    return tuple(array.write(index, value) for array, value in zip(arrays, values, strict=True))


def _next(iterator: Any, after: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Returns the next element, and the seconds that it took to arrive once `after` was known."""
    with tf.control_dependencies([after]):
        start = tf.timestamp()
    with tf.control_dependencies([start]):
        element = iterator.get_next_as_optional()
    with tf.control_dependencies([element.has_value()]):
        return element, tf.timestamp() - start
