"""Actor: steps a batched environment with a policy and tells observers what happened."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tf_agents.policies import tf_policy
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn import specs
from tflearn.actors.compiled_policy import CompiledPolicy

Observer = Callable[[trajectory.Trajectory], None]


class Actor:
    """Acts in every environment of a batch at once: one compiled policy call and one environment step at a time.

    Attributes:
      env_steps: environment steps taken; boundary rows are none.
    """

    def __init__(
        self,
        environment: specs.BatchedEnvironment,
        policy: tf_policy.TFPolicy,
        observers: Sequence[Observer] = (),
    ):
        """Compiles the policy for the environment's batch.

        Args:
          environment: stays the caller's to close.
          policy: its variables may change between two steps.
          observers: each is called, in this order, with the Trajectory of every step: numpy arrays [B, ...], which are
            the observer's to keep and not to change. A row whose step type is LAST is the boundary between two
            episodes: its action had no effect, its reward is 0, its discount 1 and its next step type FIRST.
        """
        self.env_steps = 0
        self._environment = environment
        self._policy = CompiledPolicy(policy, environment.num_environments)
        self._observers = tuple(observers)
        self._time_step: ts.TimeStep | None = None
        self._policy_state: Any = ()

    def run(self, num_steps: int) -> None:
        """Takes `num_steps` batched steps, from where the last call left off (the first one resets the environment).

        An exception of an observer passes through; the step that it was told of counts as taken.

        Raises:
          ValueError: if the environment's time steps are not what the policy takes.
        """
        if self._time_step is None:
            time_step = self._environment.reset()
            self._policy.check(time_step)
            self._time_step = time_step
            self._policy_state = self._policy.initial_state(self._policy.batch_size)
        for _ in range(num_steps):
            row = self._step(self._time_step)
            for observer in self._observers:
                observer(row)

    def _step(self, time_step: ts.TimeStep) -> trajectory.Trajectory:
        action_step = self._policy.step(time_step, self._policy_state)
        next_time_step = self._environment.step(action_step.action)
        self._time_step, self._policy_state = next_time_step, action_step.state
        self.env_steps += int(np.count_nonzero(time_step.step_type != ts.StepType.LAST))
        return trajectory.from_transition(time_step, action_step, next_time_step)
