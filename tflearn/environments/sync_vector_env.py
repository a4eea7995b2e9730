"""N environments that are stepped together in this process: one after the other, or as one vector environment.

Environments that raise an error are rebuilt. Those that may hang need their own processes (`worker_processes`).
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from tflearn.environments import infos
from tflearn.environments.failures import Failures, cause_of, seed_of
from tflearn.errors import UserValueError


class Step(NamedTuple):
    """The results of a step. Rebuilt environments have reward 0, and their episodes have not ended.

    Attributes:
      observation: observations in gymnasium's batched form; the next step may overwrite them.
      reward: [B], of any float type.
      terminated: bool [B].
      truncated: bool [B].
      info: see `types.BatchedEnvironment`, but actions are elements of the action space.
      rebuilt: bool [B]; None if no environment was rebuilt.
    """

    observation: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: dict[str, np.ndarray]
    rebuilt: np.ndarray | None = None


class RebuildingVectorEnv(Protocol):
    """N environments with next-step autoreset that are rebuilt when they fail."""

    num_envs: int
    single_observation_space: spaces.Space
    single_action_space: spaces.Space
    failures: Failures

    def reset(self, seed: int | None) -> Any:
        """Resets all environments, with seed, seed + 1, ...; returns their observations."""

    def step(self, action: Any) -> Step:
        """Steps all environments; those whose episode has ended are reset instead.

        Raises:
          RuntimeError: if one fails too often in a row.
        """

    def close(self) -> None:
        """Closes all environments."""


class SyncVectorEnv:
    """A `RebuildingVectorEnv` that steps its environments one after the other."""

    def __init__(self, make_one: Callable[[], gymnasium.Env], num_environments: int):
        """Makes the environments; errors of `make_one` propagate."""
        self.num_envs = num_environments
        self.failures = Failures(num_environments)
        self._make_one = make_one
        self._environments: list[gymnasium.Env] = []
        try:
            for _ in range(num_environments):
                self._environments.append(make_one())
        except BaseException:
            self.close()
            raise
        self.single_observation_space = self._environments[0].observation_space
        self.single_action_space = self._environments[0].action_space
        self._action_space = batch_space(self.single_action_space, num_environments)
        self._batch = create_empty_array(self.single_observation_space, num_environments)
        self._columns = infos.Columns(num_environments)
        self._ended = [False] * num_environments
        self._seed: int | None = None

    def reset(self, seed: int | None) -> Any:
        """See `RebuildingVectorEnv`."""
        self._seed = seed if seed is not None else self._seed
        self._ended = [False] * self.num_envs
        observations = []
        for i, environment in enumerate(self._environments):
            try:
                observations.append(environment.reset(seed=seed_of(seed, i, num_rebuilt=0))[0])
            except Exception as error:
                observations.append(self._rebuild(i, error))
        return self._concatenate(observations)

    def step(self, action: Any) -> Step:
        """See `RebuildingVectorEnv`."""
        results, failed = [], []
        for i, own_action in enumerate(iterate(self._action_space, action)):
            environment = self._environments[i]
            try:
                if self._ended[i]:
                    observation, info = environment.reset()
                    results.append((observation, 0.0, False, False, info))
                else:
                    observation, reward, terminated, truncated, info = environment.step(own_action)
                    results.append((observation, float(reward), terminated, truncated, info))
            except Exception as error:
                results.append((self._rebuild(i, error), 0.0, False, False, {}))
                failed.append(i)
        self.failures.record_step(failed)
        observations, rewards, all_terminated, all_truncated, all_infos = zip(*results, strict=True)
        self._ended = [a or b for a, b in zip(all_terminated, all_truncated, strict=True)]
        return Step(
            self._concatenate(observations),
            np.array(rewards, np.float32),
            np.array(all_terminated, bool),
            np.array(all_truncated, bool),
            self._columns.gather(all_infos, action),
            np.isin(np.arange(self.num_envs), failed) if failed else None,
        )

    def close(self) -> None:
        """See `RebuildingVectorEnv`."""
        for environment in self._environments:
            environment.close()

    def _concatenate(self, observations: Any) -> Any:
        return concatenate(self.single_observation_space, observations, self._batch)

    def _rebuild(self, i: int, error: Exception) -> Any:
        """Makes a new environment `i` until one can be reset. Returns its first observation."""
        while True:
            self.failures.add([i], cause_of(error))
            with contextlib.suppress(Exception):  # it is broken
                self._environments[i].close()
            try:
                self._environments[i] = self._make_one()
                return self._environments[i].reset(seed=seed_of(self._seed, i, self.failures.num_rebuilt))[0]
            except Exception as next_error:
                error = next_error


class NativeVectorEnv:
    """A `RebuildingVectorEnv` over a gymnasium vector environment, which is rebuilt as one if it raises an error.

    Its environments may share a random number generator.
    """

    def __init__(self, make_all: Callable[[], VectorEnv]):
        """Makes the vector environment; errors of `make_all` propagate.

        Raises:
          ValueError: if its autoreset mode is not NEXT_STEP.
        """
        self._make_all = make_all
        self._vector_env = make_all()
        mode = self._vector_env.metadata.get('autoreset_mode')
        if mode != AutoresetMode.NEXT_STEP:
            self.close()
            raise UserValueError(f'got a vector environment with autoreset mode {mode}; need {AutoresetMode.NEXT_STEP}')
        self.num_envs = self._vector_env.num_envs
        self.single_observation_space = self._vector_env.single_observation_space
        self.single_action_space = self._vector_env.single_action_space
        self.failures = Failures(self.num_envs)
        self._columns = infos.Columns(self.num_envs)
        self._seed: int | None = None

    def reset(self, seed: int | None) -> Any:
        """See `RebuildingVectorEnv`."""
        self._seed = seed if seed is not None else self._seed
        try:
            return self._vector_env.reset(seed=seed)[0]
        except Exception as error:
            return self._rebuild(error)

    def step(self, action: Any) -> Step:
        """See `RebuildingVectorEnv`."""
        try:
            observation, reward, terminated, truncated, info = self._vector_env.step(action)
        except Exception as error:
            zeros = np.zeros(self.num_envs, np.float32)
            no, yes = np.zeros(self.num_envs, bool), np.ones(self.num_envs, bool)
            return Step(self._rebuild(error), zeros, no, no, self._columns.take({}, action), yes)
        self.failures.record_step()
        return Step(observation, reward, terminated, truncated, self._columns.take(info, action))

    def close(self) -> None:
        """See `RebuildingVectorEnv`."""
        self._vector_env.close()

    def _rebuild(self, error: Exception) -> Any:
        while True:
            self.failures.add(range(self.num_envs), cause_of(error))
            with contextlib.suppress(Exception):  # it is broken
                self._vector_env.close()
            try:
                self._vector_env = self._make_all()
                return self._vector_env.reset(seed=seed_of(self._seed, 0, self.failures.num_rebuilt))[0]
            except Exception as next_error:
                error = next_error
