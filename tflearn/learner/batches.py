"""Batches: a dataset or a `Source`, wrapped once, so that the learner sees one kind of input.

With them is the loop that takes train steps.
"""

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core import strategies
from tflearn.core.errors import UserTypeError
from tflearn.core.experience import Prioritization
from tflearn.core.workers import Agreement
from tflearn.learner import tpu_data
from tflearn.learner.elements import NonfiniteColumns, is_number
from tflearn.sampling.source import DatasetFn, Source, num_together

TakeStep = Callable[[tf.Tensor, Any], tuple[tf.Tensor, tf.Tensor, tuple[tf.Tensor, ...]]]


class Batches(abc.ABC):
    """The batches that train steps take, as the strategy distributes them.

    Attributes:
      prioritization: how items are drawn, if they are drawn by priority; then `update` receives
        their errors.
      has_rounds: whether more batches may come after they have ended.
      may_end: whether their end is that of a dataset, and not that of a source, which is closed.
      nonfinite: what is known of the batch at whose loss the loop stopped.
    """

    prioritization: Prioritization | None = None
    has_rounds = False
    may_end = True
    nonfinite: NonfiniteColumns

    @property
    def error(self) -> Exception | None:
        """Why there are no more batches; None if there are, or they ended."""
        return None

    @functools.cached_property
    def last_info(self) -> Sequence[str]:
        """Names of the data's metrics that are averaged over one batch of `loop`, not over all."""
        return ()

    @functools.cached_property
    def element_spec(self) -> Any:
        """Specs of what `loop` hands to a train step."""
        raise NotImplementedError

    @property
    @abc.abstractmethod
    def num_consumed(self) -> int:
        """Batches of a dataset that train steps took so far."""

    @property
    def waiting_secs(self) -> float:
        """How long a program has been waiting for data now, for another thread."""
        return 0.0

    def grant(self, num_steps: int) -> int:
        """Waits until train steps may be taken. Returns how many now, at most `num_steps`;
        0 if there will be none.
        """
        return num_steps

    def without_xla(self) -> 'Batches':
        """Returns the batches for a learner that does not use XLA;
        to be called before the first one is taken.
        """
        return self

    @abc.abstractmethod
    def next(self) -> Any:
        """Returns the next element; None if there are no more."""

    @abc.abstractmethod
    def loop(self, take: TakeStep, sums: tf.Tensor, num_steps: tf.Tensor) -> Any:
        """Takes train steps. For a graph.

        Args:
          take: (sums, element) -> the sums after a train step, whether to go on, and (the items'
            errors [B],) or ().
          sums: zeros, float32 [n].
          num_steps: int64 scalar, train steps to take.

        Returns:
          Train steps taken; seconds waited; the sums and the means of `last_info`; and (the items'
          errors [num_steps, B],) or ().
        """

    @abc.abstractmethod
    def count(self, num_steps: int) -> None:
        """Receives the number of train steps that were taken, for the position in a dataset."""

    @abc.abstractmethod
    def state(self) -> Mapping[str, Any]:
        """Returns what belongs in the checkpoint, by name."""

    @abc.abstractmethod
    def update(self, step: int, errors: np.ndarray) -> None:
        """Receives the items' errors [num_steps, B] of the train steps up to `step`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the batches, also for a learner that waits for them."""


