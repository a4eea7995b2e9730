"""Sources of samples in memory: shuffled minibatches of new sequences, in epochs (PPO)."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tflearn.core import strategies, workers
from tflearn.core.experience import Iteration
from tflearn.core.layout import ColumnLayout
from tflearn.core.types import WEIGHTS
from tflearn.sampling.source import Batch, Planned, Source

Prepare = Callable[[Any], tuple[Any, tf.Tensor]]

_NO_ITERATION = -1


class OfSamples(Planned):
    """A source of samples that are in memory, in an order of their indices, which are shuffled.

    Indices from the number of samples on fill up batches: they stand for samples of weight 0.
    """

    def _allocate(self, like: Any, size: int, num_samples: int | None, num_batches: int | None) -> None:
        """Allocates memory for samples like those of a nest [N, ...], and for batches of `size`; None for any."""
        spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), like)
        self._joined = ColumnLayout(spec)
        with tf.device('CPU:0'):
            self._columns = [
                tf.Variable(
                    tf.zeros((num_samples or 0, *each.shape), each.dtype),
                    trainable=False,
                    shape=tf.TensorShape([num_samples, *each.shape]),
                )
                for each in self._joined.specs
            ]
        self._keep_order(num_batches, (size,))

    def _set(self, samples: Any, order: Any) -> None:
        """Sets the samples, and the order of the next batches of them, int32 [n, size]. Also for a graph."""
        for column, new in zip(self._columns, self._joined.join(samples), strict=True):
            column.assign(new)
        with tf.device('CPU:0'):
            self._set_order(order)

    def _samples(self, drawn: tf.Tensor, i: tf.Tensor) -> tuple[Any, Callable[[tf.Tensor], tf.Tensor]]:
        """Returns the samples of batch `i`, and a function that makes the weights of those that fill it up 0."""
        indices, number = tf.gather(drawn, i), tf.shape(self._columns[0])[0]
        chosen = tf.minimum(indices, number - 1)

        def weigh(weights: tf.Tensor) -> tf.Tensor:
            used = (indices < number)[(..., *[None] * (weights.shape.rank - indices.shape.rank))]
            return tf.where(used, weights, 0.0)

        return self._joined.divide([tf.gather(column, chosen) for column in self._columns]), weigh


class MinibatchSource(OfSamples):
    """Minibatches for agents that take several steps on the same new sequences; a `Source`.

    An iteration begins with one batch of another source: sequences for all replicas of this process. The agent prepares
    them once, each replica its own part. The samples that it makes are kept here, and train steps gather their
    minibatches from them inside the compiled program. They are kept between two programs, so an iteration may be
    interrupted by a summary. A sample is one step, or a complete sequence for an agent with memory.

    Attributes:
      max_draw_steps: train steps of an iteration.
      has_rounds: that of the other source.
    """

    prepared = True
    _KEPT = ('num_iterations', '_left')

    def __init__(
        self,
        source: Source,
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
        self._given = self.source = source
        self._prepare, self._strategy = prepare, strategy
        self.has_rounds = source.has_rounds
        self._replicas, self._seed, self._of_sequences = layout.replicas // layout.workers, seed, of_sequences
        self._agreement = workers.Agreement(strategy)
        # Traced once, for what it returns and for each iteration.
        self._prepared = tf.function(self._next_samples, autograph=False).get_concrete_function()
        columns = self._prepared.structured_outputs
        weights = columns[1]
        num_samples = weights.shape[0]
        most = max(1, iteration.minibatch_steps // weights.shape[1]) if of_sequences else iteration.minibatch_steps
        # As few minibatches as there can be, of equal size: a multiple of the replicas.
        self._per_epoch = -(-num_samples * layout.workers // most)
        size = -(-num_samples // self._per_epoch)
        self._size = -(-size // self._replicas) * self._replicas
        self._epochs = iteration.num_epochs
        self.max_draw_steps = self._epochs * self._per_epoch
        self.steps_per_batch, self.addresses = self.max_draw_steps, source.addresses
        self.num_iterations = self._left = 0
        self._allocate(columns, self._size, num_samples, self.max_draw_steps)
        self._begin = tf.function(self._begin_iteration, autograph=False).get_concrete_function(
            tf.TensorSpec((), tf.int64)
        )

    @property
    def owed_steps(self) -> int:
        """Train steps of the iteration that are left, or those of the next one if its sequences are there."""
        return self._left or (self.max_draw_steps if self.source.owed_steps else 0)

    def metrics(self) -> dict[str, Any]:
        """Returns `num_iterations` and the source's own metrics."""
        return {**self.source.metrics(), 'num_iterations': self.num_iterations}

    def content(self) -> dict[str, Any]:
        """See `Resumable`; with the samples of an iteration that is not over."""
        samples = [variable.numpy() for variable in self._variables] if self._left else []
        return {**super().content(), 'source': self.source.content(), 'samples': samples}

    def set_content(self, content: Mapping[str, Any]) -> None:
        """See `Resumable`."""
        super().set_content(content)
        self.source.set_content(content['source'])
        for variable, value in zip(self._variables, content['samples'], strict=False):
            variable.assign(value)

    @property
    def _variables(self) -> list[tf.Variable]:
        return [*self._columns, self._order, self._next]

    def start(self) -> None:
        """See `Source`."""
        self.source.start()

    def on_version(self, policy_version: int) -> None:
        """See `Source`."""
        self.source.on_version(policy_version)

    def used_and_dropped(self) -> tuple[int, int]:
        """See `Source`."""
        return self.source.used_and_dropped()

    def steps_of_call(self, num_steps: int) -> int:
        """See `Source`: a complete iteration."""
        return self.max_draw_steps

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

    def batch(self, drawn: tf.Tensor, i: tf.Tensor) -> Batch:
        """Returns minibatch `i` of a draw: samples [size, ...], and a dict with the weights and `policy_version`."""
        with tf.device('CPU:0'):
            (samples, weights, versions), weigh = self._samples(drawn, i)
            return samples, {WEIGHTS: weigh(weights), 'policy_version': versions}

    def compile(self) -> None:
        """See `Source`: what begins an iteration is optimized at its first call, which begins none."""
        self._begin(tf.constant(_NO_ITERATION, tf.int64))

    def _begin_iteration(self, number: tf.Tensor) -> None:
        tf.cond(number == _NO_ITERATION, lambda: tf.constant(False), lambda: self._take_iteration(number))

    def _take_iteration(self, number: tf.Tensor) -> tf.Tensor:
        """Begins an iteration with the source's next batch. Returns True."""
        samples = self._prepared()
        with tf.device('CPU:0'):
            # Indices from the number of samples on fill up the minibatches; they are shuffled like all others.
            shape = (self._epochs, self._per_epoch * self._size)
            numbers = tf.random.stateless_uniform(shape, tf.stack([tf.constant(self._seed, tf.int64), number]))
            order = tf.reshape(tf.argsort(numbers, axis=1), (self.max_draw_steps, self._size))
        self._set(samples, order)
        return tf.constant(True)

    def _next_samples(self) -> tuple[Any, tf.Tensor, tf.Tensor]:
        """Returns samples, weights and policy versions of the source's next batch: the columns, of all replicas."""
        data, info = self.source.batch(self.source.draw(tf.constant(1, tf.int64), tf.constant(0, tf.int64)), 0)
        samples, weights = prepared(self._strategy, self._prepare, data)
        # Of the steps that became samples: the last ones, since a history comes before.
        joined = (samples, weights, info['policy_version'][:, :-1][:, -weights.shape[1] :])
        return joined if self._of_sequences else tf.nest.map_structure(flat, joined)


def prepared(strategy: tf.distribute.Strategy, prepare: Prepare, data: Any) -> tuple[Any, tf.Tensor]:
    """Returns the samples [B, T, ...] of sequences [B, T + 1, ...], and their weights; of each replica its own part."""
    layout = strategies.layout(strategy)
    parts = strategy.run(prepare, (strategies.divided(strategy, data, layout.replicas // layout.workers),))
    return tf.nest.map_structure(lambda part: tf.concat(strategy.experimental_local_results(part), axis=0), parts)


def flat(column: tf.Tensor) -> tf.Tensor:
    """Returns the steps [B T, ...] of sequences [B, T, ...]."""
    return tf.reshape(column, [-1, *column.shape[2:]])
