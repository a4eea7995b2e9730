"""RowLayout: packs all columns of one environment step into one uint8 vector at fixed offsets.

Reverb and tf.data have a fixed cost per column and item, so a row of one column is read several times faster than a
nest of seven. Packing takes one numpy view per column for the entire batch; unpacking takes one split and a bitcast per
column, in the graph, after batching.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.errors import UserTypeError, UserValueError


class RowLayout:
    """The offsets of a row's columns. Layouts with equal `text` can read each other's rows."""

    def __init__(self, spec: types.NestedTensorSpec):
        """Lays out the columns in the order in which tf.nest flattens them.

        Args:
          spec: nest of tensor specs of one step (no outer dimensions).

        Raises:
          ValueError: if a column has an unknown dimension.
          TypeError: if a column's dtype has no fixed size (strings).
        """
        self.spec = spec
        self._leaves = tf.nest.flatten(spec)
        # Shapes and dtypes for numpy: TensorShape and DType are too slow for a check at every step.
        self._columns: list[tuple[tuple[int, ...], np.dtype, slice]] = []
        self._checked_structure = False
        offset = 0
        for leaf in self._leaves:
            if not leaf.shape.is_fully_defined():
                raise UserValueError(f'got column {leaf.name!r} with shape {leaf.shape}; need fixed dimensions')
            if leaf.dtype in (tf.string, tf.variant, tf.resource):
                raise UserTypeError(f'got column {leaf.name!r} of {leaf.dtype.name}; need numbers or booleans')
            shape, num_bytes = tuple(leaf.shape), leaf.dtype.size * math.prod(leaf.shape)
            self._columns.append((shape, np.dtype(leaf.dtype.as_numpy_dtype), slice(offset, offset + num_bytes)))
            offset += num_bytes
        self.num_bytes = offset
        self._names = [f'column_{i}' for i in range(len(self._leaves))]
        self._record = np.dtype(
            {
                'names': self._names,
                'formats': [(dtype, shape) for shape, dtype, _ in self._columns],
                'offsets': [where.start for _, _, where in self._columns],
                'itemsize': offset,
            }
        )

    @property
    def text(self) -> str:
        """The layout as text, such as 'reward:float32[] observation:float32[4]'. It is sent as the spec's name."""
        return ' '.join(
            f'{leaf.name or "column"}:{leaf.dtype.name}[{",".join(map(str, leaf.shape))}]' for leaf in self._leaves
        )

    def pack(self, value: Any) -> np.ndarray:
        """Packs a batch of steps.

        Args:
          value: nest of arrays [B, ...] with the spec's structure, dtypes and shapes.

        Returns:
          Rows uint8 [B, num_bytes].

        Raises:
          ValueError: if a column does not match the spec; it names the column.
        """
        if not self._checked_structure:
            tf.nest.assert_same_structure(value, self.spec)
            self._checked_structure = True
        columns = [np.asarray(column) for column in tf.nest.flatten(value)]
        batch_size = len(columns[0])
        records = np.empty(batch_size, self._record)
        for column, leaf, name, (shape, dtype, _) in zip(
            columns, self._leaves, self._names, self._columns, strict=True
        ):
            if column.shape != (batch_size, *shape) or column.dtype != dtype:
                raise UserValueError(
                    f'got column {leaf.name!r} with shape {column.shape}, {column.dtype}; '
                    f'need {(batch_size, *shape)}, {leaf.dtype.name}'
                )
            records[name] = column
        return records.view(np.uint8).reshape(batch_size, self.num_bytes)

    @property
    def slices(self) -> Any:
        """The columns' offsets in a row: a nest of slices of its bytes."""
        return tf.nest.pack_sequence_as(self.spec, [where for _, _, where in self._columns])

    def column(self, rows: np.ndarray, name: str) -> np.ndarray:
        """Returns one column of packed rows [B, num_bytes]: the first whose spec has this name, [B, *its shape]."""
        names = [leaf.name for leaf in self._leaves]
        shape, dtype, where = self._columns[names.index(name)]
        return np.ascontiguousarray(rows[:, where]).view(dtype).reshape(len(rows), *shape)

    def unpack(self, rows: tf.Tensor) -> types.NestedTensor:
        """Unpacks rows uint8 [..., num_bytes] into the nest of tensors [..., *column shape]. Runs in a graph."""
        outer = rows.shape[:-1].as_list()
        if outer.count(None) > 1:  # then there may be no rows, so that no dimension follows from the others
            known = tf.shape(rows)
            outer = [known[i] if size is None else size for i, size in enumerate(outer)]
        outer = [-1 if size is None else size for size in outer]
        # One split for all columns: each operation costs about a microsecond, whatever it does.
        sizes = [where.stop - where.start for _, _, where in self._columns]
        columns = []
        for column, leaf in zip(tf.split(rows, sizes, axis=-1), self._leaves, strict=True):
            size = leaf.dtype.size
            shape = [*outer, *leaf.shape, *([size] if size > 1 else [])]
            if shape[len(outer) :] != [column.shape[-1]]:
                column = tf.reshape(column, shape)
            if leaf.dtype == tf.bool:
                column = tf.cast(column, tf.bool)
            elif leaf.dtype != tf.uint8:
                column = tf.bitcast(column, leaf.dtype)
            columns.append(column)
        return tf.nest.pack_sequence_as(self.spec, columns)
