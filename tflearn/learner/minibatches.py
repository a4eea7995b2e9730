"""MinibatchSource: shuffled minibatches of new sequences, several epochs of each set of them (PPO)."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tflearn.core import host_values, strategies, workers
from tflearn.core.experience import Iteration
from tflearn.core.joined_leaves import JoinedLeaves
from tflearn.core.types import WEIGHTS, BatchSource

Prepare = Callable[[Any], tuple[Any, tf.Tensor]]

_NO_ITERATION = -1


class MinibatchSource:
    """Minibatches for agents that take several steps on the same new sequences; a `BatchSource`.

    An iteration begins with one batch of another source: sequences for all replicas of this process. The agent prepares
    them once, each replica its own part. The samples that it makes are kept here, and train steps gather their
    minibatches from them inside the compiled program. They are kept between two programs, so an iteration may be
    interrupted by a summary. A sample is one step, or a complete sequence for an agent with memory.

    Attributes:
      max_draw_steps: train steps of an iteration.
      takes_indices: see `BatchSource`.
      has_rounds: that of the other source.
    """

    takes_indices = True

    def __init__(
        self,
        source: BatchSource,
        prepare: Prepare,
        iteration: Iteration,
        strategy: tf.distribute.Strategy,
        seed: int = 0,
        of_sequences: bool = False,
    ):
        """Traces the preparation and allocates memory for the samples; takes nothing from the source yet.

        Args:
          source: batch i of a draw is an iteration's sequences [B, T + 1, ...] with `policy_version` [B, T + 1].
          prepare: a replica's sequences -> their samples, a nest of [b, T, ...], and the samples' weights, float32
            [b, T] or [b, T, 1]. In replica context. With `of_sequences`, leaves of the nest may also be [b, ...].
          iteration: the epochs, and the steps of a minibatch.
          strategy: where the agent was made.
          seed: determines the order of the samples.
          of_sequences: whether minibatches are of complete sequences, samples [size, T, ...] with weights [size, T];
            else of single steps, [size, ...] and [size].
        """
        layout = strategies.layout(strategy)
        self.source, self._prepare, self._strategy = source, prepare, strategy
        self.has_rounds = getattr(source, 'has_rounds', False)
        self._replicas, self._seed, self._of_sequences = layout.replicas // layout.workers, seed, of_sequences
        self._agreement = workers.Agreement(strategy)
        prepared = tf.function(self._prepared, autograph=False).get_concrete_function()
        columns = prepared.structured_outputs
        self._joined = JoinedLeaves(
            tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), columns)
        )
        weights = columns[1]
        self._num_samples = weights.shape[0]
        most = max(1, iteration.minibatch_steps // weights.shape[1]) if of_sequences else iteration.minibatch_steps
        # As few minibatches as there can be, of equal size: a multiple of the replicas.
        self._per_epoch = -(-self._num_samples * layout.workers // most)
        size = -(-self._num_samples // self._per_epoch)
        self._size = -(-size // self._replicas) * self._replicas
        self._epochs = iteration.num_epochs
        self.max_draw_steps = self._epochs * self._per_epoch
        self.num_iterations = self._left = 0
        with tf.device('CPU:0'):
            self._columns = [
                tf.Variable(tf.zeros((self._num_samples, *spec.shape), spec.dtype), trainable=False)
                for spec in self._joined.specs
            ]
            self._order = tf.Variable(tf.zeros((self.max_draw_steps, self._size), tf.int32), trainable=False)
            self._next = tf.Variable(tf.constant(0, tf.int64), trainable=False)
        self._begin = tf.function(self._begin_iteration, autograph=False).get_concrete_function(
            tf.TensorSpec((), tf.int64)
        )

    @property
    def error(self) -> Exception | None:
        """Why there are no more batches; None if it was closed."""
        return self.source.error

    @property
    def owed_steps(self) -> int:
        """Train steps of the iteration that are left, or those of the next one if its sequences are there."""
        source: Any = self.source
        return self._left or (self.max_draw_steps if source.owed_steps else 0)

    def metrics(self) -> dict[str, Any]:
        """Returns `num_iterations` and the source's own metrics, if it has any."""
        return {**getattr(self.source, 'metrics', dict)(), 'num_iterations': self.num_iterations}

    def start(self) -> None:
        """Lets the source begin to read ahead, if it can."""
        if hasattr(self.source, 'start'):
            self.source.start()

    def close(self) -> None:
        """Ends it, also for a learner that waits. May be called from any thread."""
        self.source.close()

    def grant(self, num_steps: int) -> int:
        """Waits, at the beginning of an iteration, for its sequences.

        Returns:
          How many of them the iteration still has; 0 if there are no more sequences.
        """
        if not self._left:
            # The preparation reduces over all workers: all of them take part, or none.
            if not self._agreement.least(self.source.grant(1)):
                return 0
            self._begin(tf.constant(self.num_iterations, tf.int64))
            self.num_iterations += 1
            self._left = self.max_draw_steps
        granted = min(num_steps, self._left)
        self._left -= granted
        return granted

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the indices of the next minibatches' samples, int32 [num_steps, size]. For a graph.

        Args:
          num_steps: integer scalar; as many were granted.
          seed: not used: the iteration has its own order.
        """
        del seed
        with tf.device('CPU:0'):
            start = self._next.read_value()
            with tf.control_dependencies([start]):
                self._next.assign_add(tf.cast(num_steps, tf.int64))
            return self._order[start : start + tf.cast(num_steps, tf.int64)]

    def batch(self, drawn: tf.Tensor, i: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]:
        """Returns minibatch `i` of a draw: samples [size, ...], and a dict with the weights and `policy_version`."""
        with tf.device('CPU:0'):
            indices = tf.gather(drawn, i)
            valid = tf.minimum(indices, self._num_samples - 1)
            samples, weights, versions = self._joined.divide([tf.gather(column, valid) for column in self._columns])
            used = indices < self._num_samples
            used = used[(..., *[None] * (weights.shape.rank - used.shape.rank))]
            weights = tf.where(used, weights, 0.0)
            return samples, {WEIGHTS: weights, 'policy_version': versions}

    def compile(self) -> None:
        """See `BatchSource`: what begins an iteration is optimized at its first call, which begins none."""
        self._begin(tf.constant(_NO_ITERATION, tf.int64))

    def _begin_iteration(self, number: tf.Tensor) -> None:
        tf.cond(number == _NO_ITERATION, lambda: tf.constant(False), lambda: self._take_iteration(number))

    def _take_iteration(self, number: tf.Tensor) -> tf.Tensor:
        """Begins an iteration with the source's next batch. Returns True."""
        for column, new in zip(self._columns, self._joined.join(self._prepared()), strict=True):
            column.assign(new)
        with tf.device('CPU:0'):
            # Indices from `num_samples` on fill up the minibatches; they are shuffled like all others.
            shape = (self._epochs, self._per_epoch * self._size)
            numbers = tf.random.stateless_uniform(shape, tf.stack([tf.constant(self._seed, tf.int64), number]))
            order = tf.argsort(numbers, axis=1)
            self._order.assign(tf.reshape(order, (self.max_draw_steps, self._size)))
            self._next.assign(0)
        return tf.constant(True)

    def _prepared(self) -> tuple[Any, tf.Tensor, tf.Tensor]:
        """Returns samples, weights and policy versions of the source's next batch: the columns, of all replicas."""
        data, info = self.source.batch(self.source.draw(tf.constant(1, tf.int64), tf.constant(0, tf.int64)), 0)
        data = host_values.divided(self._strategy, data, self._replicas)
        samples, weights = self._strategy.run(self._prepare, (data,))
        join = functools.partial(_joined, self._strategy)
        samples, weights = tf.nest.map_structure(join, (samples, weights))
        # Of the steps that became samples: the last ones, since a history comes before.
        joined = (samples, weights, info['policy_version'][:, :-1][:, -weights.shape[1] :])
        return joined if self._of_sequences else tf.nest.map_structure(_flat, joined)


def _joined(strategy: tf.distribute.Strategy, value: Any) -> tf.Tensor:
    return tf.concat(strategy.experimental_local_results(value), axis=0)


def _flat(value: tf.Tensor) -> tf.Tensor:
    return tf.reshape(value, [-1, *value.shape[2:]])
