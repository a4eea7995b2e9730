"""Which observations and actions an algorithm can learn from: errors before any network is made.

The checks of actions take their spec and the algorithm's name, for the message, and raise a
ValueError.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.types import leaf_paths
from tflearn.networks import encoder


def check_observation(
    spec: types.NestedTensorSpec,
    algorithm: str,
    conv_layer_params: Any = None,
    preprocessing_layers: encoder.Layers | None = None,
) -> None:
    """Checks the observation's spec.

    Args:
      spec: the observation's spec.
      algorithm: the algorithm's name, for the message.
      conv_layer_params: the network's convolutions; None has none.
      preprocessing_layers: layers of one's own for leaves of the observation, by path.

    Raises:
      ValueError: for an observation that the algorithm cannot learn from, or a path that no leaf
        has.
    """
    leaves = dict(zip(leaf_paths(spec), tf.nest.flatten(spec), strict=True))
    if not leaves:
        raise UserValueError(f'got the observation {spec} without tensors; {algorithm} needs at least one')
    for path, leaf in leaves.items():
        if leaf.dtype == tf.string:
            raise UserValueError(
                f"got the observation '{path}' of text; {algorithm} needs numbers; let the environment return the "
                'index of each text in a list, as a Discrete space'
            )
    encoder.check_layers(spec, preprocessing_layers or {})
    if conv_layer_params and not any(map(encoder.is_image, leaves.values())):
        raise UserValueError(
            f'got conv_layer_params for the observation {spec}; need images [height, width, channels] of uint8 or '
            'floats, or conv_layer_params=None'
        )


def check_policy_gradient_action(spec: types.NestedTensorSpec, algorithm: str) -> None:
    """Checks the actions of an algorithm that learns their distribution, discrete or continuous."""
    for leaf in tf.nest.flatten(spec):
        if leaf.dtype.is_floating:
            check_bounded(leaf, algorithm)
        elif np.any(leaf.minimum):
            raise UserValueError(
                f'got the action {leaf}; {algorithm} needs bounded discrete actions; wrap the environment so '
                'that it has them'
            )


def check_one_discrete_action(spec: types.NestedTensorSpec, algorithm: str) -> None:
    """Checks the action of an algorithm that learns a value for each choice of one action."""
    if tf.nest.is_nested(spec) or not _is_choice(spec):
        raise UserValueError(
            f'got the action {spec}; {algorithm} needs one discrete action with bounds; choose another algorithm, '
            'or wrap the environment so that it has one'
        )


def check_bounded(spec: types.BoundedTensorSpec, algorithm: str) -> None:
    """Checks that the bounds of an action of floats, and the range between them, are finite."""
    with np.errstate(over='ignore', invalid='ignore'):
        bounded = np.isfinite(np.asarray(spec.maximum) - spec.minimum).all()
    if not bounded:
        raise UserValueError(
            f'got the action {spec}; {algorithm} needs bounded actions; rescale them in the environment'
        )


def check_one_action(spec: types.NestedTensorSpec, algorithm: str) -> None:
    """Checks the action of an algorithm that learns values of one discrete action, or of a vector of floats."""
    leaves = tf.nest.flatten(spec)
    one = len(leaves) == 1
    if one and leaves[0].dtype.is_floating and leaves[0].shape.rank == 1:
        check_bounded(leaves[0], algorithm)
    elif not one or not _is_choice(leaves[0]):
        raise UserValueError(
            f'got the action {spec}; {algorithm} needs one discrete action with bounds, or one vector of '
            'continuous actions; choose another algorithm, or wrap the environment so that it has one'
        )


def _is_choice(spec: types.TensorSpec) -> bool:
    return bool(spec.dtype.is_integer and spec.shape.rank == 0 and spec.minimum == 0)
