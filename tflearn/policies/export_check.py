"""Compares exported policies with the live policy before they are published."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tflearn.core.action_mask import mask_of
from tflearn.core.errors import UserRuntimeError
from tflearn.core.types import leaf_paths
from tflearn.policies import plain_nests, rounding
from tflearn.policies.model_files import ModelFiles

_BATCH_SIZE = 16
_RANDOM_OPS = ('Random', 'Multinomial', 'Normal', 'StatefulUniform', 'Rng')


class ExportMismatch(UserRuntimeError):
    """An exported policy acts differently from the live one."""


class LiveSnapshot(NamedTuple):
    """What a live policy is compared by: before a first version was compared its variables, then its actions.

    Attributes:
      values: of the policy's `model_variables`; None once a version was compared.
      actions: for a fixed batch; nothing for a stochastic policy; None before.
    """

    values: Sequence[tf.Tensor] | None
    actions: Sequence[tf.Tensor] | None


class ExportCheck:
    """Compares the actions of the exported policy with those of the live one, on a random batch.

    Results are compared but for their rounding, see `rounding`; those of a stochastic policy in shape and dtype. The
    first version is loaded with `tf.saved_model.load`, and each of its signatures is compared. Later versions have the
    same graph, so only their weights are read, into the loaded first version: they must equal the snapshot bit by bit,
    and the actions must be those of the live policy at the snapshot. Training may go on during both: the live policy's
    programs are called on copies of its variables.
    """

    def __init__(self, live: Any, policy: Any, signatures: Mapping[str, Any]):
        """Compares nothing yet.

        Args:
          live: a module with `action` and `get_initial_state`.
          policy: the TF-Agents policy, for its specs.
          signatures: the live policy's functions of named tensors, by the names of the exported signatures.
        """
        self._live, self._signatures = live, signatures
        self._program = live.action_of_fields.get_concrete_function()
        self._exact = not is_stochastic(self._program)
        self._inputs = _inputs(live, policy)
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten([*self._inputs.values()])]
        placeholders = self._program.inputs[: len(leaves)]
        self._leaves = [tf.cast(leaf, given.dtype) for leaf, given in zip(leaves, placeholders, strict=True)]
        self._loaded: Any = None

    @property
    def has_compared(self) -> bool:
        """Whether a first version was compared."""
        return self._loaded is not None

    def snapshot(self) -> LiveSnapshot:
        """Returns what the live policy is compared by, as it is now. Not during a train step."""
        if not self.has_compared:
            return LiveSnapshot([variable.read_value() for variable in self._live.model_variables], None)
        return LiveSnapshot(None, rounding.call(self._program, self._leaves) if self._exact else [])

    def compare_first(self, path: pathlib.Path, values: Sequence[tf.Tensor]) -> None:
        """Compares a complete version with the live policy as it was at the snapshot. Any thread may call it.

        Args:
          values: of the live policy's variables, see `LiveSnapshot`.

        Raises:
          ExportMismatch: if they differ.
        """
        exported = tf.saved_model.load(str(path))
        live = rounding.Program(self._program, self._leaves, self._live.model_variables, values)
        _compare('the exported policy', live, exported.action(*self._inputs.values()), self._exact)
        leaves = {'batch_size': _BATCH_SIZE, **plain_nests.flat_dict(self._inputs)}
        for name, function in self._signatures.items():
            program = function.get_concrete_function()
            flat, _ = program.structured_input_signature
            named = {spec.name: tf.constant(leaves[spec.name], spec.dtype) for spec in tf.nest.flatten(flat)}
            live = rounding.Program(program, [*named.values()], self._live.model_variables, values)
            got = exported.signatures[name](**named)
            _compare(f'the signature {name}', live, got, not is_stochastic(program))
        self._loaded = exported

    def compare_later(
        self, path: pathlib.Path, files: ModelFiles, weights: Sequence[tf.Tensor], actions: Sequence[tf.Tensor]
    ) -> None:
        """Compares a later version with the live policy as it was at the snapshot. Any thread may call it.

        Args:
          path: of the version.
          files: which the version's are.
          weights: of the snapshot.
          actions: of the live policy at the snapshot, see `LiveSnapshot`.

        Raises:
          ExportMismatch: if they differ.
        """
        read = files.read_weights(path)
        for key, expected, value in zip(files.keys, weights, read, strict=True):
            if expected.numpy().tobytes() != value.numpy().tobytes():  # bytes, because a NaN does not equal itself
                raise ExportMismatch(
                    f'got {_text(value)} from the file of the weights, {key}; need {_text(expected)}, as in the live '
                    "policy; look at the machine's disk and memory"
                )
        for variable, value in zip(self._loaded.model_variables, read, strict=True):
            variable.assign(value)
        answers = rounding.call(self._loaded.action_of_fields.get_concrete_function(), self._leaves)
        if self._exact:
            live = rounding.Program(self._program, self._leaves, self._live.model_variables, weights)
            got, expected = (self._named(results) for results in (answers, actions))
            check_results('the exported policy', live, got, expected, exact=True)

    def _named(self, results: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        return plain_nests.flat_dict(tf.nest.pack_sequence_as(self._program.structured_outputs, results))


def _compare(where: str, live: rounding.Program, got: Any, exact: bool) -> None:
    check_results(where, live, plain_nests.flat_dict(got), plain_nests.flat_dict(live.structured_results()), exact)


def check_results(
    where: str, live: rounding.Program, got: Mapping[str, Any], expected: Mapping[str, Any], exact: bool
) -> None:
    """Compares flat results by their names, `expected` in the order of those of `live`; if not `exact`, only specs.

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
    drawn = tf.nest.map_structure(lambda leaf: draw(leaf, rng, _BATCH_SIZE), plain_nests.to_plain(specs))
    if mask := mask_of(policy):
        paths = leaf_paths(specs['observation'])
        names = plain_nests.names_in_order(specs['observation'], 'observation')
        dict(plain_nests.flat(drawn['observation'], 'observation'))[names[paths.index(mask.path)]][:] = 1
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


def is_stochastic(function: Any) -> bool:
    """Returns whether a concrete function draws random numbers."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for definition in graph.library.function for node in definition.node_def)]
    stateful = {node.op for node in nodes if not node.op.startswith('Stateless')}
    return any(word in op for op in stateful for word in _RANDOM_OPS)
