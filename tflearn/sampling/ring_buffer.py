"""RingBuffer: the newest chunks of a replay in memory, and the offsets of their sequences; RingColumns: their rows."""

import collections
import contextlib
import dataclasses
import math
import mmap
import operator
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.layout import ColumnLayout
from tflearn.core.resumable import Resumable
from tflearn.replay.chunks import NEW, chunk_id, chunk_rows, with_version
from tflearn.replay.storage import MIRROR_SPARE_CHUNKS, Storage
from tflearn.sampling.source import Batch

_MAX_SPAN = 0.125  # of all sequences, between the first and the last sequence of a chunk that arrives in parts
_MAX_ROWS_SPAN = 0.5  # the same for rows, so that the oldest chunk never holds the newest sequence
_NUMPY_KINDS = 'iuf'  # the kinds that DLPack supports
_MIN_ROWS = 129  # a tensor of at most 128 elements would become a constant of the programs that read it

_WIDE_BYTES = 256
_MAX_DRAWN_ROWS = 1 << 16
_MAX_DRAWN_BYTES = 16 << 20


@dataclasses.dataclass
class _Chunk:
    """A chunk in the ring.

    Attributes:
      num_rows: the rows that it takes in the ring.
      offset: the index in the ring of the chunk's row `first_row`.
      first_row: the index of its first row that is in the ring.
      first_start: the number of sequences ever written before its first one.
      first_used: the number of rows ever allocated before its own.
      num_read: the number of its rows that were read, up to the newest that begins a sequence.
      next_start: the number of sequences ever written up to its last one.
    """

    id: int
    num_rows: int
    offset: int
    first_row: int
    first_start: int
    first_used: int
    num_read: int = 0
    next_start: int = 0


_fields = operator.attrgetter(*(field.name for field in dataclasses.fields(_Chunk)))


