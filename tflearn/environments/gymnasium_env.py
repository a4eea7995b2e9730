"""Environments by their gymnasium names."""

import difflib
import functools
import importlib
from typing import Any, Literal, get_args

import gymnasium

from tflearn import specs
from tflearn.environments import vector_env

Vectorization = Literal['in_process', 'worker_processes']

# Module that an environment needs -> the extra of this package that installs it.
_EXTRAS = {'mujoco': 'mujoco', 'ale_py': 'atari'}
# Namespace of environment names -> the module that registers them when it is imported.
_NAMESPACES = {'ALE': 'ale_py'}


def make(
    name: str,
    num_environments: int,
    seed: int | None,
    vectorization: Vectorization = 'in_process',
    max_episode_steps: int | None = None,
    kwargs: dict[str, Any] | None = None,
) -> specs.BatchedEnvironment:
    """Makes a batch of a gymnasium environment.

    Terminated is LAST with discount 0, truncated LAST with discount 1. Observations and actions of dtype float64 become
    float32, discrete ones int64 counted from 0.

    Args:
      name: a registered name such as 'CartPole-v1', or 'module:Name-v0' to import `module` first.
      num_environments: copies that are stepped together.
      seed: environment i is seeded with seed + i; None draws the seeds.
      vectorization: 'in_process' steps them one after the other; 'worker_processes' gives each a process of its own,
        which pays off where a step takes longer than about half a millisecond.
      max_episode_steps: truncates episodes after so many steps; None keeps what is registered.
      kwargs: passed to the environment's constructor.

    Returns:
      The batch; see `specs.BatchedEnvironment`. Close it when done.

    Raises:
      ValueError: for an unknown name, one that needs something that is not installed, or unfit arguments.
      RuntimeError: if a worker process died.
    """
    _check(num_environments, seed, vectorization, max_episode_steps)
    spec = _find(name)
    try:
        # gymnasium's checker goes over every step at a cost above the step's; our conformance test stands in for it.
        make_one = functools.partial(
            gymnasium.make, spec, max_episode_steps=max_episode_steps, disable_env_checker=True, **(kwargs or {})
        )
        if vectorization == 'in_process':
            return vector_env.in_process(make_one, num_environments, seed)
        return vector_env.in_worker_processes(make_one, num_environments, seed)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise ValueError(_missing(name, error)) from error
    except TypeError as error:
        raise ValueError(
            f'got name={name!r}, kwargs={kwargs}; need what an environment of fixed-size spaces takes ({error})'
        ) from error


def _check(num_environments: int, seed: int | None, vectorization: str, max_episode_steps: int | None) -> None:
    if num_environments < 1:
        raise ValueError(f'got num_environments={num_environments}; need at least 1')
    if seed is not None and seed < 0:
        raise ValueError(f'got seed={seed}; need 0 or more, or None')
    if vectorization not in get_args(Vectorization):
        raise ValueError(f'got vectorization={vectorization!r}; need one of {", ".join(get_args(Vectorization))}')
    if max_episode_steps is not None and max_episode_steps < 1:
        raise ValueError(f'got max_episode_steps={max_episode_steps}; need at least 1, or None')


def _find(name: str) -> gymnasium.envs.registration.EnvSpec:
    """Returns what is registered under `name`."""
    module, _, registered_name = name.rpartition(':')
    module = module or _NAMESPACES.get(registered_name.partition('/')[0], '')
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(registered_name)
    except ImportError as error:
        raise ValueError(_missing(name, error)) from error
    except gymnasium.error.Error as error:
        nearest = difflib.get_close_matches(registered_name, gymnasium.registry, n=3, cutoff=0.5)
        raise ValueError(
            f'got name={name!r}; need a registered gymnasium environment; nearest: {", ".join(nearest) or "none"}'
        ) from error


def _missing(name: str, error: BaseException) -> str:
    """Says what to install; gymnasium's own message is about the module, its cause names it."""
    cause = error if isinstance(error, ImportError) else error.__cause__
    module = (getattr(cause, 'name', None) or '').partition('.')[0]
    if module in _EXTRAS:
        what, remedy = module, f'pip install "tflearn-agents[{_EXTRAS[module]}]"'
    else:
        what, remedy = module or 'a package', f'install it ({error})'
    return f'got name={name!r}, which needs {what}; need that installed; {remedy}'
