"""Batches: a dataset or a `Source`, wrapped once, so that the learner sees one kind of input; and an element's parts.

With them is the loop that takes train steps."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops
from tf_agents.utils import nest_utils

from tflearn.core import strategies
from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.core.experience import Prioritization
from tflearn.core.types import WEIGHTS
from tflearn.core.workers import Agreement
from tflearn.learner import tpu_data
from tflearn.sampling.source import Source


def split(element: Any) -> tuple[Any, Any]:
    """Splits an element into data and info; a Trajectory is a tuple too, but not of two."""
    if type(element) is tuple and len(element) == 2:
        return element
    if hasattr(element, 'data') and hasattr(element, 'info'):  # a ReplaySample
        return element.data, element.info
    return element, ()


def importance_weights(info: Any, normalize: bool) -> tf.Tensor | None:
    """Returns the importance weights in info, or None; `normalize` divides by the global batch's greatest."""
    found = info.get(WEIGHTS) if isinstance(info, Mapping) else None
    if found is None or not normalize:
        return found
    greatest = tf.reduce_max(found)
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync > 1:
        greatest = tf.reduce_max(context.all_gather(greatest[None], axis=0))
    return found / greatest


def item_errors(extra: Any, name: str | None) -> tuple[tf.Tensor, ...]:
    """Returns the agent's extra metric `name`, one number for each item, (float32 [B],); () if `name` is None.

    Raises:
      ValueError: if there is no such metric, or it has another rank.
    """
    if name is None:
        return ()
    metrics = dict(flatten_with_names(extra))
    if name not in metrics or tf.convert_to_tensor(metrics[name]).shape.rank != 1:
        shapes = {key: tf.convert_to_tensor(value).shape.as_list() for key, value in metrics.items()}
        raise UserValueError(
            f'got an agent with the extra metrics {shapes}; need {name!r} with one number for each item; name '
            'another metric, or draw uniformly'
        )
    return (tf.cast(metrics[name], tf.float32),)


def flatten_with_names(values: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of a nest that are not None, with their paths, such as 'a/0'; in TF's order."""
    return [leaf for leaf in nest_utils.flatten_with_joined_paths(values) if leaf[1] is not None]


def is_number(dtype: tf.DType) -> bool:
    """Returns whether values of this dtype have a mean."""
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)


def is_complete(strategy: tf.distribute.Strategy, element: Any) -> tf.Tensor:
    """Returns whether an optional element has a batch for each replica here; an empty one would make the loss NaN."""
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

    Several workers need an endless one: each would see its own end, and wait for the others forever. A TPU also needs
    fixed shapes, and numbers only.

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


DatasetFn = Callable[[tf.distribute.InputContext], tf.data.Dataset]
TakeStep = Callable[[tf.Tensor, Any], tuple[tf.Tensor, tf.Tensor, tuple[tf.Tensor, ...]]]

_MAX_TOGETHER = 128
_patched = threading.Lock()
_MAX_TOGETHER_BYTES = 16 << 20


class NonfiniteColumns:
    """The columns with numbers that are not finite, of the batch whose loss is not finite; for the error's message."""

    def __init__(self) -> None:
        """None has been found yet."""
        self._names: list[str] = []
        self._found: tf.Variable | None = None

    def record(self, element: Any) -> None:
        """Looks at a batch. For a graph."""
        data, _ = split(element)
        columns = [(name, leaf) for name, leaf in flatten_with_names(data) if leaf.dtype.is_floating]
        if not columns:
            return
        with tf.init_scope():
            self._names = [name for name, _ in columns]
            if self._found is None:
                self._found = tf.Variable(tf.zeros([len(columns)], tf.bool), trainable=False)
        self._found.assign(tf.stack([~tf.reduce_all(tf.math.is_finite(leaf)) for _, leaf in columns]))

    def names(self) -> list[str]:
        """Returns the columns that were found."""
        found = [] if self._found is None else self._found.numpy().tolist()
        return [name for name, bad in zip(self._names, found, strict=False) if bad]


