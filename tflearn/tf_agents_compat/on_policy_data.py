"""On-policy data: the minibatches of one iteration, from its own sequences only."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Minibatches:
    """How the sequences of an iteration become minibatches.

    Attributes:
      num_sequences: elements of the sequences' dataset in an iteration.
      num_epochs: passes over them.
      size: steps of a minibatch, from all passes together; None: the elements are the minibatches.
      shuffle_buffer_size: size of the shuffle buffer [steps].
    """

    num_sequences: int
    num_epochs: int
    size: int | None
    shuffle_buffer_size: int | None

    def dataset(self, make_sequences: Callable[[], tf.data.Dataset], num_replicas: int) -> tf.data.Dataset:
        """Returns the dataset of one iteration; each iterator over it is a new iteration.

        Args:
          make_sequences: returns a dataset of nests of tensors [B, T, ...]. It may be traced.
          num_replicas: replicas that this dataset feeds; the number of minibatches is a multiple of it.

        Returns:
          Nests of tensors [size, 1, ...]: as many full minibatches as the steps of all passes make.
        """
        # Within flat_map, since TensorFlow would share the cache among the iterators of a dataset.
        return tf.data.Dataset.range(1).flat_map(lambda _: self._iteration(make_sequences(), num_replicas))

    def _iteration(self, sequences: tf.data.Dataset, num_replicas: int) -> tf.data.Dataset:
        passes = sequences.take(self.num_sequences).cache().repeat(self.num_epochs)
        if self.size is None:
            return passes.take(self.num_sequences * self.num_epochs // num_replicas * num_replicas)
        steps = passes.unbatch().unbatch().shuffle(self.shuffle_buffer_size)
        minibatches = steps.batch(1, drop_remainder=True).batch(self.size, drop_remainder=True)
        if num_replicas == 1:
            return minibatches
        return minibatches.batch(num_replicas, drop_remainder=True).unbatch()
