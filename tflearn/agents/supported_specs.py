"""Which observations and actions an algorithm can learn from: checked when its agent is made, before any job works."""

from collections.abc import Collection
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.typing import types

from tflearn.errors import UserValueError


def check_observation(
    spec: types.NestedTensorSpec, algorithm: str, conv_layer_params: Any = None, nested: bool = False
) -> None:
    """Checks the observation's spec.

    Args:
      spec: the observation's.
      algorithm: its name, for the message.
      conv_layer_params: the network's convolutions, if it has some.
      nested: whether the algorithm's networks take an observation of several tensors.

    Raises:
      ValueError: for an observation that the algorithm cannot learn from.
    """
    if not nested and tf.nest.is_nested(spec):
        raise UserValueError(
            f'got the nested observation {spec}; {algorithm} needs one tensor; join its parts in the environment, for '
            'instance with gymnasium.wrappers.FlattenObservation, or choose PPO, IMPALA or APPO'
        )
    if conv_layer_params and (tf.nest.is_nested(spec) or not _is_image(spec)):
        raise UserValueError(
            f'got conv_layer_params for the observation {spec}; need images [height, width, channels] of uint8 or '
            'floats, or conv_layer_params=None'
        )


def check_policy_gradient_action(
    spec: types.NestedTensorSpec, algorithm: str, nests: Collection[type] = (dict, tuple, list)
) -> None:
    """Checks the action's spec for an algorithm that learns a distribution of the action, discrete or continuous.

    Args:
      spec: the action's.
      algorithm: its name, for the message.
      nests: kinds of nests that the algorithm takes.

    Raises:
      ValueError: for an action that it cannot learn.
    """
    if tf.nest.is_nested(spec) and not isinstance(spec, tuple(nests)):
        raise UserValueError(
            f'got the action {spec}, a {type(spec).__name__}; {algorithm} needs one tensor or a dict; wrap the '
            'environment so that it has one'
        )
    for leaf in tf.nest.flatten(spec):
        if leaf.dtype.is_floating:
            check_bounded(leaf, algorithm)
            continue
        numbers = np.unique(np.asarray(leaf.maximum) - leaf.minimum + 1)
        if len(numbers) > 1:
            raise UserValueError(
                f'got the action {leaf} with {", ".join(map(str, numbers))} choices; {algorithm} needs equally many in '
                'each dimension; wrap the environment so that it has one Discrete action, or equal ones'
            )
        if np.any(leaf.minimum):
            raise UserValueError(
                f'got the action {leaf}; {algorithm} needs discrete actions counted from 0; wrap the environment so '
                'that it has them'
            )


def check_bounded(spec: types.BoundedTensorSpec, algorithm: str) -> None:
    """Checks that actions of floats have finite bounds.

    Raises:
      ValueError: if they have not, or if the range between them is not finite.
    """
    with np.errstate(over='ignore', invalid='ignore'):
        bounded = np.isfinite(np.asarray(spec.maximum) - spec.minimum).all()
    if not bounded:
        raise UserValueError(
            f'got the action {spec}; {algorithm} needs bounded actions; rescale them in the environment'
        )


def _is_image(spec: types.TensorSpec) -> bool:
    return bool(spec.shape.rank == 3 and (spec.dtype == tf.uint8 or spec.dtype.is_floating))