class DatasetBatches:
    """Batches of a dataset, as the strategy distributes them.

    Attributes:
      last_info: names of the data's metrics that are averaged over one batch of `loop`, not over all of them.
      prioritization: how items are drawn, if they are drawn by priority; then `update` receives their errors.
      error: why there are no more batches; None if there are, or they ended.
      has_rounds: whether more batches may come after they have ended.
      nonfinite: what is known of the batch at whose loss the loop stopped.
    """

    last_info: Sequence[str] = ()
    prioritization: Prioritization | None = None
    error: Exception | None = None
    has_rounds = False

    def __init__(self, dataset_fn: DatasetFn, strategy: tf.distribute.Strategy):
        """Makes the iterator; raises a ValueError if the strategy cannot train on such a dataset."""

        def checked(context: tf.distribute.InputContext) -> tf.data.Dataset:
            dataset = dataset_fn(context)
            check_dataset(dataset, strategy)
            return dataset

        self._strategy, self.nonfinite = strategy, NonfiniteColumns()
        self._iterator = iterate(strategy.distribute_datasets_from_function(checked))

    @functools.cached_property
    def element_spec(self) -> Any:
        """Specs of what `loop` hands to a train step."""
        # Not `iterator.element_spec`: where replicas may run out of data one by one, batch sizes are unknown.
        return traced_spec(lambda: self._iterator.get_next_as_optional().get_value())

    def grant(self, num_steps: int) -> int:
        """Waits until train steps may be taken. Returns how many now, at most `num_steps`; 0 if there will be none."""
        return num_steps

    def next(self) -> Any:
        """Returns the next element; None if there are no more."""
        return next(self._iterator, None)

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

        def goes_on(taken: tf.Tensor, _: tf.Tensor, going_on: tf.Tensor, element: Any, *rest: tf.Tensor) -> tf.Tensor:
            del rest
            wanted = tf.logical_and(going_on, taken < num_steps)
            return tf.cond(wanted, lambda: is_complete(self._strategy, element), lambda: tf.constant(False))

        def one(taken: tf.Tensor, sums: tf.Tensor, going_on: tf.Tensor, element: Any, waited: tf.Tensor) -> Any:
            sums, going_on, _ = take(sums, element.get_value())
            taken += 1
            element, secs = tf.cond(
                tf.logical_and(going_on, taken < num_steps),
                lambda: _next(self._iterator, sums),
                lambda: (element, tf.constant(0.0, tf.float64)),
            )
            return taken, sums, going_on, element, waited + secs

        start = tf.constant(0, tf.int64)
        taken, sums, going_on, element, waited = tf.while_loop(
            goes_on, one, (start, sums, tf.constant(True), *_next(self._iterator, start))
        )
        if self._strategy.num_replicas_in_sync == 1:
            tf.cond(going_on, lambda: None, lambda: self.nonfinite.record(element.get_value()))
        return taken, waited, sums, ()

    def update(self, step: int, errors: np.ndarray) -> None:
        """Receives the items' errors [num_steps, B] of the train steps up to `step`."""

    def close(self) -> None:
        """Ends the batches, also for a learner that waits for them."""


