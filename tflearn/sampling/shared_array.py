"""SharedArray: memory that numpy writes and a compiled program reads."""

import contextlib
import math
import mmap
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_NUMPY_KINDS = 'iuf'  # that DLPack hands over as they are
_MIN_ROWS = 129  # what has no more than 128 elements becomes a constant of the programs that read it


class SharedArray:
    """Rows on the host that are a numpy array and a tensor at once.

    A thread that writes them needs no TensorFlow operation for it, each of which would take from the thread that
    trains. Nothing keeps a reader from seeing half of what is written: whoever writes and whoever reads have to agree.

    Attributes:
      rows: for writing: uint8 [num_rows, bytes of a row].
    """

    def __init__(self, num_rows: int, shape: Sequence[int], dtype: tf.DType):
        """Allocates the memory, all zeros; it is taken from the machine at once.

        Args:
          num_rows: of the array.
          shape: of a row.
          dtype: numbers or booleans.
        """
        numbers = np.dtype(dtype.as_numpy_dtype)
        row_bytes, num_allocated = math.prod(shape) * numbers.itemsize, max(num_rows, _MIN_ROWS)
        memory = mmap.mmap(-1, max(1, num_allocated * row_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # of a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)  # rows are read in random order
        allocated = np.frombuffer(memory, np.uint8, num_allocated * row_bytes)
        allocated.fill(0)
        self.rows = allocated.reshape(num_allocated, row_bytes)[:num_rows]
        self._dtype = dtype
        handed_over = numbers if numbers.kind in _NUMPY_KINDS else np.dtype(f'u{numbers.itemsize}')
        array = allocated.view(handed_over).reshape(num_allocated, *shape)
        self._tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    def gather(self, places: tf.Tensor) -> tf.Tensor:
        """Returns the rows of these places [...] as they are then: [..., *shape], of the dtype. For a graph."""
        gathered = tf.gather(self._tensor, places)
        if gathered.dtype == self._dtype:
            return gathered
        return tf.cast(gathered, tf.bool) if self._dtype == tf.bool else tf.bitcast(gathered, self._dtype)
