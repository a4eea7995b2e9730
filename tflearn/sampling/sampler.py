"""Batches that the replay server draws: uniformly (ReplaySampler) or by priority (PrioritizedSampler)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserTypeError
from tflearn.core.experience import Prioritization
from tflearn.core.types import WEIGHTS
from tflearn.replay.backend import Sample
from tflearn.replay.chunks import with_version
from tflearn.replay.item_reader import unconverted
from tflearn.replay.priorities import PriorityUpdater, importance_weights
from tflearn.replay.reader import ShardedReader, TableReader
from tflearn.replay.storage import REPLAY, Storage
from tflearn.sampling.source import Batch, Source

_MAX_AHEAD_BYTES = 1 << 20
_MAX_AHEAD_STEPS = 32
_POLL_SECS = 0.001
_MAX_GATHER_POLLS = 20

# Batches that are drawn ahead were drawn by older priorities.
_MAX_PRIORITIZED_AHEAD_STEPS = 8


class ReplaySampler(Source):
    """A `Source` that the replay server draws uniformly.

    A draw takes a chunk and tries some of its rows that may begin a sequence, so that all sequences have the same
    probability; the sequences of one chunk are spread over several batches.
    """

    def __init__(
        self,
        address: str,
        storage: Storage,
        batch_size: int,
        timeout_secs: float,
        max_ahead_steps: int = _MAX_AHEAD_STEPS,
        more: Sequence[tf.TensorSpec] = (),
    ):
        """Draws nothing before the first `grant`.

        Args:
          batch_size: sequences in a train step, over all replicas of this process.
          timeout_secs: how long to wait for data before `grant` returns 0 with `error` set.
          max_ahead_steps: the number of batches to draw ahead; at most twice as many are drawn.
          more: the specs of a batch's further tensors, besides its rows.
        """
        self._storage, self._batch_size = storage, batch_size
        length = storage.experience.slicing.num_rows
        step_bytes = batch_size * length * storage.layout.num_bytes
        ahead = max(1, min(max_ahead_steps, _MAX_AHEAD_BYTES // step_bytes))
        # Draws for several batches at once are needed only if a chunk's sequences are spread over several batches.
        self._steps_ahead = ahead if storage.draws_per_chunk > 1 else 1
        # If batches are so large that only one is drawn ahead, they are not copied into a common draw.
        self.max_draw_steps = 2 * ahead if ahead > 1 else 1
        self._wanted_steps = ahead  # a call for every single batch would slow down the threads that fetch them
        spec = tf.TensorSpec((batch_size, length, storage.layout.num_bytes), tf.uint8)
        self._capacity = 2 * ahead
        self._reader: TableReader | ShardedReader
        self._given = self._reader = TableReader(address, storage, REPLAY, [spec, *more], self._capacity, timeout_secs)
        self._started = False

    def grant(self, num_steps: int) -> int:
        """See `Source`. Waits for batches; grants at most `max_draw_steps`."""
        if not self._started:
            self._started = True
            self._start()
        wanted, polls = min(num_steps, self._wanted_steps), 0
        while not self._reader.closed:
            size = self._reader.size()
            polls += bool(size)
            if size >= wanted or polls > _MAX_GATHER_POLLS:
                self._reader.resume()
                return min(num_steps, size, self.max_draw_steps)
            self._reader.wait(_POLL_SECS)
        return 0

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> Any:
        """See `Source`. Returns the trajectory [num_steps, B, T, ...], and a dict with its `policy_version`."""
        del seed, batch_size  # the server draws
        (rows,) = self._take(num_steps)
        return with_version(self._storage.layout.unpack(rows))

    def _take(self, num_steps: tf.Tensor) -> list[tf.Tensor]:
        return self._reader.take(1 if self.max_draw_steps == 1 else tf.cast(num_steps, tf.int32))

    def batch(self, drawn: Any, i: tf.Tensor) -> Batch:
        """Returns batch `i` of a draw: the trajectory [B, T, ...], and a dict with the other tensors."""
        if self.max_draw_steps == 1:
            return tf.nest.map_structure(lambda column: tf.squeeze(column, 0), drawn)
        return tf.nest.map_structure(lambda column: tf.gather(column, i), drawn)

    def _start(self) -> None:
        assert isinstance(self._reader, TableReader)
        chunks = math.ceil(self._steps_ahead * self._batch_size / self._storage.draws_per_chunk)
        self._reader.start(lambda samples: self._batches(samples, chunks), in_flight=2 * chunks)

    def _batches(self, samples: tf.data.Dataset, num_chunks: int) -> tf.data.Dataset:
        sequences = samples.batch(num_chunks, drop_remainder=True).map(unconverted(self._sequences))
        if self._storage.num_starts > 1:
            sequences = sequences.rebatch(self._steps_ahead * self._batch_size, drop_remainder=True)
        steps = [] if self._steps_ahead == 1 else [self._steps_ahead]
        shape = [
            *steps,
            self._batch_size,
            self._storage.experience.slicing.num_rows,
            self._storage.layout.num_bytes,
        ]
        return sequences.map(unconverted(lambda rows: tf.reshape(rows, shape)))

    def _sequences(self, sample: Sample) -> tf.Tensor:
        """Returns sequences [n, T, num_bytes] of chunks [k, rows, num_bytes]; several of a chunk in random order."""
        chunks, storage = sample.data['chunk'], self._storage
        if storage.num_starts == 1:
            return chunks
        num_chunks, (num_rows, num_bytes) = tf.shape(chunks)[0], storage.chunk_shape
        chances = tf.random.uniform((num_chunks, storage.num_starts))
        starts = tf.math.top_k(chances, storage.draws_per_chunk, sorted=False).indices
        begins = tf.gather(chunks[:, :, 0], starts, batch_dims=1) > 0
        starts = tf.random.shuffle(tf.boolean_mask(starts + num_rows * tf.range(num_chunks)[:, None], begins))
        # The only copy of the rows.
        return tf.gather(
            tf.reshape(chunks, [-1, num_bytes]), starts[:, None] + tf.range(storage.experience.slicing.num_rows)
        )


class PrioritizedSampler(ReplaySampler):
    """A `Source` that the replay servers draw by priority, with importance weights.

    Keys never leave the host: `draw` keeps the keys of the newest batches, and `update` joins them with the errors of
    the same train steps, which the learner passes back. They go to the server that has the item.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        storage: Storage,
        batch_size: int,
        timeout_secs: float,
        seed: int | None = None,
    ):
        """Draws nothing before the first `grant`.

        Args:
          addresses: the address of the replay server, 'host:port'; several if they share the replay.
          batch_size: see `ReplaySampler`.
          timeout_secs: see `ReplaySampler`.
          seed: of the choice among several servers; None draws one.

        Raises:
          TypeError: if the experience has another replay.
        """
        replay = storage.experience.replay
        if replay.prioritization is None:
            raise UserTypeError(f'got Experience.replay={replay!r}; need Prioritized(...)')
        self.prioritization: Prioritization = replay.prioritization
        addresses = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        more = (tf.TensorSpec((batch_size,), tf.uint64, 'key'), tf.TensorSpec((batch_size,), tf.float32, 'expected'))
        super().__init__(addresses[0], storage, batch_size, timeout_secs, _MAX_PRIORITIZED_AHEAD_STEPS, more)
        if len(addresses) > 1:
            self._given = self._reader = ShardedReader(
                addresses, storage, batch_size, self._capacity, timeout_secs, seed
            )
        self._updaters = [PriorityUpdater(address, REPLAY, self.prioritization) for address in addresses]
        with tf.device('CPU:0'):
            shape = tf.TensorShape([None, batch_size])
            self._drawn = tf.Variable(tf.zeros((0, batch_size), tf.uint64), trainable=False, shape=shape)
            self._owners = tf.Variable(tf.zeros((0, batch_size), tf.int32), trainable=False, shape=shape)

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> Any:
        """See `ReplaySampler.draw`. Adds importance weights float32 [num_steps, B], not normalized."""
        del batch_size
        with tf.device('CPU:0'):
            rows, keys, expected, *owners = self._take(num_steps)
            self._drawn.assign(keys)
            if owners:
                self._owners.assign(owners[0])
            data, info = with_version(self._storage.layout.unpack(rows))
            return data, info | {WEIGHTS: importance_weights(self.prioritization, expected, seed)}

    def update(self, step: int, errors: np.ndarray) -> None:
        """See `Source`. Returns immediately."""
        keys = self._drawn.numpy()[: len(errors)]
        if len(self._updaters) == 1:
            self._updaters[0].update(step, keys, errors)
            return
        owners = self._owners.numpy()[: len(errors)]
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

    def _start(self) -> None:
        if isinstance(self._reader, ShardedReader):
            self._reader.start()
        else:
            super()._start()

    def _batches(self, samples: tf.data.Dataset, num_chunks: int) -> tf.data.Dataset:
        def arrange(sample: Sample) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            info = sample.info
            expected = tf.cast(tf.cast(info.table_size, tf.float64) * info.probability, tf.float32)
            return sample.data['chunk'], info.key, expected

        return samples.batch(num_chunks, drop_remainder=True).map(unconverted(arrange))
