"""Compares exported policies with the live policy before they are published."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tflearn.action_mask import mask_of
from tflearn.policies import plain_nests
from tflearn.policies.model_files import ModelFiles
from tflearn.policies.signatures import action_program
from tflearn.types import leaf_paths

_BATCH_SIZE = 16
# The largest difference of a policy with memory, or of a nested observation: TensorFlow's graph optimizer fuses layers
# in one of the two graphs and not in the other, which rounds differently.
_ROUNDING = 1e-5
_RANDOM_OPS = ('Random', 'Multinomial', 'Normal', 'StatefulUniform', 'Rng')


class Live(NamedTuple):
    """What a live policy is compared by: before a first version was compared its variables, then its actions.

    Attributes:
      values: of the policy's `model_variables`; None once a version was compared.
      actions: for a fixed batch; nothing for a stochastic policy; None before.
    """

    values: Sequence[tf.Tensor] | None
    actions: Sequence[tf.Tensor] | None


class ExportCheck:
    """Compares the actions of the exported policy with those of the live one, on a random batch.

    The results must be equal bit by bit, floats of a policy with memory or of a nested observation but for their
    rounding; those of a stochastic policy in shape and dtype. The first version is loaded
    with `tf.saved_model.load`, and each of its signatures is compared. Later versions have the same graph, so only
    their weights are read, into the loaded first version: they must equal the snapshot, and the actions must equal
    those of the live policy at the snapshot. Training may go on during both: the live policy's programs are called on
    copies of its variables.
    """

    def __init__(self, live: Any, policy: Any, signatures: Mapping[str, Any]):
        """Compares nothing yet.

        Args:
          live: a module with `action` and `get_initial_state`.
          policy: the TF-Agents policy, for its specs.
          signatures: the live policy's functions of named tensors, by the names of the exported signatures.
        """
        self._live, self._signatures = live, signatures
        self._program = action_program(live)
        self._exact = not is_stochastic(self._program)
        nested = tf.nest.is_nested(policy.time_step_spec.observation)
        self._rounding = _ROUNDING if nested or tf.nest.flatten(policy.policy_state_spec) else 0.0
        self._inputs = _inputs(live, policy)
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten([*self._inputs.values()])]
        placeholders = self._program.inputs[: len(leaves)]
        self._leaves = [tf.cast(leaf, given.dtype) for leaf, given in zip(leaves, placeholders, strict=True)]
        self._loaded: Any = None

    @property
    def has_compared(self) -> bool:
        """Whether a first version was compared."""
        return self._loaded is not None

    def live(self) -> Live:
        """Returns what the live policy is compared by, as it is now. Not during a train step."""
        if not self.has_compared:
            return Live([variable.read_value() for variable in self._live.model_variables], None)
        return Live(None, _call(self._program, self._leaves) if self._exact else [])

    def compare_first(self, path: pathlib.Path, values: Sequence[tf.Tensor]) -> None:
        """Compares a complete version with the live policy as it was at the snapshot. Any thread may call it.

        Args:
          values: of the live policy's variables, see `Live`.

        Raises:
          RuntimeError: if they differ.
        """
        exported = tf.saved_model.load(str(path))
        copies = self._copies(values)
        handles = {id(live.handle): copy.handle for live, copy in zip(self._live.model_variables, copies, strict=True)}
        expected = _structured(self._program, self._leaves, handles)
        self._check_same('the exported policy', expected, exported.action(*self._inputs.values()), self._exact)
        leaves = {'batch_size': _BATCH_SIZE, **plain_nests.flat_dict(self._inputs)}
        for name, function in self._signatures.items():
            program = function.get_concrete_function()
            flat, _ = program.structured_input_signature
            named = {spec.name: tf.constant(leaves[spec.name], spec.dtype) for spec in tf.nest.flatten(flat)}
            expected = _structured(program, [*named.values()], handles)
            got = exported.signatures[name](**named)
            self._check_same(f'the signature {name}', expected, got, not is_stochastic(program))
        self._loaded = exported

    def _copies(self, values: Sequence[tf.Tensor]) -> list[tf.Variable]:
        copies = []
        for live, value in zip(self._live.model_variables, values, strict=True):
            with tf.device(live.device):
                copies.append(tf.Variable(value, trainable=False, shape=live.shape))
        return copies

    def compare_later(
        self, path: pathlib.Path, files: ModelFiles, weights: Sequence[tf.Tensor], actions: Sequence[tf.Tensor]
    ) -> None:
        """Compares a later version with the live policy as it was at the snapshot. Any thread may call it.

        Args:
          path: of the version.
          files: which the version's are.
          weights: of the snapshot.
          actions: of the live policy at the snapshot, see `Live`.

        Raises:
          RuntimeError: if they differ.
        """
        read = files.read_weights(path)
        for key, expected, got in zip(files.keys, weights, read, strict=True):
            _check_leaf(f'the file of the weights, {key}', expected, got, exact=True)
        for variable, value in zip(self._loaded.model_variables, read, strict=True):
            variable.assign(value)
        program = action_program(self._loaded)
        answers = _call(program, self._leaves)
        for expected, got in zip(actions, answers, strict=self._exact):
            _check_leaf('the exported policy', expected, got, exact=True, rounding=self._rounding)

    def _check_same(self, where: str, live: Any, exported: Any, exact: bool) -> None:
        flat = [plain_nests.flat_dict(result) for result in (live, exported)]
        if set(flat[0]) != set(flat[1]):
            raise RuntimeError(
                f'got the results {sorted(flat[1])} from {where}; need {sorted(flat[0])}, as from the live policy'
            )
        for name, expected in flat[0].items():
            _check_leaf(f'{where}, {name}', expected, flat[1][name], exact, self._rounding)


def _call(program: Any, leaves: Sequence[tf.Tensor], handles: Mapping[int, tf.Tensor] | None = None) -> list[tf.Tensor]:
    """Calls a traced function by its operation, which avoids the binding of arguments in Python.

    `handles` are other variables' handles for it to use, by the identities of its own ones.
    """
    captured = [(handles or {}).get(id(handle), handle) for handle in program.captured_inputs]
    outputs: list[tf.Tensor] = tf.raw_ops.StatefulPartitionedCall(
        args=[*leaves, *captured], Tout=[output.dtype for output in program.outputs], f=program
    )
    return outputs


def _structured(program: Any, leaves: Sequence[tf.Tensor], handles: Mapping[int, tf.Tensor]) -> Any:
    """Returns the results of `_call` as the traced function returns them."""
    return tf.nest.pack_sequence_as(program.structured_outputs, _call(program, leaves, handles))


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


def _check_leaf(where: str, expected: tf.Tensor, got: tf.Tensor, exact: bool, rounding: float = 0.0) -> None:
    same = expected.dtype == got.dtype and expected.shape == got.shape
    if not same or (exact and not _are_equal(expected, got, rounding)):
        raise RuntimeError(f'got {_text(got)} from {where}; need {_text(expected)}, as from the live policy')


def _are_equal(expected: tf.Tensor, got: tf.Tensor, rounding: float) -> bool:
    if rounding and expected.dtype.is_floating:
        return np.allclose(got, expected, rounding, rounding, equal_nan=True)
    return bool(expected.numpy().tobytes() == got.numpy().tobytes())  # bytes, because a NaN does not equal itself


def _text(tensor: tf.Tensor) -> str:
    with np.printoptions(threshold=4, edgeitems=2):
        return ' '.join(repr(tensor.numpy()).split())


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
