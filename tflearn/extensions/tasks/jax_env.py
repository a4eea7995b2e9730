"""Environments written in JAX (Brax with MuJoCo MJX, gymnax, functions of one's own),
thousands in one call.
"""

import functools
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.experimental.functional import FuncEnv
from gymnasium.vector import AutoresetMode, VectorEnv

from tflearn.core.errors import UserTypeError
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import registry, vector_env
from tflearn.environments.vector_env import OnNonfinite

# Environments of one call that begin new episodes; when there are more, all are reset and the
# others are left alone.
_FEW = 32


@checked
def make(
    name: str,
    num_environments: PositiveInt,
    seed: int | None,
    max_episode_steps: PositiveInt | None = None,
    kwargs: Mapping[str, Any] | None = None,
    on_nonfinite: OnNonfinite = 'rebuild',
) -> BatchedEnvironment:
    """Makes a batch of an environment of Brax or gymnax,
    which JAX compiles and steps on its device.

    Args:
      name: 'brax/ant' or 'gymnax/CartPole-v1', by the library's name of the environment.
      num_environments: the number of environments, which are stepped in one call.
      seed: environment i is seeded with seed + i; None draws the seeds.
      max_episode_steps: the number of steps after which an episode is truncated; None keeps
        gymnax's own limit, which is truncation here too, and is 1,000 for Brax.
      kwargs: further arguments of the environment, such as {'backend': 'mjx'} of Brax; of gymnax,
        those of its constructor.
      on_nonfinite: what happens if an observation or a reward is not finite, see
        `gymnasium_env.make`.

    Returns:
      The batch; see `BatchedEnvironment`. Close it when done.

    Raises:
      ValueError: for an unknown name, if the library is not installed, or for invalid arguments.
    """
    library, _, environment = name.partition('/')
    if library not in _LIBRARIES:
        raise registry.unknown('name', name, [f'{each}/' for each in _LIBRARIES], "'brax/NAME' or 'gymnax/NAME'")
    make_one = functools.partial(_LIBRARIES[library], name, environment, dict(kwargs or {}))
    with registry.needed(name):
        limit = max_episode_steps or make_one().limit
    return from_functions(make_one, num_environments, seed, limit, on_nonfinite)


@checked
def from_functions(
    make_one: Callable[[], FuncEnv],
    num_environments: PositiveInt,
    seed: int | None,
    max_episode_steps: PositiveInt | None = None,
    on_nonfinite: OnNonfinite = 'rebuild',
) -> BatchedEnvironment:
    """Makes a batch of an environment whose functions JAX can compile, as gymnasium describes them.

    Args:
      make_one: makes the environment: a `gymnasium.experimental.functional.FuncEnv` with `initial`,
        `transition`, `observation`, `reward` and `terminal` of one environment, without a batch
        dimension; such as a class of yours.
      num_environments: the number of environments, which are stepped in one call.
      seed: environment i gets the random key of seed + i; None draws the seeds.
      max_episode_steps: the number of steps after which an episode is truncated; None: never.
      on_nonfinite: what happens if an observation or a reward is not finite, see
        `gymnasium_env.make`.

    Returns:
      The batch; see `BatchedEnvironment`. Close it when done.

    Raises:
      ValueError: if JAX is not installed, or for an unsupported space.
      TypeError: if `make_one` makes something else.
    """
    with registry.needed('jax_env.from_functions'):
        import jax  # noqa: F401
    return vector_env.native(lambda: _JaxVectorEnv(make_one, num_environments, max_episode_steps), seed, on_nonfinite)


