"""N gymnasium environments stepped together, in this process or in one process each: one interface."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from tf_agents.trajectories import time_step as ts

from tflearn import specs
from tflearn.environments import spaces, worker_processes

# Some environments load for minutes; a worker that hangs is to be noticed all the same.
WORKER_TIMEOUT_SECS = 600.0

_FIRST, _MID = np.int32(ts.StepType.FIRST), np.int32(ts.StepType.MID)


class VectorEnvironment:
    """`specs.BatchedEnvironment` over a gymnasium vector environment.

    The arrays of a time step are the caller's: later steps leave them alone.
    """

    def __init__(self, vector_env: VectorEnv, seed: int | None):
        """Takes over `vector_env`.

        Args:
          vector_env: with next-step autoreset.
          seed: the first `reset` seeds the environments with seed, seed + 1, ...; None draws the seeds.

        Raises:
          ValueError: for another autoreset mode or an unsupported space.
        """
        mode = vector_env.metadata.get('autoreset_mode')
        if mode != AutoresetMode.NEXT_STEP:
            raise ValueError(f'got a vector environment with autoreset mode {mode}; need {AutoresetMode.NEXT_STEP}')
        self.num_environments = vector_env.num_envs
        self.specs = specs.EnvironmentSpecs(
            observation=spaces.to_spec(vector_env.single_observation_space, 'observation'),
            action=spaces.to_spec(vector_env.single_action_space, 'action'),
        )
        self._vector_env = vector_env
        self._seed = None if seed is None else int(seed)
        self._read = spaces.reader(vector_env.single_observation_space)
        self._write = spaces.writer(vector_env.single_action_space, self.num_environments)
        self._checked_action = False
        self._ended: np.ndarray | None = None

    def reset(self) -> ts.TimeStep:
        """Starts new episodes everywhere. Returns FIRST time steps [B]."""
        observation, _ = self._vector_env.reset(seed=self._seed)
        self._seed = None  # later episodes go on with the environments' own random numbers
        self._ended = np.zeros(self.num_environments, bool)
        return ts.TimeStep(
            step_type=np.full(self.num_environments, _FIRST),
            reward=np.zeros(self.num_environments, np.float32),
            discount=np.ones(self.num_environments, np.float32),
            observation=self._read(observation),
        )

    def step(self, action: Any) -> ts.TimeStep:
        """Applies `action` where an episode runs, starts a new episode where one has ended.

        Args:
          action: nest of arrays [B, ...] as `specs.action` says. Shapes and dtypes are checked always, bounds at the
            first step.

        Returns:
          Time steps [B].

        Raises:
          ValueError: if the action does not match its spec.
          RuntimeError: before `reset` and after `close`, and if a worker process died.
          TimeoutError: if a worker process hangs.
        """
        if self._ended is None:
            raise RuntimeError('got step() before reset() or after close(); need a reset() first')
        if not self._checked_action:
            specs.check_batch(action, self.specs.action, self.num_environments, 'action')
            spaces.check_bounds(action, self.specs.action)
            self._checked_action = True
        observation, reward, terminated, truncated, _ = self._vector_env.step(self._write(action))
        ended = terminated | truncated
        time_step = ts.TimeStep(
            step_type=np.where(self._ended, _FIRST, _MID + ended),  # LAST is MID + 1
            reward=reward.astype(np.float32),
            discount=np.subtract(1, terminated, dtype=np.float32),
            observation=self._read(observation),
        )
        self._ended = ended
        return time_step

    def close(self) -> None:
        """Frees what the environments hold. Calling it twice is fine."""
        self._ended = None
        self._vector_env.close()


def in_process(make_one: Callable[[], gymnasium.Env], num_environments: int, seed: int | None) -> VectorEnvironment:
    """Returns `num_environments` of `make_one()`, stepped one after the other in this process."""
    return _take_over(SyncVectorEnv([make_one] * num_environments, copy=False), seed)


def in_worker_processes(
    make_one: Callable[[], gymnasium.Env],
    num_environments: int,
    seed: int | None,
    timeout_secs: float = WORKER_TIMEOUT_SECS,
) -> VectorEnvironment:
    """Returns `num_environments` of `make_one()`, each in a process of its own.

    Pays off where a step takes longer than the half millisecond that talking to the processes costs.

    Args:
      make_one: sent to the workers with cloudpickle; a worker imports the modules it needs.
      num_environments: processes to start.
      seed: see `VectorEnvironment`.
      timeout_secs: longest time for one step or reset.

    Raises:
      RuntimeError: if a worker died or could not make its environment.
    """
    return _take_over(worker_processes.WorkerVectorEnv([make_one] * num_environments, timeout_secs), seed)


def _take_over(vector_env: VectorEnv, seed: int | None) -> VectorEnvironment:
    try:
        return VectorEnvironment(vector_env, seed)
    except ValueError:
        vector_env.close()
        raise
