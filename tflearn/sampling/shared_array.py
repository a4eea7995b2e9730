"""SharedArray: memory that numpy writes and a compiled program reads."""

import contextlib
import math
import mmap
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_NUMPY_KINDS = 'iuf'  # the kinds that DLPack supports
_MIN_ROWS = 129  # a tensor of at most 128 elements would become a constant of the programs that read it


class SharedArray:
    """Rows on the host that are both a numpy array and a tensor.

    A thread can write them without TensorFlow operations, which would slow down the training thread. Nothing keeps a
    reader from seeing a row that is half written: writer and reader have to coordinate.

    Attributes:
      rows: uint8 [num_rows, bytes of a row], for writing.
    """

    def __init__(self, num_rows: int, shape: Sequence[int], dtype: tf.DType):
        """Allocates the memory immediately, filled with zeros.

        Args:
          dtype: the dtype, numbers or booleans.
        """
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
