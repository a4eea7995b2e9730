"""The state of a recurrent policy as a column of the data, so that training can start in the middle of an episode.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2, ICLR), section 3.
The policy info of a row gets the key 'policy_state': the state before the row's step, of the policy's
`policy_state_spec`. Agents of TF-Agents ignore keys that are not in their own spec of the info.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserValueError

POLICY_STATE = 'policy_state'


def add(info: Any, state: Any) -> dict[str, Any]:
    """Returns a policy's info, `()` or a dictionary, with its state added: nests of arrays, or of specs.

    Raises:
      ValueError: if there is no state, or the info is of another kind.
    """
    if not tf.nest.flatten(state):
        raise UserValueError(
            'got a policy without a state to be stored; need a recurrent one; set store_policy_state=False'
        )
    if isinstance(info, Mapping) and POLICY_STATE not in info:
        return {**info, POLICY_STATE: state}
    if not isinstance(info, tuple) or info:
        raise UserValueError(
            f'got the policy info {info}; need () or a dictionary without {POLICY_STATE!r}, to store the policy state '
            'there; set store_policy_state=False'
        )
    return {POLICY_STATE: state}


def before_step(step_type: np.ndarray, state: Any, initial: Any) -> Any:
    """Returns the state before a step.

    Args:
      step_type: int32 [B].
      state: the state that was passed to the policy, a nest of tensors [B, ...].
      initial: the state at an episode's start, the same nest, which replaces `state` where a step is FIRST.

    Returns:
      Nest of arrays [B, ...].
    """
    first = step_type == 0
    if not first.any():
        return tf.nest.map_structure(lambda leaf: leaf.numpy(), state)

    def of_leaf(leaf: tf.Tensor, initial_leaf: tf.Tensor) -> np.ndarray:
        columns = first.reshape(first.shape + (1,) * (leaf.shape.rank - 1))
        return np.where(columns, initial_leaf.numpy(), leaf.numpy())

    return tf.nest.map_structure(of_leaf, state, initial)