class RingBuffer(Resumable):
    """Rows in a ring of memory, and the offsets at which their sequences begin, oldest first.

    One thread may `write` while another draws: rows are written to memory without drawable sequences, and are drawn
    only after `publish`. The drawing thread publishes, between two draws, so no batch ever holds a sequence that is
    half overwritten.

    Attributes:
      starts: int64 variable [max_size], the rows that begin a sequence, itself a ring.
      window: int64 variable [2], the index in `starts` of the oldest sequence, and the number of sequences.
      num_written: new sequences in all chunks ever written, including those that were in the ring already.
      num_published: the number of these sequences that are visible to draws.
    """

    _KEPT = (
        '_oldest',
        '_newest',
        'num_written',
        'num_published',
        '_next_row',
        '_num_used',
        '_num_ever_used',
        '_next_start',
        '_new_starts',
    )

    def __init__(self, storage: Storage):
        """Allocates the memory, on the host."""
        self._length = storage.experience.slicing.num_rows
        self._num_starts, self._row_bytes = storage.num_starts, storage.layout.num_bytes
        self._max_size = storage.experience.replay.max_size
        self._max_rows = storage.mirror_rows
        self._spare_rows = MIRROR_SPARE_CHUNKS * storage.chunk_shape[0]
        self.columns = RingColumns(storage.layout, storage.mirror_rows)
        with tf.device('CPU:0'):
            self.starts = tf.Variable(tf.zeros((self._max_size,), tf.int64), trainable=False)
            self.window = tf.Variable(tf.zeros((2,), tf.int64), trainable=False)
        self._oldest = self._newest = 0  # range of drawable sequences, counted over all ever written
        self.num_written = self.num_published = 0
        self._lock = threading.Lock()  # guards the attributes below
        self._next_row = self._num_used = self._num_ever_used = self._next_start = 0
        self._chunks: collections.deque[_Chunk] = collections.deque()
        self._known: dict[int, _Chunk] = {}
        self._new_starts: list[np.ndarray] = []

    @property
    def size(self) -> int:
        """The number of sequences that can be drawn."""
        return self._newest - self._oldest

    @property
    def window_ever(self) -> tuple[int, int]:
        """The oldest sequence that can be drawn, and the one after the newest, counted over all ever written."""
        return self._oldest, self._newest

    @property
    def has_dropped(self) -> bool:
        """Whether the oldest sequences were dropped already, since the ring was full."""
        return self._oldest > 0

    def content(self) -> dict[str, Any]:
        """See `Resumable`; for the thread that writes and draws."""
        return {
            **super().content(),
            'columns': self.columns.content(min(self._max_rows, self._num_ever_used)),
            'starts': self.starts[: min(self._newest, self._max_size)].numpy(),
            'chunks': np.array(list(map(_fields, self._chunks)), np.int64),  # many: each by itself would take long
        }

    def set_content(self, content: Mapping[str, Any]) -> None:
        """See `Resumable`."""
        super().set_content(content)
        self.columns.set_content(content['columns'])
        self.starts[: len(content['starts'])].assign(content['starts'])
        self.window.assign([self._oldest % self._max_size, self.size])
        self._chunks = collections.deque(_Chunk(*fields) for fields in content['chunks'].tolist())
        self._known = {chunk.id: chunk for chunk in self._chunks}

    def max_draw_steps(self, batch_size: int) -> int:
        """Returns the maximum number of batches that `draw` draws at once."""
        return self.columns.max_draw_steps(batch_size * self._length)

    def draw(self, num_steps: tf.Tensor, batch_size: int | tf.Tensor, seed: int, step: tf.Tensor) -> Any:
        """Draws sequences uniformly, with replacement. For a graph.

        Args:
          num_steps: integer scalar, the number of batches, at most `max_draw_steps`.
          batch_size: B; of an empty ring 0.
          step: int64 scalar, the train step, which must differ between draws.

        Returns:
          A nest of tensors [num_steps, B, T, ...] for `batch`.
        """
        with tf.device('CPU:0'):
            oldest, size = tf.unstack(self.window)
            shape = [tf.cast(num_steps, tf.int32), batch_size]
            seeds = tf.stack([tf.constant(seed, tf.int64), tf.cast(step, tf.int64)])
            drawn = tf.random.stateless_uniform(shape, seeds, 0, size, tf.int64)
            return self.read(oldest + drawn)

    def read(self, sequences: tf.Tensor) -> Any:
        """Reads sequences int64 [n, B], counted as in `window_ever`. Returns what `draw` does. For a graph."""
        with tf.device('CPU:0'):
            starts = tf.gather(self.starts, sequences % self._max_size)
            return self.columns.draw(starts[..., None] + tf.range(self._length, dtype=tf.int64))

    def batch(self, drawn: Any, i: tf.Tensor) -> Batch:
        """Returns batch `i` of a draw: the trajectory [B, T, ...], and `policy_version` int64 [B, T]. For a graph.

        For several indices `i` [K], all have the leading dimension K.
        """
        with tf.device('CPU:0'):
            return with_version(self.columns.batch(drawn, i))

    def add(self, chunks: np.ndarray | Sequence[np.ndarray]) -> int:
        """Writes and publishes chunks (see `write`), on the thread that draws. Returns the number of new sequences."""
        published = self.num_published
        while len(chunks):
            chunks = chunks[self.write(chunks) :]
            self.publish()
        return self.num_published - published

    def write(self, chunks: np.ndarray | Sequence[np.ndarray]) -> int:
        """Writes chunks (see `chunks`) or parts of chunks while there is room (`publish` makes more). Returns how many.

        If the ring holds an earlier part of a chunk, only the missing rows are written.

        Args:
          chunks: each uint8 [ID_BYTES + bytes of its rows].
        """
        starts, num_taken, num_sequences = [], 0, 0
        for chunk in chunks:
            rows = chunk_rows(chunk, self._row_bytes)
            flags = rows[: self._num_starts, 0]
            begins = np.flatnonzero(flags)
            known = self._known.get(chunk_id(chunk))
            if known is not None:
                begins = begins[begins >= known.num_read]
            if len(begins):
                offset = self._extend(known, begins) if known else None
                if offset is None:
                    offset = self._allocate(chunk_id(chunk), rows, begins)
                if offset is None:
                    break
                self.columns.write(offset, rows[begins[0] : begins[-1] + self._length])
                starts.append(offset + begins - begins[0])
            num_taken += 1
            num_sequences += int(np.count_nonzero(flags == NEW))
        with self._lock:
            self._new_starts += starts
            self.num_written += num_sequences
        return num_taken

    def publish(self) -> None:
        """Makes written sequences visible to draws; drops the oldest ones if there are too many or room is short."""
        if self.num_written == self.num_published and not self._new_starts:
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
                if self._known.get(dropped.id) is dropped:
                    del self._known[dropped.id]
        if len(starts):
            starts = starts[-self._max_size :]
            where = np.arange(self._newest - len(starts), self._newest) % self._max_size
            self.starts.scatter_update(tf.IndexedSlices(starts, where))
        self.window.assign([self._oldest % self._max_size, self.size])

    def _may_drop(self, oldest: _Chunk) -> bool:
        lacks_room = self._max_rows - self._num_used < self._spare_rows and oldest.next_start < self._newest
        return oldest.next_start <= self._oldest or lacks_room

    def _extend(self, known: _Chunk, begins: np.ndarray) -> int | None:
        """Uses room that was allocated for a chunk. Returns its offset; None if the chunk is gone, or too old."""
        with self._lock:
            # New rows in an old chunk would keep its room, and that of all chunks after it, allocated for too long.
            too_old = self._next_start - known.first_start > self._max_size * _MAX_SPAN
            too_old |= self._num_ever_used - known.first_used > self._max_rows * _MAX_ROWS_SPAN
            if too_old or self._known.get(known.id) is not known:
                return None
            self._count(known, begins)
            return known.offset + int(begins[0]) - known.first_row

    def _allocate(self, chunk: int, rows: np.ndarray, begins: np.ndarray) -> int | None:
        """Allocates contiguous room for a chunk's rows. Returns its offset; None if there is none before `publish`."""
        # An unfinished chunk ends with rows of zeros, and gets room for all rows that may follow.
        end = begins[-1] + self._length if rows[-1].any() else len(rows)
        num_rows = int(end - begins[0])
        with self._lock:
            wraps = self._next_row + num_rows > self._max_rows
            needed = num_rows + (self._max_rows - self._next_row if wraps else 0)
            if self._num_used + needed > self._max_rows:
                return None
            offset = 0 if wraps else self._next_row
            self._next_row = offset + num_rows
            self._num_used += needed
            self._chunks.append(_Chunk(chunk, needed, offset, int(begins[0]), self._next_start, self._num_ever_used))
            self._num_ever_used += needed
            self._known[chunk] = self._chunks[-1]
            self._count(self._chunks[-1], begins)
            return offset

    def _count(self, chunk: _Chunk, begins: np.ndarray) -> None:
        self._next_start += len(begins)
        chunk.num_read, chunk.next_start = int(begins[-1]) + 1, self._next_start


