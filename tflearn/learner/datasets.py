"""Batches of `tf.data` datasets: of a process in stacks, or one by one; those of a TPU's hosts."""

import functools
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.data.ops import multi_device_iterator_ops

from tflearn.core import strategies
from tflearn.core.errors import UserValueError
from tflearn.learner import tpu_data
from tflearn.learner.batches import Batches, SourceBatches, TakeStep, timed, traced_spec
from tflearn.learner.elements import NonfiniteColumns
from tflearn.sampling import dataset_source
from tflearn.sampling.dataset_source import DatasetSource
from tflearn.sampling.source import DatasetFn

_patched = threading.Lock()


def wrap(dataset_fn: DatasetFn, strategy: tf.distribute.Strategy, train_step: tf.Variable, stacks: bool) -> Batches:
    """Returns the batches of a dataset; see `batches.wrap`."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return HostsBatches(dataset_fn, strategy)
    source = DatasetSource(dataset_fn, strategy, functools.partial(check_dataset, strategy=strategy), stacks)
    return StackBatches(source, strategy, train_step) if source.stacks else DatasetBatches(source, strategy)


class DatasetBatches(Batches):
    """Batches of a dataset, taken one by one: without a fixed shape, XLA,
    or of several replicas.
    """

    def __init__(self, source: DatasetSource, strategy: tf.distribute.Strategy):
        """Takes batches for the replicas of this process."""
        self._source, self._strategy, self.nonfinite = source, strategy, NonfiniteColumns()

    @functools.cached_property
    def element_spec(self) -> Any:
        return traced_spec(lambda: self._value(self._pull(tf.timestamp())[0]))

    def _pull(self, since: tf.Tensor) -> tuple[Any, tf.Tensor]:
        """Returns what the next element comes from, and whether each replica has one;
        see `DatasetSource.pull`.
        """
        return self._source.pull(since)

    def _value(self, pulled: Any) -> Any:
        """Returns the element, as the replicas take it."""
        return strategies.distributed(self._strategy, [each.get_value() for each in pulled])

    def next(self) -> Any:
        pulled, complete = self._pull(tf.timestamp())
        if not complete:
            return None
        self.count(1)
        return self._value(pulled)

    @property
    def waiting_secs(self) -> float:
        return self._source.waiting_secs

    def count(self, num_steps: int) -> None:
        self._source.num_consumed += num_steps * self._source.num_replicas

    @property
    def num_consumed(self) -> int:
        return self._source.num_consumed

    def state(self) -> Mapping[str, Any]:
        return self._source.state()

    def loop(self, take: TakeStep, sums: tf.Tensor, num_steps: tf.Tensor) -> Any:
        def one(taken: tf.Tensor, sums: tf.Tensor, waited: tf.Tensor, _: tf.Tensor, __: tf.Tensor, pulled: Any) -> Any:
            sums, going_on, _ = take(sums, self._value(pulled))
            taken += 1
            (pulled, complete), secs = tf.cond(
                tf.logical_and(going_on, taken < num_steps),
                lambda: timed(self._pull, sums),
                lambda: ((pulled, tf.constant(False)), tf.constant(0.0, tf.float64)),
            )
            return taken, sums, waited + secs, going_on, complete, pulled

        start = tf.constant(0, tf.int64)
        (pulled, complete), secs = timed(self._pull, start)
        taken, sums, waited, going_on, _, pulled = tf.while_loop(
            lambda _, __, ___, going_on, complete, ____: tf.logical_and(going_on, complete),
            one,
            (start, sums, secs, tf.constant(True), complete, pulled),
        )
        if self._strategy.num_replicas_in_sync == 1:
            tf.cond(going_on, lambda: None, lambda: self.nonfinite.record(self._value(pulled)))
        return taken, waited, sums, ()

    def update(self, step: int, errors: np.ndarray) -> None:
        """Does nothing: no dataset is drawn by priority."""

    def close(self) -> None:
        """Does nothing: nobody else knows the dataset."""


class StackBatches(SourceBatches):
    """Batches of a dataset, in stacks: for XLA."""

    def __init__(self, source: DatasetSource, strategy: tf.distribute.Strategy, train_step: tf.Variable):
        """See `SourceBatches`."""
        super().__init__(source, strategy, train_step)
        self._stacks = source

    def without_xla(self) -> Batches:
        self._stacks.take_singly()
        return DatasetBatches(self._stacks, self.strategy)


def stacks(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy, train_step: tf.Variable) -> StackBatches | None:
    """Returns the batches of a dataset that was made already, in stacks;
    None if they have no one fixed shape.
    """
    source = DatasetSource(lambda context: dataset, strategy)
    return StackBatches(source, strategy, train_step) if source.stacks else None


class HostsBatches(DatasetBatches):
    """Batches of a TPU: each of its hosts has a dataset, whose position nothing saves."""

    def __init__(self, dataset_fn: DatasetFn, strategy: tf.distribute.Strategy):
        """Makes the iterator; raises ValueError if the strategy cannot train on the dataset."""

        def checked(context: tf.distribute.InputContext) -> tf.data.Dataset:
            dataset = dataset_source.call(dataset_fn, context)
            check_dataset(dataset, strategy)
            return dataset

        self._strategy, self.nonfinite, self._taken = strategy, NonfiniteColumns(), 0
        self._iterator = iterate(strategy.distribute_datasets_from_function(checked))

    def _pull(self, since: tf.Tensor) -> tuple[Any, tf.Tensor]:
        with tf.control_dependencies([since]):
            element = self._iterator.get_next_as_optional()
        return element, is_complete(self._strategy, element)

    def _value(self, pulled: Any) -> Any:
        return pulled.get_value()

    @property
    def waiting_secs(self) -> float:
        return 0.0

    def count(self, num_steps: int) -> None:
        self._taken += num_steps

    @property
    def num_consumed(self) -> int:
        return self._taken

    def state(self) -> Mapping[str, Any]:
        logging.warning(
            'the positions in the datasets of the hosts of a TPU are in no checkpoint: a run that '
            'continues begins with their first batches again'
        )
        return {}


def is_complete(strategy: tf.distribute.Strategy, element: Any) -> tf.Tensor:
    """Returns whether an optional element has a batch for each replica here;
    an empty one would make the loss NaN.
    """
    if strategy.num_replicas_in_sync == 1:
        return element.has_value()
    return tf.cond(
        element.has_value(), lambda: _no_batch_empty(strategy, element.get_value()), lambda: tf.constant(False)
    )


def _no_batch_empty(strategy: tf.distribute.Strategy, element: Any) -> tf.Tensor:
    batches = strategy.experimental_local_results(tf.nest.flatten(element)[0])
    return tf.reduce_all([tf.size(batch) > 0 for batch in batches])


def check_dataset(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy) -> None:
    """Checks that a strategy can train on the dataset of an input pipeline.

    Several workers need an endless one: each would see its own end, and wait for the others
    forever. A TPU also needs fixed shapes, and numbers only.

    Raises:
      ValueError: naming what the dataset has and what it needs.
    """
    tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    cardinality = int(dataset.cardinality())
    if (tpu or strategies.layout(strategy).workers > 1) and cardinality != tf.data.INFINITE_CARDINALITY:
        size = 'unknown size' if cardinality == tf.data.UNKNOWN_CARDINALITY else f'{cardinality} elements'
        raise UserValueError(
            f'got a dataset of {size}; need an endless one for several workers or a TPU; end it with .repeat()'
        )
    if tpu:
        tpu_data.check_for_tpu(dataset.element_spec)


def iterate(dataset: tf.distribute.DistributedDataset) -> Any:
    """Returns `iter(dataset)`, without the autotuning of what fetches its elements to several devices.

    There is nothing to tune in that part, whose buffers are fixed. But the thread that tunes it may
    miss that it is cancelled (TensorFlow 2.15 calls the callbacks of a cancellation before it says
    that it is cancelled). Then whoever drops the iterator waits for up to a minute for each device,
    and so does every other thread of Python. The dataset's own options decide about the rest of it.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    with _patched:
        create = multi_device_iterator_ops._create_device_dataset
        multi_device_iterator_ops._create_device_dataset = lambda *args: create(*args).with_options(options)
        try:
            return iter(dataset)
        finally:
            multi_device_iterator_ops._create_device_dataset = create
