"""Environments by their gymnasium names."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import RecordVideo

from tflearn.environments import registry, vector_env
from tflearn.errors import UserValueError
from tflearn.types import BatchedEnvironment

Vectorization = Literal['auto', 'native', 'in_process', 'worker_processes']


def make(
    name: str,
    num_environments: int,
    seed: int | None,
    vectorization: Vectorization = 'auto',
    max_episode_steps: int | None = None,
    kwargs: dict[str, Any] | None = None,
    step_timeout_secs: float = vector_env.STEP_TIMEOUT_SECS,
    register: Callable[[], object] | None = None,
) -> BatchedEnvironment:
    """Makes a batch of a gymnasium environment.

    Terminated is LAST with discount 0, truncated LAST with discount 1. Observations and actions of dtype float64 become
    float32, discrete ones int64 counted from 0.

    Args:
      name: a registered name such as 'CartPole-v1', or 'module:Name-v0' to import `module` first.
      num_environments: copies that are stepped together.
      seed: environment i is seeded with seed + i; None draws the seeds. ('native': the batch is seeded with seed.)
      vectorization: 'native' is the vector environment that is registered under the name, by far the fastest: all
        copies in one call. 'in_process' steps copies one after the other. 'worker_processes' gives each a process of
        its own, which pays off where a step takes longer than about half a millisecond, and is the only one to help
        against environments that hang or die. 'auto' is 'native' where that is registered as the same task and neither
        `max_episode_steps` nor `kwargs` are given, else 'in_process'.
      max_episode_steps: truncates episodes after so many steps; None keeps what is registered.
      kwargs: passed to the environment's constructor.
      step_timeout_secs: a worker process that takes longer for a step or a reset is replaced by a new one.
      register: a function that registers environments, for packages that do not do so when they are imported; it is
        called unless `name` is registered already.

    Returns:
      The batch; see `BatchedEnvironment`. Close it when done.

    Raises:
      ValueError: for an unknown name, one that needs something that is not installed, or unfit arguments.
      RuntimeError: if an environment cannot be made in its worker process.
    """
    _check(num_environments, seed, vectorization, max_episode_steps, step_timeout_secs)
    spec = registry.find(name, register)
    if vectorization == 'native' and spec.vector_entry_point is None:
        raise UserValueError(f"got vectorization='native' of name={name!r}, which has none registered; choose 'auto'")
    try:
        # gymnasium's checker goes over every step at a cost above the step's; our conformance test stands in for it.
        make_one = functools.partial(
            gymnasium.make, spec, max_episode_steps=max_episode_steps, disable_env_checker=True, **(kwargs or {})
        )
        limit = {} if max_episode_steps is None else {'max_episode_steps': max_episode_steps}
        make_all = functools.partial(
            gymnasium.make_vec, spec, vectorization_mode='vector_entry_point', **limit, **(kwargs or {})
        )
        if vectorization == 'auto':
            plain = max_episode_steps is None and not kwargs and spec.vector_entry_point is not None
            vectorization = 'native' if plain and _are_same_task(make_one, make_all) else 'in_process'
        if vectorization == 'native':
            return vector_env.native(functools.partial(make_all, num_envs=num_environments), seed)
        if vectorization == 'in_process':
            return vector_env.in_process(make_one, num_environments, seed)
        return vector_env.in_worker_processes(make_one, num_environments, seed, step_timeout_secs)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise registry.missing(name, error) from error
    except TypeError as error:
        raise UserValueError(
            f'got name={name!r}, kwargs={kwargs}; need what an environment of fixed-size spaces takes ({error})'
        ) from error


def record(
    name: str,
    folder: str,
    max_episode_steps: int | None = None,
    kwargs: dict[str, Any] | None = None,
    register: Callable[[], object] | None = None,
) -> BatchedEnvironment:
    """Makes a batch of one environment that films its episodes with gymnasium's recorder. (Extra: video.)

    Args:
      name: as for `make`.
      folder: of the films; one is whole when its episode has ended and the next one has begun, or the environment is
        closed.
      max_episode_steps: as for `make`.
      kwargs: as for `make`.
      register: as for `make`.

    Raises:
      ValueError: as `make` does, and if the environment cannot be drawn, or the extra is not installed.
    """
    _check(1, None, 'in_process', max_episode_steps, vector_env.STEP_TIMEOUT_SECS)
    spec = registry.find(name, register)

    def make_one() -> gymnasium.Env:
        arguments = {'max_episode_steps': max_episode_steps, 'disable_env_checker': True, **(kwargs or {})}
        drawn = gymnasium.make(spec, render_mode='rgb_array', **arguments)
        return RecordVideo(drawn, folder, episode_trigger=lambda episode: True, name_prefix='film')

    try:
        return vector_env.in_process(make_one, 1, seed=None)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise registry.missing(name, error) from error
    except (TypeError, gymnasium.error.Error) as error:
        raise UserValueError(
            f'got name={name!r}, kwargs={kwargs}; need an environment that can be drawn ({error})'
        ) from error


def _check(
    num_environments: int,
    seed: int | None,
    vectorization: str,
    max_episode_steps: int | None,
    step_timeout_secs: float,
) -> None:
    registry.check_num_environments(num_environments)
    if seed is not None and seed < 0:
        raise UserValueError(f'got seed={seed}; need 0 or more, or None')
    if vectorization not in get_args(Vectorization):
        raise UserValueError(f'got vectorization={vectorization!r}; need one of {", ".join(get_args(Vectorization))}')
    if max_episode_steps is not None and max_episode_steps < 1:
        raise UserValueError(f'got max_episode_steps={max_episode_steps}; need at least 1, or None')
    if step_timeout_secs <= 0:
        raise UserValueError(f'got step_timeout_secs={step_timeout_secs}; need more than 0')


def _are_same_task(make_one: Callable[[], gymnasium.Env], make_all: Callable[..., VectorEnv]) -> bool:
    """Returns whether the vector environment looks like the single one (Atari's preprocesses what it shows)."""
    with contextlib.closing(make_one()) as one, contextlib.closing(make_all(num_envs=1)) as native:
        return (
            native.metadata.get('autoreset_mode') == AutoresetMode.NEXT_STEP
            and native.single_observation_space == one.observation_space
            and native.single_action_space == one.action_space
        )
