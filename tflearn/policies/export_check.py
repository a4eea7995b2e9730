"""Compares exported policies with the live policy before they are published:
are they equal but for rounding?

TensorFlow fuses layers in one graph and not in another, which rounds differently. A float may
differ by a share of the magnitude of its element in the batch. What differs by more, and each
integer, must be what the program itself returns for weights and inputs that differ by about as much
as rounding: so another action is accepted for a tie alone.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.action_mask import mask_of
from tflearn.core.errors import UserRuntimeError
from tflearn.core.types import leaf_paths
from tflearn.policies import loaded_model, signatures
from tflearn.policies.updates import ModelFiles

_NUM_PERTURBED = 16  # of an exact tie one in 2^16 finds no other action
_LOW_PRECISION = frozenset({tf.bfloat16.as_datatype_enum, tf.float16.as_datatype_enum})


_BATCH_SIZE = 16


# Whether no version was compared before; and by what the live policy is then compared: the values
# of its variables, or later its actions for a fixed batch, none of a stochastic policy.
Snapshot = tuple[bool, Sequence[tf.Tensor]]


class ExportMismatch(UserRuntimeError):
    """An exported policy acts differently from the live one."""


class ExportCheck:
    """Compares the actions of the exported policy with those of the live one, on a random batch.

    Results are compared but for their rounding; those of a stochastic policy in shape and dtype.
    The first version is loaded with `tf.saved_model.load`, and each of its signatures is compared.
    Later versions have the same graph, so only their weights are read, into the loaded first
    version: they must equal the snapshot bit by bit, and the actions must be those of the live
    policy at the snapshot. Training may go on during both: the live policy's programs are called on
    copies of its variables.
    """

    def __init__(self, live: Any, policy: Any, signatures: Mapping[str, Any]):
        """Compares nothing yet.

        Args:
          live: a module with `action` and `get_initial_state`.
          policy: the TF-Agents policy, for its specs.
          signatures: the live policy's functions of named tensors, by the names of the exported
            signatures.
        """
        self._live, self._signatures = live, signatures
        self._program = live.action_of_fields.get_concrete_function()
        self._exact = not loaded_model.is_stochastic(self._program)
        self._inputs = _inputs(live, policy)
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten([*self._inputs.values()])]
        placeholders = self._program.inputs[: len(leaves)]
        self._leaves = [tf.cast(leaf, given.dtype) for leaf, given in zip(leaves, placeholders, strict=True)]
        self._loaded: Any = None

    @property
    def has_compared(self) -> bool:
        """Whether a first version was compared."""
        return self._loaded is not None

    def snapshot(self) -> Snapshot:
        """Returns what the live policy is compared by, as it is now. Not during a train step."""
        if not self.has_compared:
            return True, [variable.read_value() for variable in self._live.model_variables]
        return False, call(self._program, self._leaves) if self._exact else []

    def compare(self, path: pathlib.Path, files: ModelFiles, weights: Sequence[tf.Tensor], live: Snapshot) -> None:
        """Compares a complete version with the live policy as it was at the snapshot.
        Any thread may call it.

        Args:
          path: of the version.
          files: which the version's are.
          weights: which were written.
          live: of the live policy when they were read.

        Raises:
          ExportMismatch: if they differ.
        """
        is_first, tensors = live
        if is_first:
            self._compare_first(path, tensors)
        else:
            self._compare_later(path, files, weights, tensors)

    def _compare_first(self, path: pathlib.Path, values: Sequence[tf.Tensor]) -> None:
        exported = tf.saved_model.load(str(path))
        live = Program(self._program, self._leaves, self._live.model_variables, values)
        _compare('the exported policy', live, exported.action(*self._inputs.values()), self._exact)
        leaves = {'batch_size': _BATCH_SIZE, **signatures.flat_dict(self._inputs)}
        for name, function in self._signatures.items():
            program = function.get_concrete_function()
            flat, _ = program.structured_input_signature
            named = {spec.name: tf.constant(leaves[spec.name], spec.dtype) for spec in tf.nest.flatten(flat)}
            live = Program(program, [*named.values()], self._live.model_variables, values)
            got = exported.signatures[name](**named)
            _compare(f'the signature {name}', live, got, not loaded_model.is_stochastic(program))
        self._loaded = exported

    def _compare_later(
        self, path: pathlib.Path, files: ModelFiles, weights: Sequence[tf.Tensor], actions: Sequence[tf.Tensor]
    ) -> None:
        read = files.read_weights(path)
        for key, expected, value in zip(files.keys, weights, read, strict=True):
            # Bytes, because a NaN does not equal itself.
            if expected.numpy().tobytes() != value.numpy().tobytes():
                raise ExportMismatch(
                    f'got {_text(value)} from the file of the weights, {key}; need {_text(expected)}, as in the live '
                    "policy; look at the machine's disk and memory"
                )
        for variable, value in zip(self._loaded.model_variables, read, strict=True):
            variable.assign(value)
        answers = call(self._loaded.action_of_fields.get_concrete_function(), self._leaves)
        if self._exact:
            live = Program(self._program, self._leaves, self._live.model_variables, weights)
            got, expected = (self._named(results) for results in (answers, actions))
            check_results('the exported policy', live, got, expected, exact=True)

    def _named(self, results: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        return signatures.flat_dict(tf.nest.pack_sequence_as(self._program.structured_outputs, results))


def _compare(where: str, live: 'Program', got: Any, exact: bool) -> None:
    check_results(where, live, signatures.flat_dict(got), signatures.flat_dict(live.structured_results()), exact)


def check_results(
    where: str, live: 'Program', got: Mapping[str, Any], expected: Mapping[str, Any], exact: bool
) -> None:
    """Compares flat results by their names, `expected` in the order of those of `live`;
    if not `exact`, only specs.

    Raises:
      ExportMismatch: if they differ by more than rounding.
    """
    if set(expected) != set(got):
        raise ExportMismatch(
            f'got the results {sorted(got)} from {where}; need {sorted(expected)}, as from the live policy'
        )
    specs = [{name: (leaf.dtype.name, tuple(leaf.shape)) for name, leaf in each.items()} for each in (got, expected)]
    if specs[0] != specs[1]:
        raise ExportMismatch(f'got results of {specs[0]} from {where}; need {specs[1]}, as from the live policy')
    differing = live.differing([got[name] for name in expected], [*expected.values()]) if exact else []
    for name in [list(expected)[i] for i in differing]:
        raise ExportMismatch(
            f'got {_text(got[name])} as {name} from {where}; need {_text(expected[name])} within {live.tolerance:g} of '
            "its magnitude, as from the live policy; let the network's layers compute with TensorFlow's operations and "
            'variables alone: what they keep in Python is not exported'
        )


def _inputs(live: Any, policy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    specs = {name: getattr(policy.time_step_spec, name) for name in ('reward', 'discount', 'observation')}
    drawn = tf.nest.map_structure(lambda leaf: draw(leaf, rng, _BATCH_SIZE), signatures.to_plain(specs))
    if mask := mask_of(policy):
        paths = leaf_paths(specs['observation'])
        names = signatures.names_in_order(specs['observation'], 'observation')
        dict(signatures.flat(drawn['observation'], 'observation'))[names[paths.index(mask.path)]][:] = 1
    return {
        'step_type': rng.integers(0, 3, [_BATCH_SIZE], np.int32),
        **drawn,
        'policy_state': live.get_initial_state(tf.constant(_BATCH_SIZE)),
    }


def _text(tensor: Any) -> str:
    with np.printoptions(threshold=4, edgeitems=2):
        return ' '.join(repr(np.asarray(tensor)).split())


def draw(spec: Any, rng: np.random.Generator, batch_size: int) -> np.ndarray:
    """Draws moderate numbers within the bounds of `spec`, [batch_size, ...]."""
    # An integer without bounds may be an index, so only 0 and 1 are safe.
    default_low, default_high = (0, 1) if spec.dtype.is_integer else (-10, 10)
    low, high = (
        np.clip(extreme, getattr(spec, 'minimum', default_low), getattr(spec, 'maximum', default_high))
        for extreme in (-10, 10)
    )
    shape = [batch_size, *spec.shape]
    integer = spec.dtype.is_integer
    drawn: np.ndarray = rng.integers(low, high, shape, endpoint=True) if integer else rng.uniform(low, high, shape)
    return drawn.astype(spec.dtype.as_numpy_dtype)


class Program:
    """A traced policy function, with inputs and the values of its variables:
    what another graph's results must be.
    """

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
        # The greatest difference of a float, as a share of its element's magnitude; and the change
        # of weights and inputs, as a share of each, that is like rounding each of them.
        self.tolerance, self._perturbation = (3e-2, 1e-2) if has_low_precision(program) else (1e-4, 1e-5)

    def results(self) -> list[tf.Tensor]:
        """Returns the function's flat results."""
        return self._call(self._leaves, self._values)

    def structured_results(self) -> Any:
        """Returns the results as the function returns them."""
        return tf.nest.pack_sequence_as(self._program.structured_outputs, self.results())

    def differing(self, got: Sequence[Any], expected: Sequence[Any]) -> list[int]:
        """Returns the indices of flat results, or of the first of them,
        that are not `expected` but for rounding.
        """
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
            share = rng.uniform(-self._perturbation, self._perturbation, tensor.shape)
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
    """Returns whether each number is one of the answers' if it is an integer,
    else within twice their range.
    """
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
