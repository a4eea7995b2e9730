"""RingColumns: the columns of a ring of rows, in memory that suits how they are drawn."""

from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.replay.rows import RowLayout
from tflearn.sampling.shared_array import SharedArray

_WIDE_BYTES = 256


class RingColumns:
    """Rows, of which narrow columns lie side by side and wide ones each by itself.

    Narrow columns are drawn for many train steps at once, as whole rows: a place in memory that nobody has just read
    takes longer to reach than to read, and an operation longer to begin than to do. Wide ones are pictures and the
    like, for which neither matters, but another copy would; they are read step by step.

    Attributes:
      drawn_bytes: of a row, that a draw copies.
    """

    def __init__(self, layout: RowLayout, num_rows: int):
        """Allocates the memory, on the host.

        Args:
          layout: of the rows.
          num_rows: of the ring.
        """
        self._spec = layout.spec
        leaves, places = tf.nest.flatten(layout.spec), tf.nest.flatten(layout.places)
        self._is_wide = [place.stop - place.start > _WIDE_BYTES for place in places]
        self._narrow = RowLayout([leaf for leaf, wide in zip(leaves, self._is_wide, strict=True) if not wide])
        self.drawn_bytes = self._narrow.num_bytes
        self._wide: list[SharedArray] = []
        self._copies: list[tuple[slice, np.ndarray]] = []  # places in a row, and where they are written to
        with tf.device('CPU:0'):
            self._rows = SharedArray(num_rows, (self.drawn_bytes,), tf.uint8)
            end = 0
            for leaf, place, wide in zip(leaves, places, self._is_wide, strict=True):
                if wide:
                    self._wide.append(SharedArray(num_rows, leaf.shape, leaf.dtype))
                    self._copies.append((place, self._wide[-1].rows))
                else:
                    begin, end = end, end + place.stop - place.start
                    self._copies.append((place, self._rows.rows[:, begin:end]))

    def write(self, row: int, rows: np.ndarray) -> None:
        """Writes rows uint8 [n, num_bytes] to `row` and the n - 1 after it."""
        for place, column in self._copies:
            column[row : row + len(rows)] = rows[:, place]

    def draw(self, rows: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Reads what is narrow of the rows int64 [n, ...], for `batch`. For a graph."""
        return self._narrow.unpack(self._rows.gather(rows)), rows

    def batch(self, drawn: tuple[list[tf.Tensor], tf.Tensor], i: tf.Tensor) -> Any:
        """Returns columns of the rows [i, ...] of a draw: a nest of the layout. For a graph."""
        narrow = (tf.gather(column, i) for column in drawn[0])
        rows = tf.gather(drawn[1], i)
        wide = (column.gather(rows) for column in self._wide)
        return tf.nest.pack_sequence_as(self._spec, [next(wide if is_wide else narrow) for is_wide in self._is_wide])
