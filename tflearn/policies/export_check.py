"""Compares exported policies with the live policy before they are published."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

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


class ExportCheck:
    """Compares the actions of the exported policy with those of the live one, on a random batch.

    The results must be equal bit by bit, floats of a policy with memory or of a nested observation but for their
    rounding; those of a stochastic policy in shape and dtype. The first version is loaded
    with `tf.saved_model.load`, and each of its signatures is compared. Later versions have the same graph, so only
    their weights are read, into the loaded first version: they must equal the snapshot, and the actions must equal
    those of the live policy at the snapshot.
    """

    def __init__(self, live: Any, policy: Any, signatures: Mapping[str, Any], files: ModelFiles):
        """
        Args:
          live: a module with `action` and `get_initial_state`.
          policy: the TF-Agents policy, for its specs.
          signatures: the live policy's functions of named tensors, by the names of the exported signatures.
        """
        self._live, self._signatures, self._files = live, signatures, files
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

    def actions(self) -> list[tf.Tensor]:
        """Returns the live policy's current actions; nothing for a stochastic policy. Not during a train step."""
        return _call(self._program, self._leaves) if self._exact else []

    def compare_first(self, path: pathlib.Path) -> None:
        """Compares a complete version with the live policy, whose weights must not have changed since its snapshot.

        Raises:
          RuntimeError: if they differ.
        """
        exported = tf.saved_model.load(str(path))
        expected, got = (model.action(*self._inputs.values()) for model in (self._live, exported))
        self._check_same('the exported policy', expected, got, self._exact)
        leaves = {'batch_size': _BATCH_SIZE, **plain_nests.flat_dict(self._inputs)}
        for name, function in self._signatures.items():
            program = function.get_concrete_function()
            flat, _ = program.structured_input_signature
            named = {spec.name: tf.constant(leaves[spec.name], spec.dtype) for spec in tf.nest.flatten(flat)}
            expected, got = function(*named.values()), exported.signatures[name](**named)
            self._check_same(f'the signature {name}', expected, got, not is_stochastic(program))
        self._loaded = exported

    def compare_later(self, path: pathlib.Path, weights: Sequence[tf.Tensor], actions: Sequence[tf.Tensor]) -> None:
        """Compares a later version with the live policy as it was at the snapshot. Any thread may call it.

        Args:
          actions: the return value of `actions` at the snapshot.

        Raises:
          RuntimeError: if they differ.
        """
        read = self._files.read_weights(path)
        for key, expected, got in zip(self._files.keys, weights, read, strict=True):
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


def _call(program: Any, leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Calls a traced function by its operation, which avoids the binding of arguments in Python."""
    outputs: list[tf.Tensor] = tf.raw_ops.StatefulPartitionedCall(
        args=[*leaves, *program.captured_inputs], Tout=[output.dtype for output in program.outputs], f=program
    )
    return outputs


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
