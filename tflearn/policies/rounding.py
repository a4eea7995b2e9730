"""Whether the results of a policy's program in another graph are its own but for rounding.

TensorFlow fuses layers in one graph and not in another, which rounds differently. A float may differ by a share of the
magnitude of its element in the batch. What differs by more, and each integer, must be what the program itself returns
for weights and inputs that differ by about as much as rounding: so another action is accepted for a tie alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

_NUM_PERTURBED = 16  # of an exact tie one in 2^16 finds no other action
_LOW_PRECISION = frozenset({tf.bfloat16.as_datatype_enum, tf.float16.as_datatype_enum})


class Rounding(NamedTuple):
    """The precision of a program.

    Attributes:
      tolerance: the greatest difference of a float, as a share of its element's greatest magnitude in the batch.
      perturbation: the change of weights and inputs, as a share of each, that is like rounding each of them.
    """

    tolerance: float
    perturbation: float

    @classmethod
    def of(cls, program: Any) -> 'Rounding':
        """Returns that of a concrete function, by the coarsest floats that it computes with."""
        return cls(3e-2, 1e-2) if has_low_precision(program) else cls(1e-4, 1e-5)


class Program:
    """A traced policy function, with inputs and the values of its variables: what another graph's results must be."""

    def __init__(
        self,
        program: Any,
        leaves: Sequence[tf.Tensor],
        variables: Sequence[tf.Variable] = (),
        values: Sequence[tf.Tensor] = (),
    ):
        """Calls nothing yet.

        Args:
          program: a concrete function.
          leaves: its inputs, [B, ...] each.
          variables: those of its variables whose values are given.
          values: in their order; the function's own variables stay as they are.
        """
        self._program, self._leaves = program, leaves
        self._variables, self._values = variables, values
        self._rounding = Rounding.of(program)

    def results(self) -> list[tf.Tensor]:
        """Returns the function's flat results."""
        return self._call(self._leaves, self._values)

    def structured_results(self) -> Any:
        """Returns the results as the function returns them."""
        return tf.nest.pack_sequence_as(self._program.structured_outputs, self.results())

    def differing(self, got: Sequence[Any], expected: Sequence[Any]) -> list[int]:
        """Returns the indices of flat results, or of the first of them, that are not `expected` but for rounding."""
        wrong = [i for i, pair in enumerate(zip(got, expected, strict=True)) if not self._are_close(*pair)]
        if wrong and all(_same_kind(got[i], expected[i]) for i in wrong):
            own, perturbed = self.results(), self._perturbed()
            wrong = [
                i
                for i in wrong
                if not self._are_close(own[i], expected[i])  # `expected` is of other weights
                or not _is_among(got[i], [expected[i], *(each[i] for each in perturbed)])
            ]
        return wrong

    @property
    def tolerance(self) -> float:
        """The greatest difference of a float, as a share."""
        return self._rounding.tolerance

    def _are_close(self, got: Any, expected: Any) -> bool:
        if not _same_kind(got, expected):
            return False
        got, expected = _numbers(got), _numbers(expected)
        if got.dtype.kind != 'f' or not got.size:
            return np.array_equal(got, expected)
        magnitude = np.where(np.isfinite(expected), np.abs(expected), 0)
        bound = self.tolerance * (np.max(magnitude, axis=0) if got.ndim else magnitude)
        return bool(np.all(_difference(got, expected) <= bound))

    def _perturbed(self) -> list[list[tf.Tensor]]:
        rng = np.random.default_rng(0)

        def change(tensor: tf.Tensor) -> tf.Tensor:
            if not tensor.dtype.is_floating:
                return tensor
            share = rng.uniform(-self._rounding.perturbation, self._rounding.perturbation, tensor.shape)
            return tf.cast(tf.cast(tensor, tf.float64) * (1 + share), tensor.dtype)

        return [self._call([*map(change, self._leaves)], [*map(change, self._values)]) for _ in range(_NUM_PERTURBED)]

    def _call(self, leaves: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return call(self._program, leaves, _copies(self._variables, values))


def has_low_precision(program: Any) -> bool:
    """Returns whether a concrete function computes with floats of 16 bits."""
    graph = program.graph.as_graph_def()
    nodes = [*graph.node, *(node for definition in graph.library.function for node in definition.node_def)]
    return any(value.type in _LOW_PRECISION for node in nodes for value in node.attr.values())


def call(program: Any, leaves: Sequence[tf.Tensor], copies: Mapping[int, tf.Variable] | None = None) -> list[tf.Tensor]:
    """Calls a traced function by its operation, which avoids the binding of arguments in Python.

    `copies` are other variables for it to use, by the identities of the handles of its own ones.
    """
    copies = copies or {}
    captured = [copies[id(own)].handle if id(own) in copies else own for own in program.captured_inputs]
    outputs: list[tf.Tensor] = tf.raw_ops.StatefulPartitionedCall(
        args=[*leaves, *captured], Tout=[output.dtype for output in program.outputs], f=program
    )
    return outputs


def _copies(variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]) -> dict[int, tf.Variable]:
    copies = {}
    for own, value in zip(variables, values, strict=True):
        with tf.device(own.device):
            copies[id(own.handle)] = tf.Variable(value, trainable=False, shape=own.shape)
    return copies


def _is_among(got: Any, answers: Sequence[Any]) -> bool:
    """Returns whether each number is one of the answers' if it is an integer, else within twice their range."""
    got, each = _numbers(got), np.stack([_numbers(answer) for answer in answers])
    if got.dtype.kind != 'f':
        return bool(np.all(np.any(each == got, axis=0)))
    width = np.ptp(each, axis=0)
    return bool(np.all((got >= each.min(axis=0) - width) & (got <= each.max(axis=0) + width)))


def _difference(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Returns the absolute differences: 0 where both are infinite alike, or NaN."""
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    with np.errstate(invalid='ignore'):
        difference = np.abs(got - expected)
    return np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference))


def _same_kind(got: Any, expected: Any) -> bool:
    return bool(got.dtype == expected.dtype and got.shape == expected.shape)


def _numbers(tensor: Any) -> np.ndarray:
    """Returns floats of 64 bits, which numpy can compute with, or the array."""
    array = np.asarray(tensor)
    return array.astype(np.float64) if tf.as_dtype(array.dtype).is_floating else array