class SourceBatches:
    """Batches of a `Source`, as many at a time as each worker may take; otherwise like `DatasetBatches`.

    Attributes:
      strategy: where train steps run.
    """

    def __init__(self, source: Source, strategy: tf.distribute.Strategy, train_step: tf.Variable):
        """Draws nothing yet; the train step is the seed of draws."""
        layout = strategies.layout(strategy)
        self._source, self._train_step, self.strategy = source, train_step, strategy
        self.nonfinite = NonfiniteColumns()
        self._replicas_here = layout.replicas // layout.workers
        # The next batch is made, divided and copied while the replicas take a step, unless that would be one for each
        # draw, or a single replica has the host's memory.
        self._device = strategies.only_stop(strategy) if self._replicas_here == 1 and layout.workers == 1 else None
        self._makes_ahead = (self._replicas_here > 1 or self._device is not None) and source.max_draw_steps > 1
        self._agreement, self._surplus = Agreement(strategy), 0
        if isinstance(strategy, tf.distribute.TPUStrategy):
            tpu_data.check_for_tpu(self.host_spec)
        self.prioritization = source.prioritization
        self.has_rounds = source.has_rounds

    @property
    def error(self) -> Exception | None:
        return self._source.error

    @functools.cached_property
    def element_spec(self) -> Any:
        return traced_spec(lambda: self._element(self._source.draw(1, self._train_step), 0))

    @functools.cached_property
    def host_spec(self) -> Any:
        """Specs of a batch for all replicas of this process, as the source makes it."""
        return traced_spec(lambda: self._source.batch(self._source.draw(1, self._train_step), 0))

    @functools.cached_property
    def last_info(self) -> list[str]:
        return [name for name, leaf in self.host_spec[1].items() if is_number(leaf.dtype)]

    def grant(self, num_steps: int) -> int:
        # What other workers may not take yet is kept for the next call.
        mine = min(self._surplus, num_steps) or self._source.grant(num_steps)
        granted = self._agreement.least(mine)
        self._surplus = max(self._surplus, mine) - granted
        return granted

    def compile(self) -> None:
        """Makes the source compile its own programs, before there are data."""
        self._source.compile()

    def next(self) -> Any:
        if not self._source.grant(1):
            return None
        return self._element(self._source.draw(tf.constant(1, tf.int64), self._train_step.read_value()), 0)

    def loop(self, take: TakeStep, sums: tf.Tensor, num_steps: tf.Tensor) -> Any:
        def steps(drawn: Any, count: tf.Tensor, before: tf.Tensor, sums: tf.Tensor, arrays: Any) -> Any:
            def one(i: tf.Tensor, sums: tf.Tensor, going_on: tf.Tensor, ahead: Any, arrays: Any) -> Any:
                del going_on
                element = ahead[0] if ahead else self._element(drawn, i)
                ahead = tuple(self._element(drawn, tf.minimum(i + 1, count - 1)) for _ in ahead)
                sums, going_on, errors = take(sums, element)
                at = tf.cast(before + i, tf.int32)
                arrays = tuple(array.write(at, new) for array, new in zip(arrays, errors, strict=True))
                return i + 1, sums, going_on, ahead, arrays

            start = tf.constant(0, tf.int64)
            ahead = (self._element(drawn, start),) if self._makes_ahead else ()
            taken, sums, going_on, _, arrays = tf.while_loop(
                lambda i, _, going_on, *rest: tf.logical_and(going_on, i < count),
                one,
                (start, sums, tf.constant(True), ahead, arrays),
            )
            return taken, sums, going_on, arrays

        return self.over_draws(steps, sums, num_steps)

    def over_draws(self, steps: Callable[..., Any], sums: tf.Tensor, num_steps: tf.Tensor) -> Any:
        """Takes train steps on draws; otherwise like `loop`.

        Args:
          steps: (draw, its train steps, train steps before, sums, arrays of items' errors) -> train steps taken, the
            sums and whether to go on after them, and the arrays.
        """

        def one(taken: tf.Tensor, sums: tf.Tensor, going_on: tf.Tensor, means: tf.Tensor, arrays: Any) -> Any:
            count = tf.minimum(num_steps - taken, self._source.max_draw_steps)
            drawn = self._source.draw(count, self._train_step)
            i, sums, going_on, arrays = steps(drawn, count, taken, sums, arrays)
            tf.cond(going_on, lambda: None, lambda: self.nonfinite.record(self._source.batch(drawn, i - 1)))
            if self.last_info:  # of each step they would cost more than the step's own metrics
                means = self._means(drawn, i - 1)
            return taken + i, sums, going_on, means, arrays

        arrays = (tf.TensorArray(tf.float32, tf.cast(num_steps, tf.int32)),) if self.prioritization else ()
        taken, sums, _, means, arrays = tf.while_loop(
            lambda taken, _, going_on, *rest: tf.logical_and(going_on, taken < num_steps),
            one,
            (tf.constant(0, tf.int64), sums, tf.constant(True), tf.zeros([len(self.last_info)]), arrays),
        )
        stacked = tuple(array.stack() for array in arrays)
        return taken, tf.constant(0.0, tf.float64), tf.concat([sums, means], axis=0), stacked

    def _element(self, drawn: Any, i: tf.Tensor | int) -> Any:
        """Returns batch `i` of a draw, as a train step takes it: of several replicas each has its own part."""
        if self._replicas_here == 1 and self._device is None:
            return self._source.batch(drawn, i)
        with tf.device('CPU:0'):
            element = self._source.batch(drawn, i)
        if self._device is not None:
            return tf.nest.map_structure(functools.partial(strategies.on, self._device), element)
        return strategies.divided(self.strategy, element, self._replicas_here)

    def _means(self, drawn: Any, i: tf.Tensor) -> tf.Tensor:
        _, info = self._source.batch(drawn, i)
        return tf.stack([tf.reduce_mean(tf.cast(info[name], tf.float32)) for name in self.last_info])

    @property
    def num_together(self) -> int:
        """How many batches can be gathered: at most 128, 16 MB; 0 if they have no fixed shape, or not only numbers."""
        specs = tf.nest.flatten(self.element_spec)
        if not all(isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() for spec in specs):
            return 0
        if any(spec.dtype in (tf.string, tf.variant, tf.resource) for spec in specs):
            return 0
        batch_bytes = sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)
        return min(_MAX_TOGETHER, self._source.max_draw_steps, _MAX_TOGETHER_BYTES // max(1, batch_bytes))

    def gather(self, drawn: Any, indices: tf.Tensor) -> Any:
        """Returns batches of a draw, int64 [K], as one element with leaves [K, ...]. For a graph."""
        if self._source.takes_indices:
            return self._source.batch(drawn, indices)
        one = functools.partial(self._source.batch, drawn)
        return tf.map_fn(one, indices, fn_output_signature=self.element_spec)

    def update(self, step: int, errors: np.ndarray) -> None:
        self._source.update(step, errors)

    def close(self) -> None:
        self._source.close()


Batches = DatasetBatches | SourceBatches


def wrap(data: DatasetFn | Source, strategy: tf.distribute.Strategy, train_step: tf.Variable) -> Batches:
    """Returns the batches of a dataset or a `Source`; to be called within the strategy's scope."""
    if isinstance(data, Source):
        return SourceBatches(data, strategy, train_step)
    if not callable(data):
        raise UserTypeError(
            f'got data={data!r} for a learner; need a function that returns a dataset, or a tflearn.Source; derive its '
            'class from Source'
        )
    return DatasetBatches(data, strategy)


def iterate(dataset: tf.distribute.DistributedDataset) -> Any:
    """Returns `iter(dataset)`, without the autotuning of what fetches its elements to several devices.

    There is nothing to tune in that part, whose buffers are fixed. But the thread that tunes it may miss that it is
    cancelled (TensorFlow 2.15 calls the callbacks of a cancellation before it says that it is cancelled). Then whoever
    drops the iterator waits for up to a minute for each device, and so does every other thread of Python. The dataset's
    own options decide about the rest of it.
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


def traced_spec(make_element: Callable[[], Any]) -> Any:
    """Returns the specs of the element that `make_element` makes in a graph, which is never run."""
    found: list[Any] = []
    find = lambda: found.append(tf.nest.map_structure(tf.type_spec_from_value, make_element()))  # noqa: E731
    tf.function(find, autograph=False).get_concrete_function()
    return found[0]


def _next(iterator: Any, after: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Returns the next element, and the seconds that it took to arrive once `after` was known."""
    with tf.control_dependencies([after]):
        start = tf.timestamp()
    with tf.control_dependencies([start]):
        element = iterator.get_next_as_optional()
    with tf.control_dependencies([element.has_value()]):
        return element, tf.timestamp() - start
