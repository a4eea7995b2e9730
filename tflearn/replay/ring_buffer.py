"""RingBuffer: the newest chunks of a replay in memory, column by column, and where their sequences begin."""

import collections
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.replay.storage import Storage

_MAX_DRAWN_ROWS = 1 << 16


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """A chunk in the ring: its rows, the sequences up to its end (all that ever were), and how to know it again."""

    num_rows: int
    next_start: int
    fingerprint: int


class RingBuffer:
    """Rows in a ring of memory, and the places where their sequences begin, oldest first.

    Attributes:
      columns: nest of variables [max_rows, ...]: the trajectories' columns, and `policy_version`.
      starts: int64 variable [max_size]: rows that begin a sequence, itself a ring.
      window: int64 variable [2]: place in `starts` of the oldest sequence, and how many there are.
    """

    def __init__(self, storage: Storage, leaves_out_known: bool = True):
        """Allocates the memory, on the host.

        Args:
          storage: of the run.
          leaves_out_known: chunks that are there already are left out: a server's may come twice.
        """
        self._leaves_out_known = leaves_out_known
        self._layout = storage.layout
        self._length = storage.experience.sequence_length
        self._num_starts = storage.num_starts
        self._max_size = storage.experience.max_size
        self._max_rows = storage.mirror_rows
        with tf.device('CPU:0'):
            self.columns = {
                name: tf.nest.map_structure(self._variable, storage.layout.spec[name])
                for name in ('trajectory', 'policy_version')
            }
            self.starts = tf.Variable(tf.zeros((self._max_size,), tf.int64), trainable=False)
            self.window = tf.Variable(tf.zeros((2,), tf.int64), trainable=False)
        self._next_row = self._num_used = self._oldest = self._next_start = 0
        self._chunks: collections.deque[_Chunk] = collections.deque()
        self._fingerprints: set[int] = set()

    def _variable(self, spec: tf.TensorSpec) -> tf.Variable:
        return tf.Variable(tf.zeros((self._max_rows, *spec.shape), spec.dtype), trainable=False)

    @property
    def size(self) -> int:
        """Sequences that can be drawn."""
        return self._next_start - self._oldest

    @property
    def has_dropped(self) -> bool:
        """Says whether it was full once: the oldest sequences have made room."""
        return self._oldest > 0

    def max_draw_steps(self, batch_size: int) -> int:
        """Batches that `draw` draws at once, at most."""
        return max(1, _MAX_DRAWN_ROWS // (batch_size * self._length))

    def draw(self, num_steps: tf.Tensor, batch_size: int, seed: int, step: tf.Tensor) -> tf.Tensor:
        """Draws sequences uniformly, with replacement. For a graph.

        Args:
          num_steps: integer scalar: batches to draw, at most `max_draw_steps`.
          batch_size: B.
          seed: of the run.
          step: int64 scalar, another one for every draw: the train step.

        Returns:
          The sequences' rows, int64 [num_steps, B, T].
        """
        with tf.device('CPU:0'):
            oldest, size = tf.unstack(self.window)
            shape = [tf.cast(num_steps, tf.int32), batch_size]
            seeds = tf.stack([tf.constant(seed, tf.int64), tf.cast(step, tf.int64)])
            drawn = tf.random.stateless_uniform(shape, seeds, 0, size, tf.int64)
            starts = tf.gather(self.starts, (oldest + drawn) % self._max_size)
            return starts[..., None] + tf.range(self._length, dtype=tf.int64)

    def batch(self, drawn: tf.Tensor, i: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]:
        """Returns batch `i` of a draw: the trajectory [B, T, ...], and `policy_version` int64 [B, T]. For a graph.

        It is read from the ring only now: what is drawn ahead need not be copied twice.
        """
        with tf.device('CPU:0'):
            rows = tf.gather(drawn, i)
            columns = tf.nest.map_structure(lambda column: tf.gather(column, rows), self.columns)
            return columns['trajectory'], {'policy_version': columns['policy_version']}

    def add(self, chunks: np.ndarray) -> int:
        """Takes in chunks uint8 [n, rows, num_bytes]; fewer at once than the ring holds.

        Returns:
          The number of sequences in all of them.
        """
        rows, places, starts = [], [], []
        for chunk in chunks:
            begins = np.flatnonzero(chunk[: self._num_starts, 0])
            fingerprint = hash(chunk.tobytes()) if self._leaves_out_known else 0
            if not len(begins) or fingerprint in self._fingerprints:
                continue
            used = chunk[begins[0] : begins[-1] + self._length]
            place = self._allocate(len(used), len(begins), fingerprint)
            rows.append(used)
            places.append(np.arange(place, place + len(used)))
            starts.append(place + begins - begins[0])
        if rows:
            self._write(np.concatenate(rows), np.concatenate(places), np.concatenate(starts))
        return int(np.count_nonzero(chunks[:, : self._num_starts, 0]))

    def _allocate(self, num_rows: int, num_sequences: int, fingerprint: int) -> int:
        """Makes room for a chunk, in one piece; the oldest go. Returns its place."""
        wraps = self._next_row + num_rows > self._max_rows
        needed = num_rows + (self._max_rows - self._next_row if wraps else 0)
        while self._num_used + needed > self._max_rows:
            oldest = self._chunks.popleft()
            self._num_used -= oldest.num_rows
            self._oldest = max(self._oldest, oldest.next_start)
            self._fingerprints.discard(oldest.fingerprint)
        place = 0 if wraps else self._next_row
        self._next_row = place + num_rows
        self._num_used += needed
        self._next_start += num_sequences
        self._chunks.append(_Chunk(needed, self._next_start, fingerprint))
        if self._leaves_out_known:
            self._fingerprints.add(fingerprint)
        return place

    def _write(self, rows: np.ndarray, places: np.ndarray, starts: np.ndarray) -> None:
        with tf.device('CPU:0'):
            new = self._layout.unpack(tf.constant(rows))
        for name, columns in self.columns.items():
            for column, values in zip(tf.nest.flatten(columns), tf.nest.flatten(new[name]), strict=True):
                column.scatter_update(tf.IndexedSlices(values, places))
        starts = starts[-self._max_size :]
        where = np.arange(self._next_start - len(starts), self._next_start) % self._max_size
        self.starts.scatter_update(tf.IndexedSlices(starts, where))
        self._oldest = max(self._oldest, self._next_start - self._max_size)
        self.window.assign([self._oldest % self._max_size, self.size])
