"""ColumnLayout: the columns of a step, packed as one row of bytes or joined as few tensors.

Reverb and tf.data have a fixed cost per column and item, and TensorFlow has one per operation, of
about a microsecond: so a row of one column is read several times faster than a nest of seven, and
its small columns are unpacked together. Packing takes one numpy view per column for the entire
batch.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.errors import UserTypeError, UserValueError

_MAX_NUMBERS = 256  # of a column; copies of larger ones would cost more than they save


def concat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns tensors [..., n] joined along their last axis,
    without an operation if a split has just made them.
    """
    if len(tensors) == 1:
        return tensors[0]
    whole = _divided(tensors, 'SplitV')
    return tf.concat(tensors, axis=-1) if whole is None else whole


def stack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns tensors [...] as one [..., their number],
    without an operation if an unstack has just made them.
    """
    whole = _divided(tensors, 'Unpack')
    return tf.stack(tensors, axis=-1) if whole is None else whole


def _divided(tensors: Sequence[tf.Tensor], kind: str) -> tf.Tensor | None:
    """Returns the tensor that one operation of `kind` divided into exactly these along its last axis; else None."""
    if tf.executing_eagerly() or any(not tf.is_symbolic_tensor(tensor) for tensor in tensors):
        return None
    operation = tensors[0].op
    if operation.type != kind or len(operation.outputs) != len(tensors):
        return None
    if any(tensor.op is not operation or tensor.value_index != i for i, tensor in enumerate(tensors)):
        return None
    whole = operation.inputs[0]
    axis = operation.get_attr('axis') if kind == 'Unpack' else tf.get_static_value(operation.inputs[2])
    return whole if axis in (-1, whole.shape.rank - 1) else None


def _is_small(shape: tf.TensorShape) -> bool:
    return shape.is_fully_defined() and shape.rank < 2 and shape.num_elements() <= _MAX_NUMBERS


class ColumnLayout:
    """The columns of a step, in the order in which tf.nest flattens them.

    As bytes they are at fixed offsets of a row; layouts with equal `text` can read each other's
    rows. As tensors, neighbours that have the same dtype and are vectors, or three or more numbers,
    are joined.

    Attributes:
      spec: nest of the columns' specs, without outer dimensions.
      joins: whether there is anything to join.
    """

    def __init__(self, spec: types.NestedTensorSpec):
        """Takes a nest of the specs of the columns, without outer dimensions."""
        self.spec, self._leaves = spec, tf.nest.flatten(spec)
        kinds = [
            (leaf.dtype, leaf.shape.rank) if _is_small(leaf.shape) else (i,) for i, leaf in enumerate(self._leaves)
        ]
        runs = [[i for i, _ in run] for _, run in itertools.groupby(enumerate(kinds), lambda item: item[1])]
        # To join two numbers saves no operation, since they must be divided. (Networks use joined
        # vectors as they are.)
        pairs = [len(run) == 2 and not self._leaves[run[0]].shape.rank for run in runs]
        self._runs = [
            part for run, pair in zip(runs, pairs, strict=True) for part in ([[i] for i in run] if pair else [run])
        ]
        self.joins = len(self._runs) < len(self._leaves)
        self._checked_structure = False

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """The specs of the joined tensors."""
        return [
            self._leaves[run[0]]
            if len(run) == 1
            else tf.TensorSpec((sum(self._sizes(run)),), self._leaves[run[0]].dtype, self._leaves[run[0]].name)
            for run in self._runs
        ]

    def _sizes(self, run: list[int]) -> list[int]:
        return [self._leaves[i].shape.num_elements() for i in run]

    def join(self, nest: Any) -> list[tf.Tensor]:
        """Returns the joined tensors [..., *shape] of a nest of tensors [..., *spec]."""
        return self._join(tf.nest.flatten(nest), stack, concat)

    def join_arrays(self, nest: Any) -> list[np.ndarray]:
        """Returns the same for numpy arrays."""
        last = {'axis': -1}
        return self._join(
            tf.nest.flatten(nest), functools.partial(np.stack, **last), functools.partial(np.concatenate, **last)
        )

    def _join(self, leaves: list[Any], of_numbers: Callable[..., Any], of_vectors: Callable[..., Any]) -> list[Any]:
        joined = []
        for run in self._runs:
            if len(run) == 1:
                joined.append(leaves[run[0]])
            else:
                join = of_vectors if self._leaves[run[0]].shape.rank else of_numbers
                joined.append(join([leaves[i] for i in run]))
        return joined

    def divide(self, joined: Sequence[tf.Tensor]) -> Any:
        """Returns the nest of tensors [..., *spec] that `join` joined."""
        leaves: list[tf.Tensor] = []
        for run, tensor in zip(self._runs, joined, strict=True):
            if len(run) == 1:
                leaves.append(tensor)
            elif self._leaves[run[0]].shape.rank:
                leaves += tf.split(tensor, self._sizes(run), axis=-1)
            else:
                leaves += tf.unstack(tensor, len(run), axis=-1)
        return tf.nest.pack_sequence_as(self.spec, leaves)

    @functools.cached_property
    def _columns(self) -> list[tuple[tuple[int, ...], np.dtype, slice]]:
        """Shapes, dtypes and bytes for numpy: TensorShape and DType are too slow for a check at every step."""
        columns, offset = [], 0
        for leaf in self._leaves:
            if not leaf.shape.is_fully_defined():
                raise UserValueError(f'got column {leaf.name!r} with shape {leaf.shape}; need fixed dimensions')
            if leaf.dtype in (tf.string, tf.variant, tf.resource):
                raise UserTypeError(f'got column {leaf.name!r} of {leaf.dtype.name}; need numbers or booleans')
            shape, end = tuple(leaf.shape), offset + leaf.dtype.size * math.prod(leaf.shape)
            columns.append((shape, np.dtype(leaf.dtype.as_numpy_dtype), slice(offset, end)))
            offset = end
        return columns

    @functools.cached_property
    def _record(self) -> np.dtype:
        shapes, dtypes, places = zip(*self._columns, strict=True)
        return np.dtype(
            {
                'names': [f'column_{i}' for i in range(len(places))],
                'formats': list(zip(dtypes, shapes, strict=True)),
                'offsets': [where.start for where in places],
                'itemsize': places[-1].stop,
            }
        )

    @functools.cached_property
    def num_bytes(self) -> int:
        """The size of a row [bytes].

        Raises:
          ValueError: if a column has an unknown dimension.
          TypeError: if a column's dtype has no fixed size (strings).
        """
        return self._record.itemsize

    @property
    def text(self) -> str:
        """The layout as text, such as 'reward:float32[] observation:float32[4]'.
        It is sent as the spec's name.
        """
        return ' '.join(
            f'{leaf.name or "column"}:{leaf.dtype.name}[{",".join(map(str, leaf.shape))}]' for leaf in self._leaves
        )

    @property
    def slices(self) -> Any:
        """The columns' offsets in a row: a nest of slices of its bytes."""
        return tf.nest.pack_sequence_as(self.spec, [where for _, _, where in self._columns])

    def pack(self, value: Any, rows: np.ndarray | None = None) -> np.ndarray:
        """Packs a batch of steps.

        Args:
          value: nest of arrays [B, ...] with the spec's structure, dtypes and shapes.
          rows: where to, uint8 [B, num_bytes] in one piece of memory; None makes an array.

        Returns:
          Rows uint8 [B, num_bytes].

        Raises:
          ValueError: if a column does not match the spec; it names the column.
        """
        if not self._checked_structure:
            tf.nest.assert_same_structure(value, self.spec)
            self._checked_structure = True
        columns = [np.asarray(column) for column in tf.nest.flatten(value)]
        if rows is None:
            rows = np.empty((len(columns[0]), self.num_bytes), np.uint8)
        batch_size, records = len(rows), rows.reshape(-1).view(self._record)
        for i, (column, (shape, dtype, _)) in enumerate(zip(columns, self._columns, strict=True)):
            if column.shape != (batch_size, *shape) or column.dtype != dtype:
                raise UserValueError(
                    f'got column {self._leaves[i].name!r} with shape {column.shape}, {column.dtype}; '
                    f'need {(batch_size, *shape)}, {dtype.name}'
                )
            records[self._record.names[i]] = column  # type: ignore[index]
        return rows

    def column(self, rows: np.ndarray, name: str) -> np.ndarray:
        """Returns one column of packed rows [B, num_bytes]: the first whose spec has this name,
        [B, *its shape].
        """
        names = [leaf.name for leaf in self._leaves]
        shape, dtype, where = self._columns[names.index(name)]
        return np.ascontiguousarray(rows[:, where]).view(dtype).reshape(len(rows), *shape)

    def unpack(self, rows: tf.Tensor) -> types.NestedTensor:
        """Unpacks rows uint8 [..., num_bytes] into the nest of tensors [..., *column shape].
        Runs in a graph.
        """
        return self.divide(self.unpack_joined(rows))

    def unpack_joined(self, rows: tf.Tensor) -> list[tf.Tensor]:
        """Unpacks rows uint8 [..., num_bytes] into the joined tensors [..., *shape].
        Runs in a graph.
        """
        outer = rows.shape[:-1].as_list()
        # Then there may be no rows, so that no dimension follows from the others.
        if outer.count(None) > 1:
            known = tf.shape(rows)
            outer = [known[i] if size is None else size for i, size in enumerate(outer)]
        outer = [-1 if size is None else size for size in outer]
        # One split for all: each operation costs about a microsecond, whatever it does.
        sizes = [spec.dtype.size * spec.shape.num_elements() for spec in self.specs]
        joined = []
        for column, spec in zip(tf.split(rows, sizes, axis=-1), self.specs, strict=True):
            size = spec.dtype.size
            shape = [*outer, *spec.shape, *([size] if size > 1 else [])]
            if shape[len(outer) :] != [column.shape[-1]]:
                column = tf.reshape(column, shape)
            if spec.dtype == tf.bool:
                column = tf.cast(column, tf.bool)
            elif spec.dtype != tf.uint8:
                column = tf.bitcast(column, spec.dtype)
            joined.append(column)
        return joined
