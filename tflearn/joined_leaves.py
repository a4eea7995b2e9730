"""JoinedLeaves: small tensors of a nest joined to few, since each operation takes a microsecond, whatever it does."""

import itertools
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.typing import types

_MAX_NUMBERS = 256  # of a leaf; copies of larger ones would cost more than they save


class JoinedLeaves:
    """Joins neighbours among the leaves of a nest that have the same dtype and are vectors, or numbers.

    Attributes:
      joins: whether there is anything to join.
    """

    def __init__(self, spec: types.NestedTensorSpec):
        """Takes a nest of the specs of the leaves, without outer dimensions."""
        leaves = tf.nest.flatten(spec)
        kinds = [
            (leaf.dtype, leaf.shape.rank) if leaf.shape.rank < 2 and leaf.shape.num_elements() <= _MAX_NUMBERS else (i,)
            for i, leaf in enumerate(leaves)
        ]
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
        return self._join(tf.nest.flatten(nest), tf.stack, tf.concat)

    def join_arrays(self, nest: Any) -> list[np.ndarray]:
        """Returns the same for numpy arrays."""
        return self._join(tf.nest.flatten(nest), np.stack, np.concatenate)

    def _join(self, leaves: list[Any], stack: Any, concat: Any) -> list[Any]:
        joined = []
        for run in self._runs:
            if len(run) == 1:
                joined.append(leaves[run[0]])
            else:
                put_together = concat if self._leaves[run[0]].shape.rank else stack
                joined.append(put_together([leaves[i] for i in run], axis=-1))
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
