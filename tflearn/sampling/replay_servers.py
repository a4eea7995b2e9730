"""The source of the items of replay servers: in the learner's own memory, or a dataset that the servers draw.

The servers draw where the replay is larger than the learner's memory: uniformly one of them; by priority also several.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserTypeError
from tflearn.core.experience import Prioritization
from tflearn.core.types import WEIGHTS
from tflearn.replay.backend import Sample, Shards
from tflearn.replay.chunks import with_version
from tflearn.replay.item_reader import unbuffered, unconverted
from tflearn.replay.priorities import PriorityUpdater, importance_weights
from tflearn.replay.reader import ShardedReader, TableReader
from tflearn.replay.storage import REPLAY, Storage
from tflearn.sampling.mirror import ReplayMirror
from tflearn.sampling.served_dataset import ServedDataset
from tflearn.sampling.source import Source

_MAX_AHEAD_BYTES = 1 << 20
_MAX_AHEAD_STEPS = 32
_MAX_PRIORITIZED_AHEAD_STEPS = 8  # such batches were drawn by older priorities


def make(
    shards: Shards,
    storage: Storage,
    batch_size: int,
    timeout_secs: float,
    seed: int,
    pipeline: tuple[int, int] = (0, 1),
    begins_filled: bool = False,
) -> Source:
    """Makes the source of a replay's items, which the learner draws from its own memory, or the servers draw.

    Args:
      shards: the replay servers.
      storage: the replay tables' layout.
      batch_size: sequences of a batch, over all replicas of this process.
      timeout_secs: how long to wait for data.
      seed: of the draws.
      pipeline: the index of this worker, and the number of workers. All of them read all streams, and fill their
        mirrors with the tables of their own shards.
      begins_filled: see `ReplayMirror`.
    """
    if storage.mirrored:
        own = shards.of_pipeline(*pipeline)
        return ReplayMirror(shards.addresses, storage, batch_size, timeout_secs, seed, begins_filled, own)
    if storage.experience.replay.prioritization:
        return PrioritizedDraws(shards.addresses, storage, batch_size, timeout_secs, seed)
    return uniform_draws(shards.addresses[0], storage, batch_size, timeout_secs)


def _rows_spec(storage: Storage, batch_size: int) -> tf.TensorSpec:
    return tf.TensorSpec((batch_size, storage.experience.slicing.num_rows, storage.layout.num_bytes), tf.uint8)


def _steps_ahead(rows: tf.TensorSpec, most: int) -> int:
    """Returns how many batches of such rows to draw ahead."""
    return max(1, min(most, _MAX_AHEAD_BYTES // math.prod(rows.shape)))


def uniform_draws(address: str, storage: Storage, batch_size: int, timeout_secs: float) -> ServedDataset:
    """Returns the source of the batches that a replay server draws uniformly.

    A draw takes a chunk and tries some of its rows that may begin a sequence, so that all sequences have the same
    probability; the sequences of one chunk are spread over several batches.

    Args:
      address: the replay server's, 'host:port'.
      storage: the replay tables' layout.
      batch_size: sequences of a batch, over all replicas of this process.
      timeout_secs: how long to wait for data.
    """
    rows = _rows_spec(storage, batch_size)
    ahead = _steps_ahead(rows, _MAX_AHEAD_STEPS)
    # Several batches at once are needed only if a chunk's sequences are spread over them.
    together = ahead if storage.draws_per_chunk > 1 else 1
    num_chunks = math.ceil(together * batch_size / storage.draws_per_chunk)
    shape = rows.shape if together == 1 else (together, *rows.shape)

    def batches(samples: tf.data.Dataset) -> tf.data.Dataset:
        sequences = samples.batch(num_chunks, drop_remainder=True).map(
            unconverted(lambda sample: _sequences(sample.data['chunk'], storage))
        )
        if storage.num_starts > 1:
            sequences = sequences.rebatch(together * batch_size, drop_remainder=True)
        return sequences.map(unconverted(lambda found: tf.reshape(found, shape)))

    reader = TableReader(address, storage, REPLAY, [rows], 2 * ahead, timeout_secs)
    unpack = lambda columns: with_version(storage.layout.unpack(columns[0]))  # noqa: E731
    # Large batches are drawn one by one, so that none is copied.
    return ServedDataset(reader, unpack, 2 * ahead if ahead > 1 else 1, prepare=batches, in_flight=2 * num_chunks)


def _sequences(chunks: tf.Tensor, storage: Storage) -> tf.Tensor:
    """Returns sequences [n, T, num_bytes] of chunks [k, rows, num_bytes]; several of a chunk in random order."""
    if storage.num_starts == 1:
        return chunks
    num_chunks, (num_rows, num_bytes) = tf.shape(chunks)[0], storage.chunk_shape
    chances = tf.random.uniform((num_chunks, storage.num_starts))
    starts = tf.math.top_k(chances, storage.draws_per_chunk, sorted=False).indices
    begins = tf.gather(chunks[:, :, 0], starts, batch_dims=1) > 0
    starts = tf.random.shuffle(tf.boolean_mask(starts + num_rows * tf.range(num_chunks)[:, None], begins))
    # The only copy of the rows.
    offsets = starts[:, None] + tf.range(storage.experience.slicing.num_rows)
    return tf.gather(tf.reshape(chunks, [-1, num_bytes]), offsets)


class PrioritizedDraws(ServedDataset):
    """The batches that replay servers draw by priority, with importance weights.

    Keys never leave the host: `draw` keeps the keys of the newest batches, and the servers that have these items;
    `update` joins them with the errors of the same train steps, which the learner passes back.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        storage: Storage,
        batch_size: int,
        timeout_secs: float,
        seed: int | None = None,
    ):
        """Draws nothing before the first `grant`.

        Args:
          addresses: the addresses of the replay servers that share the replay, 'host:port'.
          storage: the replay tables' layout.
          batch_size: sequences of a batch, over all replicas of this process.
          timeout_secs: how long to wait for data.
          seed: of the choice among several servers; None draws one.

        Raises:
          TypeError: if the experience has another replay.
        """
        replay = storage.experience.replay
        if replay.prioritization is None:
            raise UserTypeError(f'got Experience.replay={replay!r}; need Prioritized(...)')
        self.prioritization: Prioritization = replay.prioritization
        rows = _rows_spec(storage, batch_size)
        ahead = _steps_ahead(rows, _MAX_PRIORITIZED_AHEAD_STEPS)
        kinds = {'key': tf.uint64, 'expected': tf.float32, 'server': tf.int32}
        specs = [rows, *(tf.TensorSpec((batch_size,), dtype, name) for name, dtype in kinds.items())]
        super().__init__(
            TableReader(addresses[0], storage, REPLAY, specs, ahead, timeout_secs)
            if len(addresses) == 1
            else ShardedReader(addresses, storage, specs, ahead, timeout_secs, seed),
            lambda columns: with_version(storage.layout.unpack(columns[0])),
            ahead,
            prepare=functools.partial(_prioritized_batches, batch_size=batch_size),
            in_flight=2 * batch_size,
        )
        self._updaters = [PriorityUpdater(address, REPLAY, self.prioritization) for address in addresses]
        with tf.device('CPU:0'):
            shape = tf.TensorShape([None, batch_size])
            self._keys, self._owners = (
                tf.Variable(tf.zeros((0, batch_size), dtype), trainable=False, shape=shape)
                for dtype in (tf.uint64, tf.int32)
            )

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> Any:
        """See `ServedDataset.draw`. Adds importance weights float32 [num_steps, B], not normalized."""
        del batch_size
        with tf.device('CPU:0'):
            rows, keys, expected, owners = self._take(num_steps)
            self._keys.assign(keys)
            self._owners.assign(owners)
            data, info = self._unpack([rows])
            return data, info | {WEIGHTS: importance_weights(self.prioritization, expected, seed)}

    def update(self, step: int, errors: np.ndarray) -> None:
        """See `Source`. Returns immediately."""
        keys, owners = (drawn.numpy()[: len(errors)] for drawn in (self._keys, self._owners))
        for i, updater in enumerate(self._updaters):
            if np.any(mine := owners == i):
                updater.update(step, keys[mine], errors[mine])

    def flush(self, timeout_secs: float) -> bool:
        """Waits until the servers have all updates. Returns whether that was so within `timeout_secs` each."""
        return all(updater.flush(timeout_secs) for updater in self._updaters)

    def metrics(self) -> dict[str, Any]:
        """Returns the counts of priorities; the servers report size and samples per insert."""
        counts = [updater.metrics() for updater in self._updaters]
        return {name: sum(each[name] for each in counts) for name in counts[0]}

    def close(self) -> None:
        """See `Source`."""
        super().close()
        for updater in self._updaters:
            updater.close()


def _prioritized_batches(samples: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Returns the batches of one server's samples; see `ShardedReader`."""

    def arrange(sample: Sample) -> tuple[tf.Tensor, ...]:
        info = sample.info
        expected = tf.cast(tf.cast(info.table_size, tf.float64) * info.probability, tf.float32)
        return sample.data['chunk'], info.key, expected, tf.zeros_like(expected, tf.int32)

    # Further buffers would hold batches of older priorities.
    return unbuffered(samples.batch(batch_size, drop_remainder=True).map(unconverted(arrange)))
