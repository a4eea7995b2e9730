"""Fakes that check what they are given."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tflearn.core.types import EnvironmentSpecs, check_batch

OBSERVATION_SPEC = tensor_spec.BoundedTensorSpec((2,), tf.float32, 0.0, 1e6, 'observation')
ACTION_SPEC = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action')


class CheckedEnvironment:
    """A batch of counting tasks: episodes of environment i take `lengths[i]` steps; the reward is the action, 0 or 1.

    The observation is (episode, step), both counted from 0. It raises on an action that does not match the spec.
    """

    def __init__(self, lengths: Sequence[int] = (3, 5), truncated: Sequence[bool] | bool = False):
        self.num_environments = len(lengths)
        self.specs = EnvironmentSpecs(OBSERVATION_SPEC, ACTION_SPEC)
        self.info: dict[str, np.ndarray] = {}
        self.num_rebuilt = 0
        self.num_resets = 0
        self.closed = False
        self._lengths = np.asarray(lengths)
        self._truncated = np.broadcast_to(truncated, self._lengths.shape)
        self._episode = np.full(self.num_environments, -1)
        self._step = np.zeros(self.num_environments, np.int64)

    def reset(self) -> ts.TimeStep:
        self.num_resets += 1
        self._episode += 1
        self._step[:] = 0
        return self._time_step(np.zeros(self.num_environments))

    def step(self, action: Any) -> ts.TimeStep:
        if self.closed or not self.num_resets:
            raise RuntimeError('got step() before reset() or after close()')
        check_batch(action, ACTION_SPEC, self.num_environments, 'action')
        if not np.isin(action, (0, 1)).all():
            raise ValueError(f'got action={action}; need 0 or 1')
        ended = self._step == self._lengths
        self._episode += ended
        self._step = np.where(ended, 0, self._step + 1)
        return self._time_step(np.where(ended, 0, action))

    def close(self) -> None:
        self.closed = True

    def _time_step(self, reward: np.ndarray) -> ts.TimeStep:
        last = self._step == self._lengths
        return ts.TimeStep(
            step_type=np.select([self._step == 0, last], [ts.StepType.FIRST, ts.StepType.LAST], ts.StepType.MID).astype(
                np.int32
            ),
            reward=reward.astype(np.float32),
            discount=np.where(last & ~self._truncated, 0.0, 1.0).astype(np.float32),
            observation=np.stack([self._episode, self._step], axis=1).astype(np.float32),
        )


def make_environment(num_environments: int, seed: int | None) -> CheckedEnvironment:
    """An environment factory: episodes of 3, 4, ... steps, every other environment truncated."""
    del seed
    lengths = range(3, 3 + num_environments)
    return CheckedEnvironment(tuple(lengths), [bool(i % 2) for i in range(num_environments)])


class CountingPolicy(tf_policy.TFPolicy):
    """Alternates between the actions 0 and 1 within an episode; its state and its info are the number of its actions.

    The variable `actions_changed` swaps the actions, so that a test can see whether variables are read again.
    """

    def __init__(self, environment_specs: EnvironmentSpecs):
        count = tf.TensorSpec((), tf.int64, 'count')
        super().__init__(
            environment_specs.time_step, environment_specs.action, policy_state_spec=count, info_spec=count
        )
        self.num_traces = 0
        self.actions_changed = tf.Variable(False)

    def _variables(self) -> list[tf.Variable]:
        return [self.actions_changed]

    def _action(self, time_step: ts.TimeStep, policy_state: Any, seed: Any) -> policy_step.PolicyStep:
        self.num_traces += 1
        action = (policy_state + tf.cast(self.actions_changed, tf.int64)) % 2
        return policy_step.PolicyStep(action, policy_state + 1, policy_state)
