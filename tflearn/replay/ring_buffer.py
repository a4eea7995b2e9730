"""RingBuffer: the newest chunks of a replay in memory, and where their sequences begin."""

import collections
import dataclasses
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.replay.ring_columns import RingColumns
from tflearn.replay.storage import MIRROR_SPARE_CHUNKS, Storage

_MAX_DRAWN_ROWS = 1 << 16
_MAX_DRAWN_BYTES = 16 << 20
_SAMPLED_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """A chunk in the ring: its rows, the sequences up to its end (all that ever were), and how to know it again."""

    num_rows: int
    next_start: int
    fingerprint: int


class RingBuffer:
    """Rows in a ring of memory, and the places where their sequences begin, oldest first.

    One thread may `write` while another draws: rows go to where no drawn sequence is, and are drawn once they are
    published. Who draws publishes, between two draws, so no batch ever sees a sequence that is half overwritten.

    Attributes:
      columns: of the rows.
      starts: int64 variable [max_size]: rows that begin a sequence, itself a ring.
      window: int64 variable [2]: place in `starts` of the oldest sequence, and how many there are.
      num_written: sequences in all chunks that were ever taken, also in those left out.
      num_published: of them, those that draws may see.
    """

    def __init__(self, storage: Storage, leaves_out_known: bool = True):
        """Allocates the memory, on the host.

        Args:
          storage: of the run.
          leaves_out_known: chunks that are there already are left out: a server's may come twice.
        """
        self._leaves_out_known = leaves_out_known
        self._length = storage.experience.sequence_length
        self._num_starts = storage.num_starts
        self._max_size = storage.experience.max_size
        self._max_rows = storage.mirror_rows
        self._spare_rows = MIRROR_SPARE_CHUNKS * storage.chunk_shape[0]
        self.columns = RingColumns(storage.layout, storage.mirror_rows)
        with tf.device('CPU:0'):
            self.starts = tf.Variable(tf.zeros((self._max_size,), tf.int64), trainable=False)
            self.window = tf.Variable(tf.zeros((2,), tf.int64), trainable=False)
        self._oldest = self._newest = 0  # sequences, of all that ever were, between which is drawn
        self.num_written = self.num_published = 0
        self._lock = threading.Lock()  # of all below
        self._next_row = self._num_used = self._next_start = 0
        self._chunks: collections.deque[_Chunk] = collections.deque()
        self._fingerprints: set[int] = set()
        self._new_starts: list[np.ndarray] = []

    @property
    def size(self) -> int:
        """Sequences that can be drawn."""
        return self._newest - self._oldest

    @property
    def has_dropped(self) -> bool:
        """Says whether it was full once: the oldest sequences have made room."""
        return self._oldest > 0

    def max_draw_steps(self, batch_size: int) -> int:
        """Batches that `draw` draws at once, at most."""
        num_rows = min(_MAX_DRAWN_ROWS, _MAX_DRAWN_BYTES // self.columns.drawn_bytes)
        return max(1, num_rows // (batch_size * self._length))

    def draw(self, num_steps: tf.Tensor, batch_size: int, seed: int, step: tf.Tensor) -> Any:
        """Draws sequences uniformly, with replacement. For a graph.

        Args:
          num_steps: integer scalar: batches to draw, at most `max_draw_steps`.
          batch_size: B.
          seed: of the run.
          step: int64 scalar, another one for every draw: the train step.

        Returns:
          What `batch` needs: a nest of tensors [num_steps, B, T, ...].
        """
        with tf.device('CPU:0'):
            oldest, size = tf.unstack(self.window)
            shape = [tf.cast(num_steps, tf.int32), batch_size]
            seeds = tf.stack([tf.constant(seed, tf.int64), tf.cast(step, tf.int64)])
            drawn = tf.random.stateless_uniform(shape, seeds, 0, size, tf.int64)
            starts = tf.gather(self.starts, (oldest + drawn) % self._max_size)
            return self.columns.draw(starts[..., None] + tf.range(self._length, dtype=tf.int64))

    def batch(self, drawn: Any, i: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]:
        """Returns batch `i` of a draw: the trajectory [B, T, ...], and `policy_version` int64 [B, T]. For a graph."""
        with tf.device('CPU:0'):
            columns = self.columns.batch(drawn, i)
            return columns['trajectory'], {'policy_version': columns['policy_version']}

    def add(self, chunks: np.ndarray) -> int:
        """Writes and publishes chunks uint8 [n, rows, num_bytes], for one thread that writes and draws by turns.

        Returns:
          The number of sequences in all of them.
        """
        published = self.num_published
        while len(chunks):
            chunks = chunks[self.write(chunks) :]
            self.publish()
        return self.num_published - published

    def write(self, chunks: np.ndarray) -> int:
        """Writes chunks uint8 [n, rows, num_bytes], as far as there is room; `publish` makes more.

        Returns:
          How many of them were taken.
        """
        starts, num_taken, num_sequences = [], 0, 0
        for chunk in chunks:
            begins = np.flatnonzero(chunk[: self._num_starts, 0])
            fingerprint = self._fingerprint(chunk)
            if len(begins) and fingerprint not in self._fingerprints:
                used = chunk[begins[0] : begins[-1] + self._length]
                place = self._allocate(len(used), len(begins), fingerprint)
                if place is None:
                    break
                self.columns.write(place, used)
                starts.append(place + begins - begins[0])
            num_taken += 1
            num_sequences += len(begins)
        with self._lock:
            self._new_starts += starts
            self.num_written += num_sequences
        return num_taken

    def publish(self) -> None:
        """Lets draws see what was written; the oldest sequences go where there are too many, or too little room."""
        if self.num_written == self.num_published:
            return
        with self._lock:
            self.num_published = self.num_written
            starts = np.concatenate([np.empty(0, np.int64), *self._new_starts])
            self._new_starts = []
            self._newest += len(starts)
            self._oldest = max(self._oldest, self._newest - self._max_size)
            while self._chunks and self._may_drop(self._chunks[0]):
                dropped = self._chunks.popleft()
                self._num_used -= dropped.num_rows
                self._oldest = max(self._oldest, dropped.next_start)
                self._fingerprints.discard(dropped.fingerprint)
        if len(starts):
            starts = starts[-self._max_size :]
            where = np.arange(self._newest - len(starts), self._newest) % self._max_size
            self.starts.scatter_update(tf.IndexedSlices(starts, where))
        self.window.assign([self._oldest % self._max_size, self.size])

    def _may_drop(self, oldest: _Chunk) -> bool:
        lacks_room = self._max_rows - self._num_used < self._spare_rows and oldest.next_start < self._newest
        return oldest.next_start <= self._oldest or lacks_room

    def _fingerprint(self, chunk: np.ndarray) -> int:
        """Its flags, which are random, and some of its bytes: to hash all of a picture would take its time."""
        if not self._leaves_out_known:
            return 0
        sampled = chunk.reshape(-1)[:: -(-chunk.size // _SAMPLED_BYTES)]
        return hash(chunk[:, 0].tobytes() + sampled.tobytes())

    def _allocate(self, num_rows: int, num_sequences: int, fingerprint: int) -> int | None:
        """Finds room for a chunk, in one piece. Returns its place; None if there is none before the next `publish`."""
        with self._lock:
            wraps = self._next_row + num_rows > self._max_rows
            needed = num_rows + (self._max_rows - self._next_row if wraps else 0)
            if self._num_used + needed > self._max_rows:
                return None
            place = 0 if wraps else self._next_row
            self._next_row = place + num_rows
            self._num_used += needed
            self._next_start += num_sequences
            self._chunks.append(_Chunk(needed, self._next_start, fingerprint))
            if self._leaves_out_known:
                self._fingerprints.add(fingerprint)
            return place
