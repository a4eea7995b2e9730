"""Compares an exported policy with the live one, before anybody else sees it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.policies import plain_nests

_BATCH_SIZE = 16
_RANDOM_OPS = ('Random', 'Multinomial', 'Normal', 'StatefulUniform', 'Rng')


def check_acts_alike(live: Any, exported: Any, policy: Any, signatures: Mapping[str, Any]) -> None:
    """Has both act on the same random batch. Results must agree bit by bit; of a stochastic policy in shape and dtype.

    Args:
      live: a module with `action` and `get_initial_state`.
      exported: the same, loaded, with its `signatures`.
      policy: the TF-Agents policy, for its specs.
      signatures: the live functions of named tensors, by the names of the exported ones.

    Raises:
      RuntimeError: if they differ.
    """
    rng = np.random.default_rng(0)
    time_step = policy.time_step_spec
    inputs = {
        'step_type': rng.integers(0, 3, [_BATCH_SIZE], np.int32),
        **{name: _draw_nest(getattr(time_step, name), rng) for name in ('reward', 'discount', 'observation')},
        'policy_state': live.get_initial_state(tf.constant(_BATCH_SIZE)),
    }
    expected, got = (model.action(*inputs.values()) for model in (live, exported))
    _check_same('the exported policy', expected, got, not _is_stochastic(live.action.get_concrete_function()))
    leaves = {'batch_size': _BATCH_SIZE, **plain_nests.flat_dict(inputs)}
    for name, function in signatures.items():
        program = function.get_concrete_function()
        flat, _ = program.structured_input_signature
        named = {spec.name: tf.constant(leaves[spec.name], spec.dtype) for spec in tf.nest.flatten(flat)}
        expected, got = function(*named.values()), exported.signatures[name](**named)
        _check_same(f'the signature {name}', expected, got, not _is_stochastic(program))


def _check_same(where: str, live: Any, exported: Any, exact: bool) -> None:
    flat = [plain_nests.flat_dict(result) for result in (live, exported)]
    if set(flat[0]) != set(flat[1]):
        raise RuntimeError(
            f'got the results {sorted(flat[1])} from {where}; need {sorted(flat[0])}, as the live one has'
        )
    for name, expected in flat[0].items():
        got = flat[1][name]
        same = expected.dtype == got.dtype and expected.shape == got.shape
        # Bytes, because a NaN does not equal itself.
        if not same or (exact and expected.numpy().tobytes() != got.numpy().tobytes()):
            raise RuntimeError(
                f'got {name}={got.numpy()!r} from {where}; need {expected.numpy()!r}, as the live one gives'
            )


def _draw_nest(spec: Any, rng: np.random.Generator) -> Any:
    return tf.nest.map_structure(lambda leaf: _draw(leaf, rng), plain_nests.to_plain(spec))


def _draw(spec: Any, rng: np.random.Generator) -> np.ndarray:
    """Draws moderate numbers within the bounds of `spec`, [_BATCH_SIZE, ...]."""
    # Without bounds an integer may be an index into something: 0 and 1 are the least daring.
    default_low, default_high = (0, 1) if spec.dtype.is_integer else (-10, 10)
    low, high = (
        np.clip(extreme, getattr(spec, 'minimum', default_low), getattr(spec, 'maximum', default_high))
        for extreme in (-10, 10)
    )
    shape = [_BATCH_SIZE, *spec.shape]
    integer = spec.dtype.is_integer
    drawn: np.ndarray = rng.integers(low, high, shape, endpoint=True) if integer else rng.uniform(low, high, shape)
    return drawn.astype(spec.dtype.as_numpy_dtype)


def _is_stochastic(function: Any) -> bool:
    """Says whether a concrete function draws random numbers."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for definition in graph.library.function for node in definition.node_def)]
    stateful = {node.op for node in nodes if not node.op.startswith('Stateless')}
    return any(word in op for op in stateful for word in _RANDOM_OPS)
