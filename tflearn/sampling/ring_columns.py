"""RingColumns: the columns of a ring buffer's rows, laid out for fast draws in memory that numpy writes."""

import contextlib
import math
import mmap
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.layout import ColumnLayout

_NUMPY_KINDS = 'iuf'  # the kinds that DLPack supports
_MIN_ROWS = 129  # a tensor of at most 128 elements would become a constant of the programs that read it

_WIDE_BYTES = 256
_MAX_DRAWN_ROWS = 1 << 16
_MAX_DRAWN_BYTES = 16 << 20


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
