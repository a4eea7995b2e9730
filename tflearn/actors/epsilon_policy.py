"""EpsilonPolicy: any policy with a share of random actions, for evaluations that need variety."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.errors import UserValueError
from tflearn.types import EvaluationPolicy


class EpsilonPolicy:
    """Takes another policy's actions, but in each row, with probability epsilon, a uniform one within the bounds."""

    def __init__(
        self, policy: EvaluationPolicy, epsilon: float, action_spec: types.NestedTensorSpec, seed: int | None = None
    ):
        """
        Args:
          epsilon: the share of random actions, in [0, 1].
          action_spec: the action's spec, whose leaves have finite bounds.

        Raises:
          ValueError: if epsilon is not in [0, 1], or an action has no bounds.
        """
        if not 0 <= epsilon <= 1:
            raise UserValueError(f'got epsilon={epsilon!r}; need a number in [0, 1]')
        for spec in tf.nest.flatten(action_spec):
            bounds = [getattr(spec, 'minimum', -np.inf), getattr(spec, 'maximum', np.inf)]
            if not all(np.isfinite(bound).all() for bound in bounds):
                raise UserValueError(
                    f'got epsilon={epsilon} for the action spec {spec}; need finite bounds, or epsilon=0'
                )
        self._policy, self._epsilon, self._action_spec = policy, epsilon, action_spec
        self._random = np.random.default_rng(seed)

    def initial_state(self, batch_size: int) -> Any:
        """See `EvaluationPolicy`."""
        return self._policy.initial_state(batch_size)

    def action(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[Any, Any]:
        """See `EvaluationPolicy`."""
        action, policy_state = self._policy.action(time_step, policy_state)
        explores = self._random.random(len(time_step.step_type)) < self._epsilon
        return tf.nest.map_structure(
            lambda spec, leaf: self._mixed(spec, leaf, explores), self._action_spec, action
        ), policy_state

    def _mixed(self, spec: Any, leaf: np.ndarray, explores: np.ndarray) -> np.ndarray:
        low, high = (np.broadcast_to(bound, leaf.shape) for bound in (spec.minimum, spec.maximum))
        integer = spec.dtype.is_integer
        draw: Any = functools.partial(self._random.integers, endpoint=True) if integer else self._random.uniform
        drawn: np.ndarray = draw(low, high, leaf.shape)
        return np.where(explores.reshape(-1, *[1] * (leaf.ndim - 1)), drawn, leaf).astype(leaf.dtype)
