"""PrioritizedSampler: batches that the replay server draws by priority, with importance weights.

Keys never leave the host: `draw` keeps the keys of the newest batches, and `update` joins them with the errors of the
same train steps, which the learner passes back.
"""

from typing import Any

import numpy as np
import reverb
import tensorflow as tf

from tflearn.errors import UserTypeError
from tflearn.experience import Prioritized
from tflearn.replay.storage import REPLAY, Storage
from tflearn.sampling.priorities import PriorityUpdater, importance_weights
from tflearn.sampling.sampler import ReplaySampler
from tflearn.types import WEIGHTS

# Batches that are drawn ahead were drawn by older priorities.
_MAX_AHEAD_STEPS = 8


class PrioritizedSampler(ReplaySampler):
    """A `BatchSource` that the replay server draws by priority."""

    def __init__(self, address: str, storage: Storage, batch_size: int, timeout_secs: float):
        """Draws nothing before the first `grant`. Raises TypeError if the experience has another replay."""
        replay = storage.experience.replay
        if not isinstance(replay, Prioritized):
            raise UserTypeError(f'got Experience.replay={replay!r}; need Prioritized(...)')
        self.prioritization = replay.prioritization
        more = (tf.TensorSpec((batch_size,), tf.uint64, 'key'), tf.TensorSpec((batch_size,), tf.float32, 'expected'))
        super().__init__(address, storage, batch_size, timeout_secs, _MAX_AHEAD_STEPS, more)
        self._updater = PriorityUpdater(address, REPLAY, self.prioritization)
        with tf.device('CPU:0'):
            shape = tf.TensorShape([None, batch_size])
            self._drawn = tf.Variable(tf.zeros((0, batch_size), tf.uint64), trainable=False, shape=shape)

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor) -> Any:
        """See `ReplaySampler.draw`. Adds importance weights float32 [num_steps, B], not normalized."""
        with tf.device('CPU:0'):
            rows, keys, expected = self._take(num_steps)
            self._drawn.assign(keys)
            data, info = self._columns(rows)
            return data, info | {WEIGHTS: importance_weights(self.prioritization, expected, seed)}

    def update(self, step: int, errors: np.ndarray) -> None:
        """See `PrioritizedSource`. Returns immediately."""
        self._updater.update(step, self._drawn.numpy()[: len(errors)], errors)

    def metrics(self) -> dict[str, Any]:
        """Returns the counts of priorities; the server reports size and samples per insert."""
        return self._updater.metrics()

    def close(self) -> None:
        """See `BatchSource`."""
        super().close()
        self._updater.close()

    def _batches(self, samples: tf.data.Dataset, num_chunks: int) -> tf.data.Dataset:
        def arrange(sample: reverb.ReplaySample) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            info = sample.info
            expected = tf.cast(tf.cast(info.table_size, tf.float64) * info.probability, tf.float32)
            return sample.data['chunk'], info.key, expected

        return samples.batch(num_chunks, drop_remainder=True).map(arrange)
