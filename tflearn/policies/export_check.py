"""Compares an exported policy with the live one, before anybody else sees it."""

from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.policies import plain_nests

_BATCH_SIZE = 16
_RANDOM_OPS = ('Random', 'Multinomial', 'Normal', 'StatefulUniform', 'Rng')


def check_acts_alike(live: Any, exported: Any, policy: Any) -> None:
    """Has both act on the same random batch. Results must agree bit by bit; of a stochastic policy in shape and dtype.

    Args:
      live: a module with `action` and `get_initial_state`.
      exported: the same, loaded.
      policy: the TF-Agents policy, for its specs.

    Raises:
      RuntimeError: if they differ.
    """
    rng = np.random.default_rng(0)
    time_step = policy.time_step_spec
    inputs = [
        rng.integers(0, 3, [_BATCH_SIZE], np.int32),
        *(_draw_nest(spec, rng) for spec in (time_step.reward, time_step.discount, time_step.observation)),
    ]
    results = [model.action(*inputs, model.get_initial_state(tf.constant(_BATCH_SIZE))) for model in (live, exported)]
    exact = not _is_stochastic(live.action.get_concrete_function())
    for (name, expected), (_, got) in zip(*(plain_nests.flat(result) for result in results), strict=True):
        same = expected.dtype == got.dtype and expected.shape == got.shape
        # Bytes, because a NaN does not equal itself.
        if not same or (exact and expected.numpy().tobytes() != got.numpy().tobytes()):
            raise RuntimeError(
                f'got {name}={got.numpy()!r} from the exported policy; need {expected.numpy()!r}, as the live one gives'
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
