"""EnvPool: environments that C++ threads step, for Atari, MuJoCo,
classic control and others (extra `envpool`).
"""

import functools
import secrets
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from tflearn.core.settings import NonNegativeInt, PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import registry, vector_env
from tflearn.environments.vector_env import OnNonfinite


@checked
def make(
    name: str,
    num_environments: PositiveInt,
    seed: int | None,
    max_episode_steps: PositiveInt | None = None,
    num_threads: NonNegativeInt = 0,
    kwargs: dict[str, Any] | None = None,
    on_nonfinite: OnNonfinite = 'rebuild',
) -> BatchedEnvironment:
    """Makes a batch of an EnvPool environment.
    Unlike gymnasium, EnvPool truncates an episode that terminates at the time limit.

    Args:
      name: EnvPool's name of the environment, such as 'CartPole-v1' or 'Pong-v5'.
      num_environments: the number of environments, which are stepped together.
      seed: environment i is seeded with seed + i; None draws the seeds.
      max_episode_steps: the number of steps after which an episode is truncated; None keeps
        EnvPool's limit.
      num_threads: the number of threads; 0 is the number of processors.
      kwargs: further arguments of the environment's configuration.
      on_nonfinite: what happens if an observation or a reward is not finite, see
        `gymnasium_env.make`.

    Returns:
      The batch; see `BatchedEnvironment`. Close it when done.

    Raises:
      ValueError: for an unknown name, if EnvPool is not installed, or for invalid arguments.
    """
    with registry.needed(name):
        import envpool
    if name not in (known := envpool.list_all_envs()):
        raise registry.unknown('name', name, known, 'an environment of EnvPool')
    arguments = {'num_envs': num_environments, 'num_threads': num_threads, **(kwargs or {})}
    if max_episode_steps is not None:
        arguments['max_episode_steps'] = max_episode_steps
    return vector_env.native(functools.partial(_EnvPool, name, arguments), seed, on_nonfinite)


class _EnvPool(VectorEnv):
    """An EnvPool as a gymnasium vector environment.
    A seeded reset makes a new one: only a new one takes a seed.
    """

    metadata = {'autoreset_mode': AutoresetMode.NEXT_STEP}  # noqa: RUF012 (gymnasium's)

    def __init__(self, name: str, arguments: dict[str, Any]):
        self._name = name
        self._arguments = arguments
        self.num_envs = arguments['num_envs']
        self._pool = self._make(None)
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        if seed is not None:
            self._pool.close()
            self._pool = self._make(seed)
        return self._pool.reset()

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if isinstance(self.single_action_space, gymnasium.spaces.Discrete):
            actions = actions.astype(np.int32)
        return self._pool.step(actions)

    def close_extras(self, **kwargs: Any) -> None:
        self._pool.close()

    def _make(self, seed: int | None) -> Any:
        import envpool

        # EnvPool's default is a fixed seed.
        seed = secrets.randbelow(2**31) if seed is None else seed % 2**31
        return envpool.make(self._name, env_type='gymnasium', seed=seed, **self._arguments)