class SourceBatches(Batches):
    """Batches of a `Source`, as many at a time as each worker may take;
    otherwise like `DatasetBatches`.

    Attributes:
      strategy: where train steps run.
    """

    def __init__(self, source: Source, strategy: tf.distribute.Strategy, train_step: tf.Variable):
        """Draws nothing yet; the train step is the seed of draws."""
        layout = strategies.layout(strategy)
        self._source, self._train_step, self.strategy = source, train_step, strategy
        self.nonfinite = NonfiniteColumns()
        self._replicas_here = layout.replicas // layout.workers
        # The next batch is made, divided and copied while the replicas take a step, unless that
        # would be one for each draw, or a single replica has the host's memory.
        self._device = strategies.only_stop(strategy) if self._replicas_here == 1 and layout.workers == 1 else None
        self._is_undivided = self._replicas_here == 1 and self._device is None
        self._makes_ahead = not self._is_undivided and source.max_draw_steps > 1
        self._agreement, self._surplus = Agreement(strategy), 0
        if isinstance(strategy, tf.distribute.TPUStrategy):
            tpu_data.check_for_tpu(self.host_spec)
        self.prioritization = source.prioritization
        self.has_rounds = source.has_rounds
        self.may_end = source.reads_in_draws

    @property
    def error(self) -> Exception | None:
        return self._source.error

    @functools.cached_property
    def element_spec(self) -> Any:
        if self._is_undivided:
            return self.host_spec
        return traced_spec(lambda: self._element(self._source.draw(1, self._train_step), 0))

    @functools.cached_property
    def host_spec(self) -> Any:
        """Specs of a batch for all replicas of this process, as the source makes it."""
        return traced_spec(lambda: self._source.batch(self._source.draw(1, self._train_step), 0))

    @functools.cached_property
    def last_info(self) -> list[str]:
        if self._source.reads_in_draws:  # the info may be any nest
            return []
        return [name for name, leaf in self.host_spec[1].items() if is_number(leaf.dtype)]

    def grant(self, num_steps: int) -> int:
        # What other workers may not take yet is kept for the next call.
        mine = min(self._surplus, num_steps) or self._source.grant(num_steps)
        granted = self._agreement.least(mine)
        self._surplus = max(self._surplus, mine) - granted
        return granted

    @property
    def waiting_secs(self) -> float:
        return self._source.waiting_secs

    def compile(self) -> None:
        """Makes the source compile its own programs, before there are data."""
        self._source.compile()

    def next(self) -> Any:
        if not self._source.grant(1):
            return None
        drawn = self._source.draw(tf.constant(1, tf.int64), self._train_step.read_value())
        if self._source.reads_in_draws and not self._source.num_drawn(drawn):
            return None
        self.count(1)
        return self._element(drawn, 0)

    def count(self, num_steps: int) -> None:
        self._source.num_consumed += num_steps

    @property
    def num_consumed(self) -> int:
        return self._source.num_consumed

    def state(self) -> Mapping[str, Any]:
        return self._source.state()

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
          steps: (draw, its train steps, train steps before, sums, arrays of items' errors) -> train
            steps taken, the sums and whether to go on after them, and the arrays.
        """

        def one(
            taken: tf.Tensor, sums: tf.Tensor, going_on: tf.Tensor, means: tf.Tensor, waited: tf.Tensor, arrays: Any
        ) -> Any:
            wanted = tf.minimum(num_steps - taken, self._source.max_draw_steps)
            drawn, count, secs = self._drawn(wanted, sums)
            i, sums, going_on, arrays = steps(drawn, count, taken, sums, arrays)
            tf.cond(going_on, lambda: None, lambda: self._stop(drawn, i))
            if self.last_info:  # of each step they would cost more than the step's own metrics
                means = self._means(drawn, i - 1)
            going_on = tf.logical_and(going_on, count > 0)
            return taken + i, sums, going_on, means, waited + secs, arrays

        arrays = (tf.TensorArray(tf.float32, tf.cast(num_steps, tf.int32)),) if self.prioritization else ()
        zero = tf.constant(0.0, tf.float64)
        taken, sums, _, means, waited, arrays = tf.while_loop(
            lambda taken, _, going_on, *rest: tf.logical_and(going_on, taken < num_steps),
            one,
            (tf.constant(0, tf.int64), sums, tf.constant(True), tf.zeros([len(self.last_info)]), zero, arrays),
        )
        stacked = tuple(array.stack() for array in arrays)
        return taken, waited, tf.concat([sums, means], axis=0), stacked

    def _drawn(self, wanted: tf.Tensor, after: tf.Tensor) -> tuple[Any, tf.Tensor, tf.Tensor]:
        """Returns a draw, the number of its batches, and the seconds that it took after `after`."""
        draw = lambda: self._source.draw(wanted, self._train_step)  # noqa: E731
        if not self._source.reads_in_draws:
            return draw(), wanted, tf.constant(0.0, tf.float64)

        def read(after: tf.Tensor) -> tuple[Any, tf.Tensor]:
            with tf.control_dependencies([after]):
                drawn = draw()
            return drawn, self._source.num_drawn(drawn)

        (drawn, count), secs = timed(read, after)
        return drawn, count, secs

    def _stop(self, drawn: Any, count: tf.Tensor) -> None:
        """Keeps what is known of a draw at whose last of `count` train steps the loop stops."""
        self.nonfinite.record(self._source.batch(drawn, count - 1))
        self._source.put_back(drawn, count)

    def _element(self, drawn: Any, i: tf.Tensor | int) -> Any:
        """Returns batch `i` of a draw, as a train step takes it:
        of several replicas each has its own part.
        """
        if self._is_undivided:
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
        """How many batches of a draw can be gathered; see `num_together`."""
        return min(num_together(self.element_spec), self._source.max_draw_steps)

    def gather(self, drawn: Any, indices: tf.Tensor) -> Any:
        """Returns batches of a draw, int64 [K], as one element with leaves [K, ...].
        For a graph.
        """
        if self._source.takes_indices:
            return self._source.batch(drawn, indices)
        one = functools.partial(self._source.batch, drawn)
        return tf.map_fn(one, indices, fn_output_signature=self.element_spec)

    def update(self, step: int, errors: np.ndarray) -> None:
        self._source.update(step, errors)

    def close(self) -> None:
        self._source.close()


def wrap(
    data: DatasetFn | Source, strategy: tf.distribute.Strategy, train_step: tf.Variable, stacks: bool = True
) -> Batches:
    """Returns the batches of a dataset or a `Source`; to be called within the strategy's scope.

    Args:
      data: the dataset's function, or the source.
      strategy: where train steps run.
      train_step: the seed of a source's draws.
      stacks: whether batches of a dataset are drawn in stacks, if they have one fixed shape: for
        XLA.
    """
    if isinstance(data, Source):
        return SourceBatches(data, strategy, train_step)
    if not callable(data):
        raise UserTypeError(
            f'got data={data!r} for a learner; need a function that returns a dataset, or a tflearn.Source; derive its '
            'class from Source'
        )
    # Here, since jobs without a dataset need not load it.
    from tflearn.learner import datasets

    return datasets.wrap(data, strategy, train_step, stacks)


def traced_spec(make_element: Callable[[], Any]) -> Any:
    """Returns the specs of the element that `make_element` makes in a graph, which is never run."""
    found: list[Any] = []
    find = lambda: found.append(tf.nest.map_structure(tf.type_spec_from_value, make_element()))  # noqa: E731
    tf.function(find, autograph=False).get_concrete_function()
    return found[0]


def timed(read: Callable[[tf.Tensor], tuple[Any, tf.Tensor]], after: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Returns what `read(start)` returns, and the seconds from `after` to its second part."""
    with tf.control_dependencies([after]):
        start = tf.timestamp()
    found = read(start)
    with tf.control_dependencies([found[1]]):
        return found, tf.timestamp() - start