class _JaxVectorEnv(VectorEnv):
    """A `FuncEnv` as a gymnasium vector environment, whose steps are one compiled program each.

    The states stay on JAX's device. NumPy sees observations and rewards without a copy where that
    is the CPU.
    """

    metadata = {'autoreset_mode': AutoresetMode.NEXT_STEP}  # noqa: RUF012 (gymnasium's)

    def __init__(self, make_one: Callable[[], FuncEnv], num_envs: int, max_episode_steps: int | None):
        self._make_one, self.num_envs, self._limit = make_one, num_envs, max_episode_steps
        self._compile()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        """See `gymnasium.vector.VectorEnv`."""
        first = secrets.randbelow(2**32) if seed is None else seed
        seeds = (first + np.arange(self.num_envs)) % 2**32
        self._keys, self._state, observation = self._begin(seeds.astype(np.uint32))
        self._steps = np.zeros(self.num_envs, np.int64)
        self._ended = np.zeros(self.num_envs, bool)
        return _arrays(observation), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """See `gymnasium.vector.VectorEnv`."""
        self._keys, self._state, observation, reward, terminated = self._step(self._keys, self._state, actions)
        began, reward = self._ended, np.asarray(reward, np.float32)
        terminated = np.asarray(terminated, bool)
        self._steps += 1
        if began.any():
            rows = np.flatnonzero(began)
            few = min(_FEW, self.num_envs)
            # Two programs, whatever the number of rows: rows that stand twice get the same values.
            rows = np.resize(rows, few if len(rows) <= few else self.num_envs)
            self._keys, self._state, observation = self._begin_rows(self._keys, self._state, observation, rows)
            reward, terminated = np.where(began, 0, reward), terminated & ~began
            self._steps[began] = 0
        truncated = np.full(self.num_envs, False) if self._limit is None else self._steps >= self._limit
        self._ended = terminated | truncated
        return _arrays(observation), reward, terminated, truncated, {}

    def __getstate__(self) -> dict[str, Any]:
        made = ('_begin', '_begin_rows', '_step', 'single_observation_space', 'single_action_space')
        return {name: _arrays(value) for name, value in vars(self).items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def _compile(self) -> None:
        import jax

        functional = self._make_one()
        if not isinstance(functional, FuncEnv):
            raise UserTypeError(
                f'got {functional!r}; need a gymnasium.experimental.functional.FuncEnv; for an object of Brax or '
                "gymnax use jax_env.make(name='brax/ant')"
            )
        self.single_observation_space = functional.observation_space
        self.single_action_space = functional.action_space

        def begin(key: Any) -> Any:
            key, key_now = jax.random.split(key)
            state = functional.initial(key_now)
            return key, state, functional.observation(state, key_now)

        def step(key: Any, state: Any, action: Any) -> Any:
            key, key_now = jax.random.split(key)
            following = functional.transition(state, action, key_now)
            reward = functional.reward(state, action, following, key_now)
            observation = functional.observation(following, key_now)
            return key, following, observation, reward, functional.terminal(following, key_now)

        def begin_rows(keys: Any, state: Any, observation: Any, rows: Any) -> Any:
            begun = jax.vmap(begin)(keys[rows])
            now = keys, state, observation
            # gymnax begins with bool and goes on with int32 in places.
            return jax.tree.map(lambda old, new: old.at[rows].set(new.astype(old.dtype)), now, begun)

        self._begin = jax.jit(jax.vmap(lambda seed: begin(jax.random.PRNGKey(seed))))
        self._begin_rows = jax.jit(begin_rows)
        self._step = jax.jit(jax.vmap(step))


def _arrays(nest: Any) -> Any:
    import jax

    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, nest)


class _Brax(FuncEnv):
    """An environment of Brax, whose state has observation, reward and end."""

    limit = 1_000  # of Brax's own trainers, whose environments have none [environment steps]

    def __init__(self, environment: Any):
        self._environment = environment
        self.observation_space = _box(environment.observation_size)
        self.action_space = gymnasium.spaces.Box(-1, 1, (environment.action_size,), np.float32)

    def initial(self, rng: Any, params: Any = None) -> Any:
        return self._environment.reset(rng)

    def transition(self, state: Any, action: Any, rng: Any, params: Any = None) -> Any:
        return self._environment.step(state, action)

    def observation(self, state: Any, rng: Any, params: Any = None) -> Any:
        return state.obs

    def reward(self, state: Any, action: Any, next_state: Any, rng: Any, params: Any = None) -> Any:
        return next_state.reward

    def terminal(self, state: Any, rng: Any, params: Any = None) -> Any:
        return state.done > 0


def _box(size: Any) -> gymnasium.Space:
    if isinstance(size, Mapping):
        return gymnasium.spaces.Dict({key: _box(part) for key, part in size.items()})
    return gymnasium.spaces.Box(-np.inf, np.inf, size if isinstance(size, tuple) else (size,), np.float32)


def _brax(name: str, environment: str, kwargs: dict[str, Any]) -> _Brax:
    from brax import envs

    if environment not in envs._envs:
        raise registry.unknown('name', name, [f'brax/{each}' for each in envs._envs], 'an environment of Brax')
    return _Brax(envs.get_environment(environment, **kwargs))


class _Gymnax(FuncEnv):
    """An environment of gymnax, whose state here is its own with the observation,
    the reward and the end.
    """

    def __init__(self, environment: Any, params: Any):
        from gymnax.environments import spaces

        self.limit = getattr(params, 'max_steps_in_episode', None)
        if self.limit is not None:
            # gymnax calls the end by its limit a termination; `_JaxVectorEnv` has the limit
            # instead.
            params = params.replace(max_steps_in_episode=np.iinfo(np.int32).max)
        self._environment, self._params = environment, params
        self.observation_space = spaces.gymnax_space_to_gym_space(environment.observation_space(params))
        self.action_space = spaces.gymnax_space_to_gym_space(environment.action_space(params))

    def initial(self, rng: Any, params: Any = None) -> Any:
        observation, state = self._environment.reset_env(rng, self._params)
        return state, observation, np.float32(0), False

    def transition(self, state: Any, action: Any, rng: Any, params: Any = None) -> Any:
        observation, following, reward, ended, _ = self._environment.step_env(rng, state[0], action, self._params)
        return following, observation, reward, ended

    def observation(self, state: Any, rng: Any, params: Any = None) -> Any:
        return state[1]

    def reward(self, state: Any, action: Any, next_state: Any, rng: Any, params: Any = None) -> Any:
        return next_state[2]

    def terminal(self, state: Any, rng: Any, params: Any = None) -> Any:
        return state[3]


def _gymnax(name: str, environment: str, kwargs: dict[str, Any]) -> _Gymnax:
    import gymnax

    if environment not in gymnax.registered_envs:
        known = [f'gymnax/{each}' for each in gymnax.registered_envs]
        raise registry.unknown('name', name, known, 'an environment of gymnax')
    return _Gymnax(*gymnax.make(environment, **kwargs))


_LIBRARIES: dict[str, Callable[..., Any]] = {'brax': _brax, 'gymnax': _gymnax}
