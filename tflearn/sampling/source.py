"""Source: the batches that a learner draws inside its compiled program."""

import abc
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.experience import Prioritization
from tflearn.core.resumable import Resumable

_MAX_TOGETHER = 128
_MAX_TOGETHER_BYTES = 16 << 20

Batch = tuple[Any, dict[str, tf.Tensor]]
DatasetFn = Callable[..., tf.data.Dataset]  # of an `InputContext`


class Source(Resumable, abc.ABC):
    """Batches that are drawn inside a learner's compiled program: faster than a dataset's iterator.

    A source has a *pool* of rows, a *plan* by which they are drawn (uniformly, by priority, in epochs, once), and a
    *gate* that says when: samples per insert, credits, or none.

    Attributes:
      max_draw_steps: the maximum number of batches in one draw.
      takes_indices: whether `batch` also takes several indices, int64 [K], and returns tensors [K, B, ...], bit-equal
        to K calls; this is faster with XLA.
      reads_in_draws: whether a draw reads data: it may wait, and have fewer batches; none if they
        have ended.
      num_consumed: the batches of a dataset that train steps took so far.
      waiting_secs: how long a draw has been waiting for data now, for another thread.
      prioritization: how items are drawn by priority, with the name of the agent's extra metric that `update` receives.
      has_rounds: whether more batches may come after the data have ended.
      prepared: whether batches are already preprocessed for the agent.
      steps_per_batch: train steps on each batch of new items.
      addresses: the addresses of the servers whose queues it takes items from.
      batch_size: the number of items of the next batches, which count as samples; it may vary (`Mix`).
      ended: whether its data have ended, after the wanted number of epochs.
    """

    max_draw_steps: int = 1
    takes_indices = False
    reads_in_draws = False
    num_consumed = 0
    waiting_secs = 0.0
    prioritization: Prioritization | None = None
    has_rounds = False
    prepared = False
    steps_per_batch: float = 1.0
    addresses: Sequence[str] = ()
    batch_size: int = 0
    _given: Any = None  # what its items come from, if that has an `error` and is closed with it
    _error: Exception | None = None  # its own

    @property
    def error(self) -> Exception | None:
        """Why there are no more batches; None if there are, or if the source was closed."""
        return self._error or (None if self._given is None else self._given.error)

    @property
    def ended(self) -> bool:
        """Whether its data have ended."""
        return False

    @property
    def owed_steps(self) -> int:
        """Train steps that can be taken at once, for a process that acts and trains alternately."""
        return sys.maxsize

    def end_collection(self) -> None:
        """Receives that no more steps will come, in such a process."""

    def start(self) -> None:
        """Starts to read ahead, unless it has started; the first `grant` does the same."""

    def compile(self) -> None:
        """Compiles its own programs before there are data; on any thread."""

    @abc.abstractmethod
    def grant(self, num_steps: int) -> int:
        """Waits until train steps may be taken. Returns how many, at most `num_steps`; 0 if closed or on an `error`."""

    @abc.abstractmethod
    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> types.NestedTensor:
        """Draws batches. For a graph, like `batch`.

        Args:
          num_steps: integer scalar, the number of batches; as many as were granted.
          seed: int64 scalar, which differs between draws: the train step.
          batch_size: the number of items of a batch, for sources in which it varies (see `Mix`).

        Returns:
          A nest of tensors [num_steps, ...], from which `batch` takes the batches one by one.
        """

    @abc.abstractmethod
    def batch(self, drawn: types.NestedTensor, i: tf.Tensor) -> Batch:
        """Returns data and info of batch `i` of a draw: nests of tensors [B, ...], for all replicas of this process.

        If there are several, the host divides the batch, so B is a multiple of their number. The host makes batches
        ahead: it may request a batch again, and not use it.

        The info may hold `WEIGHTS`, float32 [B]: importance weights for `Agent.train`.
        """

    def num_drawn(self, drawn: types.NestedTensor) -> tf.Tensor:
        """Returns the number of batches in a draw, int64, if it `reads_in_draws`. For a graph."""
        raise NotImplementedError

    def put_back(self, drawn: types.NestedTensor, first: tf.Tensor, last: tf.Tensor | None = None) -> None:
        """Receives the batches of a draw from `first` on, which are not used now, to before `last`. For a graph."""

    def update(self, step: int, errors: np.ndarray) -> None:
        """Receives the errors of the newest draw's items, if it draws by priority.

        Args:
          step: the train step after the last of them.
          errors: float32 [num_steps, B], the items of this process in the order of the batches.
        """

    def on_version(self, policy_version: int) -> None:
        """Receives the newest published policy version, from which policy lags are counted."""

    def steps_of_call(self, num_steps: int) -> int:
        """Returns the train steps of a call of the learner: `num_steps`, or a complete iteration."""
        return num_steps

    def used_and_dropped(self) -> tuple[int, int]:
        """Returns how many items of queues were taken for train steps so far, and how many were dropped."""
        return 0, 0

    def metrics(self) -> dict[str, Any]:
        """Returns its metrics by name."""
        return {}

    def state(self) -> Mapping[str, Any]:
        """Returns what belongs in the checkpoint, by name."""
        return {}

    def close(self) -> None:
        """Closes the source; a waiting learner returns. May be called from any thread."""
        if self._given is not None:
            self._given.close()


def num_together(specs: types.NestedTensorSpec) -> int:
    """Returns how many batches can be one tensor for each leaf: at most 128, 16 MB.

    It is 0 if they have no fixed shape, or not only numbers.
    """
    leaves = tf.nest.flatten(specs)
    if not all(isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() for spec in leaves):
        return 0
    if any(spec.dtype in (tf.string, tf.variant, tf.resource) for spec in leaves):
        return 0
    batch_bytes = sum(spec.shape.num_elements() * spec.dtype.size for spec in leaves)
    return min(_MAX_TOGETHER, _MAX_TOGETHER_BYTES // max(1, batch_bytes))


class Planned(Source):
    """A source whose next batches are planned outside of the program: a draw takes the next ones of an order."""

    takes_indices = True

    def _keep_order(self, num_batches: int | None, shape: Sequence[int] = ()) -> None:
        """Allocates memory for an order: int32 [num_batches, *shape], what `batch` needs for each; None for any."""
        with tf.device('CPU:0'):
            order = tf.zeros((num_batches or 0, *shape), tf.int32)
            self._order = tf.Variable(order, trainable=False, shape=tf.TensorShape([num_batches, *shape]))
            self._next = tf.Variable(0, trainable=False, dtype=tf.int64)

    def _set_order(self, order: Any) -> None:
        """Sets the order of the next batches. Also for a graph."""
        self._order.assign(order)
        self._next.assign(0)

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> tf.Tensor:
        """See `Source`. Returns the next part of the order, int32 [num_steps, ...]; the seed has no meaning."""
        del seed, batch_size
        with tf.device('CPU:0'):
            begin = advance(self._next, num_steps)
            return self._order[begin : begin + tf.cast(num_steps, tf.int64)]


def advance(counter: tf.Variable, count: tf.Tensor) -> tf.Tensor:
    """Adds to a counter int64 on the host; returns what it was before. For a graph."""
    with tf.device('CPU:0'):
        before = counter.read_value()
        with tf.control_dependencies([before]):
            counter.assign_add(tf.cast(count, tf.int64))
        return before
