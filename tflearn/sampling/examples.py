"""ExampleSource: labelled examples in memory, as a source of batches: in each epoch all of them, in another order."""

import functools
import json
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.sampling.minibatches import OfSamples
from tflearn.sampling.source import Batch

_MAX_DRAW_STEPS = 64


class ExampleSource(OfSamples, tf.train.experimental.PythonState):
    """A `Source` of examples, whose position belongs in the checkpoint.

    Epochs follow each other without a gap: a batch may have the last examples of one and the first of the next. Which
    examples a batch has depends on the seed and on its number alone.

    Attributes:
      steps_per_epoch: train steps after which an epoch is over; the last of them may have begun the next.
      ended: whether all epochs are over.
    """

    max_draw_steps = _MAX_DRAW_STEPS

    def __init__(self, examples: Any, batch_size: int, num_epochs: int, seed: int):
        """
        Args:
          examples: a nest of arrays [N, ...].
          batch_size: examples of a batch, over all replicas.

        Raises:
          ValueError: if there are fewer examples than a batch has.
        """
        self._num_examples = len(tf.nest.flatten(examples)[0])
        if self._num_examples < batch_size:
            raise UserValueError(f'got {self._num_examples} examples; need at least a batch of {batch_size}')
        self.batch_size, self._seed, self._position = batch_size, seed, 0
        self.steps_per_epoch = -(-self._num_examples // batch_size)
        self._num_batches = num_epochs * self._num_examples // batch_size
        self._allocate(examples, batch_size, None, None)
        self._set(examples, np.zeros((0, batch_size), np.int32))

    @property
    def ended(self) -> bool:
        """See `Source`."""
        return self._position >= self._num_batches

    def grant(self, num_steps: int) -> int:
        """See `Source`: as many as there are."""
        granted = min(num_steps, self._num_batches - self._position)
        numbers = np.arange(self._position * self.batch_size, (self._position + granted) * self.batch_size)
        epochs, order = numbers // self._num_examples, np.zeros(len(numbers), np.int32)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            order[here] = self._shuffled(int(epoch))[numbers[here] % self._num_examples]
        self._set_order(order.reshape(-1, self.batch_size))
        self._position += granted
        return granted

    def batch(self, drawn: tf.Tensor, i: tf.Tensor) -> Batch:
        """See `Source`."""
        with tf.device('CPU:0'):
            return self._samples(drawn, i)[0], {}

    def state(self) -> dict[str, Any]:
        """See `Source`."""
        return {'data': self}

    def serialize(self) -> str:
        """Returns the position as JSON."""
        return json.dumps({'position': self._position})

    def deserialize(self, string_value: str) -> None:
        """Restores the position of a checkpoint."""
        self._position = json.loads(string_value)['position']

    @functools.lru_cache(maxsize=2)  # noqa: B019  (there is one source in a process)
    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(self._num_examples)