class SharedArray:
    """Rows on the host that are both a numpy array and a tensor.

    A thread can write them without TensorFlow operations, which would slow down the training thread. Nothing keeps a
    reader from seeing a row that is half written: writer and reader have to coordinate.

    Attributes:
      rows: uint8 [num_rows, bytes of a row], for writing.
    """

    def __init__(self, num_rows: int, shape: Sequence[int], dtype: tf.DType):
        """Allocates the memory immediately, filled with zeros, for numbers or booleans."""
        numbers = np.dtype(dtype.as_numpy_dtype)
        row_bytes, num_allocated = math.prod(shape) * numbers.itemsize, max(num_rows, _MIN_ROWS)
        memory = mmap.mmap(-1, max(1, num_allocated * row_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # not every system has huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)  # rows are read in random order
        allocated = np.frombuffer(memory, np.uint8, num_allocated * row_bytes)
        allocated.fill(0)
        self.rows = allocated.reshape(num_allocated, row_bytes)[:num_rows]
        self._dtype = dtype
        stored = numbers if numbers.kind in _NUMPY_KINDS else np.dtype(f'u{numbers.itemsize}')
        array = allocated.view(stored).reshape(num_allocated, *shape)
        self._tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    def gather(self, indices: tf.Tensor) -> tf.Tensor:
        """Returns the current rows at `indices` [...]: [..., *shape], of the dtype. For a graph."""
        gathered = tf.gather(self._tensor, indices)
        if gathered.dtype == self._dtype:
            return gathered
        return tf.cast(gathered, tf.bool) if self._dtype == tf.bool else tf.bitcast(gathered, self._dtype)


class RingColumns:
    """Rows in memory: narrow columns side by side, each wide column in its own array.

    Narrow columns are drawn for many train steps at once, as complete rows, since cache misses and the overhead of
    operations cost more than the copy. For wide columns, such as images, another copy would cost more; they are read
    step by step.

    Attributes:
      drawn_bytes: bytes of a row that a draw copies.
      num_bytes: bytes of a row.
    """

    def __init__(self, layout: ColumnLayout, num_rows: int):
        """Allocates the memory, on the host."""
        self._spec, self.num_bytes = layout.spec, layout.num_bytes
        leaves, slices = tf.nest.flatten(layout.spec), tf.nest.flatten(layout.slices)
        self._is_wide = [where.stop - where.start > _WIDE_BYTES for where in slices]
        self._narrow = ColumnLayout([leaf for leaf, wide in zip(leaves, self._is_wide, strict=True) if not wide])
        self.drawn_bytes = self._narrow.num_bytes
        self._wide: list[SharedArray] = []
        self._copies: list[tuple[slice, np.ndarray]] = []  # slices of a row, and the arrays that they are written to
        with tf.device('CPU:0'):
            self._rows = SharedArray(num_rows, (self.drawn_bytes,), tf.uint8)
            end, first, last = 0, 0, -1  # of the columns that the newest copy writes
            for leaf, where, wide in zip(leaves, slices, self._is_wide, strict=True):
                if wide:
                    self._wide.append(SharedArray(num_rows, leaf.shape, leaf.dtype))
                    self._copies.append((where, self._wide[-1].rows))
                else:
                    begin, end = end, end + where.stop - where.start
                    if begin and last == where.start:  # neighbours in both: one copy for all
                        where, begin = slice(first, where.stop), begin - (where.start - first)
                        self._copies.pop()
                    first, last = where.start, where.stop
                    self._copies.append((where, self._rows.rows[:, begin:end]))

    def write(self, row: int, rows: np.ndarray) -> None:
        """Writes rows uint8 [n, num_bytes] to `row` and the n - 1 after it."""
        for where, column in self._copies:
            column[row : row + len(rows)] = rows[:, where]

    def content(self, num_rows: int) -> list[np.ndarray]:
        """Returns the first rows, by array."""
        return [array.rows[:num_rows] for array in (self._rows, *self._wide)]

    def set_content(self, content: Sequence[np.ndarray]) -> None:
        """Writes what `content` returned."""
        for array, rows in zip((self._rows, *self._wide), content, strict=True):
            array.rows[: len(rows)] = rows

    def max_draw_steps(self, batch_rows: int) -> int:
        """Returns the maximum number of batches, of so many rows each, that should be drawn at once."""
        return max(1, min(_MAX_DRAWN_ROWS, _MAX_DRAWN_BYTES // self.drawn_bytes) // batch_rows)

    def draw(self, rows: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Reads the narrow columns of the rows int64 [n, ...], for `batch`. For a graph."""
        return self._narrow.unpack_joined(self._rows.gather(rows)), rows

    def batch(self, drawn: tuple[list[tf.Tensor], tf.Tensor], i: tf.Tensor) -> Any:
        """Returns the columns of rows [i, ...] of a draw, of one or several i: a nest of the layout. For a graph."""
        # A part of a tensor that begins where its memory is aligned is not copied, unlike what is gathered.
        take = tf.gather if tf.convert_to_tensor(i).shape.rank else operator.getitem
        narrow = iter(self._narrow.divide([take(column, i) for column in drawn[0]]))
        rows = take(drawn[1], i)
        wide = (column.gather(rows) for column in self._wide)
        return tf.nest.pack_sequence_as(self._spec, [next(wide if is_wide else narrow) for is_wide in self._is_wide])
