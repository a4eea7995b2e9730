"""JoinedLeaves: small tensors of a nest joined to few, since each operation takes a microsecond, whatever it does."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.typing import types

_MAX_NUMBERS = 256  # of a leaf; copies of larger ones would cost more than they save


def concat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns tensors [..., n] joined along their last axis, without an operation if a split has just made them."""
    if len(tensors) == 1:
        return tensors[0]
    whole = _divided(tensors, 'SplitV')
    return tf.concat(tensors, axis=-1) if whole is None else whole


def stack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns tensors [...] as one [..., their number], without an operation if an unstack has just made them."""
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


class JoinedLeaves:
    """Joins neighbours among the leaves of a nest that have the same dtype and are vectors, or numbers.

    Attributes:
      joins: whether there is anything to join.
    """

    def __init__(self, spec: types.NestedTensorSpec):
        """Takes a nest of the specs of the leaves, without outer dimensions."""
        leaves = tf.nest.flatten(spec)
        kinds = [(leaf.dtype, leaf.shape.rank) if _is_small(leaf.shape) else (i,) for i, leaf in enumerate(leaves)]
        self._spec, self._leaves = spec, leaves
        self._runs = [[i for i, _ in run] for _, run in itertools.groupby(enumerate(kinds), lambda item: item[1])]
        self.joins = len(self._runs) < len(leaves)

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

    def divide(self, joined: list[tf.Tensor]) -> Any:
        """Returns the nest of tensors [..., *spec] that `join` joined."""
        leaves: list[tf.Tensor] = []
        for run, tensor in zip(self._runs, joined, strict=True):
            if len(run) == 1:
                leaves.append(tensor)
            elif self._leaves[run[0]].shape.rank:
                leaves += tf.split(tensor, self._sizes(run), axis=-1)
            else:
                leaves += tf.unstack(tensor, len(run), axis=-1)
        return tf.nest.pack_sequence_as(self._spec, leaves)
