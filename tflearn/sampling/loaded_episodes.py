"""LoadedEpisodes: all sequences of recorded episodes in memory, as a source of batches."""

import abc
import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core.types import WEIGHTS
from tflearn.core.waiting import LOG_EVERY_SECS
from tflearn.data import columns
from tflearn.replay.chunks import with_version
from tflearn.replay.storage import Storage
from tflearn.sampling import episode_rows
from tflearn.sampling.episode_rows import EpisodeRows
from tflearn.sampling.ring_buffer import RingColumns
from tflearn.sampling.source import Batch, Source, advance

Order = Literal['uniform', 'epochs']

_BLOCK_ROWS = 4096
_BLOCK_BYTES, _CROSSED_BYTES = 4 << 20, 32 << 20


class OfEpisodes(Source, tf.train.experimental.PythonState):
    """A source of the sequences of recorded episodes. Its position belongs in the checkpoint.

    Attributes:
      weighs: whether batches have weights: 1, and 0 of sequences beyond `max_epochs`, which fill up the last one. They
        are multiplied by those of the data, if these have some, see `recorded.weighted_spec`.
    """

    weighs = False
    _columns: RingColumns
    _limit: int | None = None  # batches of `max_epochs`

    @abc.abstractmethod
    def _num_batches(self) -> int:
        """Returns how many batches were drawn."""

    def _expect(self, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Logs it if a checkpoint is of other data, or of another order, than this source."""
        found = {name: saved.get(name) for name in own}
        if found != own:
            logging.warning(
                'the checkpoint has %s, this run %s: the batches are not those that an undisturbed run would have had',
                found,
                own,
            )

    @property
    def ended(self) -> bool:
        """Whether `max_epochs` are over."""
        return self._limit is not None and self._num_batches() >= self._limit

    def batch(self, drawn: Any, i: tf.Tensor) -> Batch:
        """See `Source`: the trajectory [B, T, ...], and `policy_version` int64 [B, T], which is 0."""
        rows, weights = drawn
        with tf.device('CPU:0'):
            data, info = with_version(self._columns.batch(rows, i))
            found = [tf.gather(weights, i)] if self.weighs else []
            if isinstance(data.policy_info, dict) and columns.WEIGHT in data.policy_info:
                own = {name: leaf for name, leaf in data.policy_info.items() if name != columns.WEIGHT}
                found.append(data.policy_info[columns.WEIGHT][..., 0])
                data = data._replace(policy_info=own or ())
            return data, info | ({WEIGHTS: math.prod(found)} if found else {})


class LoadedEpisodes(OfEpisodes):
    """A `Source` of recorded episodes, whose position belongs in the checkpoint: a `Learner` of it saves that.

    Which sequence is drawn depends on the seed and on how many were drawn before, and on nothing else. So a resumed run
    goes on with the batches that it would have had, wherever it was interrupted.

    Attributes:
      size: the number of sequences.
    """

    takes_indices = True

    def __init__(
        self,
        storage: Storage,
        episodes: Iterator[Any],
        max_rows: int | None,
        batch_size: int,
        seed: int = 0,
        order: Order = 'uniform',
        max_epochs: int | None = None,
        name: str = 'data',
    ):
        """Reads the episodes.

        Args:
          storage: the layout of a row, and how steps become items.
          episodes: Trajectories of arrays [T, ...], each of one or several episodes.
          max_rows: the rows that they have at most, see `EpisodeRows.max_rows`; None takes twice the memory meanwhile.
          batch_size: sequences of a batch, over all replicas of this process.
          seed: the seed of the order; that of a checkpoint takes precedence.
          order: 'uniform' draws with replacement; with 'epochs' each sequence is drawn once in an epoch.
          max_epochs: how often as many sequences are drawn as there are; the last batch may have a few more.
          name: that of its position in the checkpoint.

        Raises:
          ValueError: if there is no sequence.
        """
        self._length, self._batch_size, self._order = storage.experience.slicing.num_rows, batch_size, order
        self._name = name
        blocks = episode_rows.blocks(EpisodeRows(storage), episodes, block_rows(storage))
        if max_rows is None:
            gathered = list(blocks)
            max_rows, blocks = sum(len(rows) for rows, _ in gathered), iter(gathered)
        self._columns = RingColumns(storage.layout, max_rows)
        self.max_draw_steps = self._columns.max_draw_steps(batch_size * self._length)
        starts = self._write(blocks)
        self.size = sum(map(len, starts))
        if not self.size:
            raise episode_rows.none_long_enough(storage.experience.slicing)
        self._wanted = None if max_epochs is None else max_epochs * self.size
        self._limit = None if self._wanted is None else -(-self._wanted // batch_size)
        with tf.device('CPU:0'):
            self._starts = tf.constant(np.concatenate(starts))
            self._seed = tf.Variable(seed, dtype=tf.int64, trainable=False)
            self._drawn = tf.Variable(0, dtype=tf.int64, trainable=False)  # sequences
        self._closed = False

    def serialize(self) -> str:
        """Returns the position as JSON."""
        position = {'seed': int(self._seed.numpy()), 'drawn': int(self._drawn.numpy())}
        return json.dumps({'order': self._order, 'size': self.size, **position})

    def deserialize(self, string_value: str) -> None:
        """Restores the position of a checkpoint; logs it if its data were others."""
        saved = json.loads(string_value)
        self._expect(saved, {'order': self._order, 'size': self.size})
        self._seed.assign(saved['seed'])
        self._drawn.assign(saved.get('drawn', 0))

    @property
    def epochs(self) -> float:
        """How many sequences were drawn, for each one that there is."""
        return int(self._drawn.numpy()) / self.size

    def metrics(self) -> dict[str, float]:
        """Returns the number of sequences, and the epochs so far."""
        return {'replay_size': self.size, 'data/epochs': self.epochs}

    def state(self) -> dict[str, Any]:
        """See `Source`."""
        return {self._name: self}

    def grant(self, num_steps: int) -> int:
        """See `Source`: all, until `max_epochs` are over."""
        if self._closed:
            return 0
        return num_steps if self._limit is None else max(0, min(num_steps, self._limit - self._num_batches()))

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> Any:
        """See `Source`; the seed has no meaning, since the source counts by itself.

        `batch_size` is the number of sequences of a batch if it varies: at most that of the constructor.
        """
        del seed
        with tf.device('CPU:0'):
            num_steps = tf.cast(num_steps, tf.int64)
            size = tf.cast(self._batch_size if batch_size is None else batch_size, tf.int64)
            count = num_steps * size
            numbers = advance(self._drawn, count) + tf.range(count, dtype=tf.int64)
            choose = _uniform if self._order == 'uniform' else _once_per_epoch
            starts = tf.gather(self._starts, choose(numbers, self._seed.read_value(), self.size))
            starts = tf.reshape(starts, [num_steps, size, 1])
            rows = self._columns.draw(starts + tf.range(self._length, dtype=tf.int64))
            is_wanted = tf.fill([count], True) if self._wanted is None else numbers < self._wanted
            return rows, tf.reshape(tf.cast(is_wanted, tf.float32), [num_steps, size])

    def all_batches(self) -> Iterator[tuple[int, Any]]:
        """Yields each sequence once, in the order of the episodes: the number of sequences, and an element."""
        for first in range(0, self.size, self._batch_size):
            starts = self._starts[first : first + self._batch_size]
            with tf.device('CPU:0'):
                drawn = self._columns.draw(starts[None, :, None] + tf.range(self._length, dtype=tf.int64))
            yield len(starts), self.batch((drawn, tf.ones((1, len(starts)))), tf.constant(0))

    def close(self) -> None:
        """Grants no more."""
        self._closed = True

    def _write(self, blocks: Iterator[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        """Writes rows to memory. Returns where the sequences begin."""
        starts, num_rows, logged_at = [np.empty(0, np.int64)], 0, time.monotonic()
        for rows, begins in blocks:
            self._columns.write(num_rows, rows)
            starts.append(num_rows + begins)
            num_rows += len(rows)
            if time.monotonic() - logged_at > LOG_EVERY_SECS:
                logged_at = time.monotonic()
                logging.info('read %d steps', num_rows)
        return starts

    def _num_batches(self) -> int:
        return int(self._drawn.numpy()) // self._batch_size


def block_rows(storage: Storage) -> int:
    """Returns the rows that are packed at once: few where they are large, since memory that is used again is faster.

    More where sequences cross episodes, which they do only within a block.
    """
    num_bytes = _CROSSED_BYTES if storage.experience.slicing.cross_episodes else _BLOCK_BYTES
    return max(1, min(_BLOCK_ROWS, num_bytes // storage.layout.num_bytes))


def _uniform(numbers: tf.Tensor, seed: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the draws `numbers` int64 [n] from range(size), of SplitMix64 (Steele et al. 2014)."""

    def mixed(z: tf.Tensor) -> tf.Tensor:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, tf.constant(shift, tf.uint64)))
            z *= tf.constant(factor, tf.uint64)
        return tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, tf.constant(31, tf.uint64)))

    increment = tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    begin = mixed(tf.cast(seed, tf.uint64) + increment)
    drawn = mixed(begin + tf.cast(numbers, tf.uint64) * increment)
    return tf.cast(tf.bitwise.right_shift(drawn, tf.constant(1, tf.uint64)), tf.int64) % size


def _once_per_epoch(numbers: tf.Tensor, seed: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the draws `numbers` int64 [n] from range(size): each epoch is another permutation of it."""
    epochs = numbers // size
    seeds = tf.stack([tf.fill(tf.shape(numbers), seed), epochs, tf.ones_like(epochs)], axis=1)
    last = tf.fill(tf.shape(numbers), tf.constant(size - 1, tf.int64))
    return tf.raw_ops.RandomIndexShuffle(index=numbers % size, seed=seeds, max_index=last, rounds=4)
