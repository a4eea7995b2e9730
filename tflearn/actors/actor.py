"""Actor: steps a batched environment with a policy and passes the trajectories to observers."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn.actors import recurrent_state
from tflearn.actors.compiled_policy import CompiledPolicy
from tflearn.actors.episode_metrics import EXECUTED_ACTION
from tflearn.core.action_mask import mask_of
from tflearn.core.resumable import Resumable
from tflearn.core.types import ActingPolicy, BatchedEnvironment, check_batch

Observer = Callable[[trajectory.Trajectory], None]


class Actor(Resumable):
    """Acts in all environments of a batch: one compiled policy call and one environment step at a time.

    If an environment reports that it executed another action than the policy's (`BatchedEnvironment.info`), that action
    is recorded; the policy info, such as the log-probability, remains that of the policy's action.

    Attributes:
      env_steps: the number of environment steps, without boundary rows and steps in which an environment failed.
    """

    _KEPT = ('env_steps', '_time_step', '_checked_executed_action', '_num_steps')

    def __init__(
        self,
        environment: BatchedEnvironment,
        policy: tf_policy.TFPolicy | ActingPolicy,
        observers: Sequence[Observer] = (),
        stores_policy_state: bool = False,
    ):
        """Compiles the policy for the environment's batch.

        Args:
          environment: the environments, which the caller closes.
          policy: the policy, whose variables may change between two steps.
          observers: functions that are called, in this order, with the Trajectory of each step: numpy arrays [B, ...],
            which they may keep and must not change. A row whose step type is LAST is the boundary between two episodes:
            its action had no effect, its reward is 0, its discount 1 and its next step type FIRST. FIRST is also the
            next step type of a row in which an environment failed; only the observation of such a row is valid.
          stores_policy_state: whether to add the policy state before each step to the policy info (`recurrent_state`).
        """
        self.env_steps = 0
        self._environment = environment
        self._observers = tuple(observers)
        self._stores_policy_state = stores_policy_state
        self._checked_executed_action = False
        self._time_step: ts.TimeStep | None = None
        self._policy_state: Any = ()
        self._initial_state: Any = ()
        self._num_steps = 0
        self._action_mask = mask_of(policy)
        self._policy = self._compiled(policy)

    @property
    def time_step(self) -> ts.TimeStep | None:
        """The newest time step [B], that after the newest row; None before the first."""
        return self._time_step

    def set_policy(self, policy: tf_policy.TFPolicy | ActingPolicy) -> None:
        """Replaces the policy by one of the same specs, which continues with the policy state."""
        self._action_mask = mask_of(policy) or self._action_mask
        self._policy = self._compiled(policy)

    def content(self) -> dict[str, Any]:
        """See `Resumable`."""
        state = tf.nest.map_structure(np.asarray, (self._policy_state, self._initial_state))
        return {**super().content(), 'states': state, 'num_calls': getattr(self._policy, 'num_calls', 0)}

    def set_content(self, content: Mapping[str, Any]) -> None:
        """See `Resumable`; the policy acts as often as it had, so that it goes on with the same random numbers."""
        super().set_content(content)
        if self._time_step is None:
            return
        self._policy_state, self._initial_state = tf.nest.map_structure(tf.constant, content['states'])
        while getattr(self._policy, 'num_calls', sys.maxsize) < content['num_calls']:
            self._policy.step(self._time_step, self._policy_state)

    def _compiled(self, policy: tf_policy.TFPolicy | ActingPolicy) -> ActingPolicy:
        if isinstance(policy, tf_policy.TFPolicy):
            return CompiledPolicy(policy, self._environment.num_environments)
        return policy

    def run(self, num_steps: int, *observers: Observer) -> None:
        """Takes `num_steps` batched steps, from where the last call stopped (the first call resets the environment).

        An exception of an observer propagates; its step counts as taken.

        Args:
          observers: further observers, of these steps only; they come last.

        Raises:
          ValueError: if the environment's time steps do not have the policy's spec, or an executed action does not have
            the action's spec, or an environment's mask has no legal action.
        """
        if self._time_step is None:
            time_step = self._environment.reset()
            self._policy.check(time_step)
            self._time_step = time_step
            self._policy_state = self._initial_state = self._policy.initial_state(self._environment.num_environments)
        for _ in range(num_steps):
            row = self._step(self._time_step)
            for observer in (*self._observers, *observers):
                observer(row)

    def _step(self, time_step: ts.TimeStep) -> trajectory.Trajectory:
        if self._action_mask is not None:
            self._action_mask.check(time_step, self._num_steps)
        self._num_steps += 1
        state = self._policy_state
        action, self._policy_state, info = self._policy.step(time_step, state)
        self._time_step = next_time_step = self._environment.step(action)
        # FIRST is 0; no action leads to it.
        self.env_steps += int(np.count_nonzero(next_time_step.step_type))
        reported = self._environment.info
        if reported and EXECUTED_ACTION in reported:
            action = reported[EXECUTED_ACTION]
            if not self._checked_executed_action:
                environment = self._environment
                check_batch(action, environment.specs.action, environment.num_environments, 'executed action')
                self._checked_executed_action = True
        if self._stores_policy_state:
            info = recurrent_state.add(
                info, recurrent_state.before_step(time_step.step_type, state, self._initial_state)
            )
        return trajectory.Trajectory(
            step_type=time_step.step_type,
            observation=time_step.observation,
            action=action,
            policy_info=info,
            next_step_type=next_time_step.step_type,
            reward=next_time_step.reward,
            discount=next_time_step.discount,
        )
