"""Precision: bfloat16 or float16 where it is fast, float32 where it counts.

Micikevicius et al. 2017, "Mixed Precision Training" (arXiv 1710.03740); Kalamkar et al. 2019
(bfloat16; 1905.12322). Layers made under one of them compute in it and keep their variables in
float32; so gradients, optimizer and checkpoints are float32, and readers of weights need no change.
bfloat16 has float32's range; for float16 `OptimizerOptions` makes optimizers that scale losses.
Everything after the last layer (distributions, losses, sums over replicas) must be
float32: a network ends in a float32 layer, as in `tflearn/networks/networks.py`. TF-Agents'
  encoders compute in float32
unless they get `dtype=global_policy()`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tflearn.core import agent_data
from tflearn.core.errors import UserValueError

_KERAS_NAMES = {'float32': 'float32', 'bfloat16': 'mixed_bfloat16', 'float16': 'mixed_float16'}


@contextlib.contextmanager
def use(precision: str) -> Iterator[None]:
    """Makes the layers that are made in a `with` block compute in `precision`.

    Args:
      precision: 'float32', 'bfloat16' or 'float16'.
    """
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(_KERAS_NAMES[precision])
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


def check_agent(agent: Any, precision: str) -> None:
    """Checks, once its networks are built, that an agent has the requested precision.

    Raises:
      ValueError: if a variable has less than float32, no layer computes in the requested precision,
        or float16 is requested for an agent that does not scale its losses.
    """
    for variable in agent.variables:
        if variable.dtype in (tf.bfloat16, tf.float16):
            raise UserValueError(
                f'got the variable {variable.name} in {variable.dtype.name}; need float32; make its layer with '
                f"dtype='mixed_{variable.dtype.name}', not '{variable.dtype.name}'"
            )
    trained = agent_data.innermost(agent)
    if precision == 'float16' and not agent_data.is_packaged(trained):
        raise UserValueError(
            f"got precision='float16' for a {type(trained).__name__}; need an agent of tflearn.agents, whose "
            "optimizers scale its losses, or 'bfloat16'"
        )
    if precision != 'float32' and precision not in _computed(agent):
        raise UserValueError(
            f'got no layer that computes in {precision}; need at least one; give the encoding network '
            'dtype=tf.keras.mixed_precision.global_policy(), or take float32'
        )


def _computed(agent: Any) -> set[str]:
    """Returns the dtypes in which an agent's layers compute."""
    made = (each for each in agent.submodules if isinstance(each, tf.keras.layers.Layer))
    layers = [each for each in made if _variables(each)]
    # A network is a layer too, but only its layers compute.
    known = set(map(id, layers))
    return {each.compute_dtype for each in layers if known.isdisjoint(map(id, each.submodules))}


def _variables(layer: tf.keras.layers.Layer) -> Sequence[tf.Variable]:
    """Returns the variables that a layer has by now.

    TF-Agents' networks keep the layers that they copied, which are never built: Keras' `variables`
    raises for some.
    """
    return tf.Module.variables.fget(layer)
