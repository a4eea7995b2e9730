"""gymnasium's registry: finds environments by name, and makes errors for unknown ones.
Imports no TensorFlow.
"""

import contextlib
import difflib
import importlib
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import gymnasium

from tflearn.core import extensions, extras
from tflearn.core.errors import UserError, UserValueError

# Namespace of environment names -> the module that registers them when it is imported.
_NAMESPACES = {'ALE': 'ale_py'}

# Package of gymnasium's own environments -> the module that they need.
_NEEDED = {'gymnasium.envs.mujoco': 'mujoco', 'gymnasium.envs.box2d': 'Box2D'}

_PETTINGZOO = 'tflearn.extensions.games.pettingzoo_env.make'
_GYMNASIUM = 'tflearn.environments.gymnasium_env.make'

# Environment factory -> the module that it needs.
_NEEDED_BY_FACTORY = {
    'tflearn.environments.atari.make': 'ale_py',
    'tflearn.extensions.tasks.minatar_env.make': 'minatar',
    'tflearn.environments.dm_control_env.make': 'dm_control',
    'tflearn.environments.dm_control_env.from_dm_env': 'dm_env',
    'tflearn.environments.envpool_env.make': 'envpool',
    'tflearn.extensions.tasks.jax_env.make': 'jax',
    'tflearn.extensions.tasks.jax_env.from_functions': 'jax',
    'tflearn.environments.window.record': 'moviepy',
}


def find(name: str, register: Callable[[], object] | None = None) -> gymnasium.envs.registration.EnvSpec:
    """Returns the spec that is registered under a name.

    Args:
      register: a function to call first if nothing is registered under that name.

    Raises:
      ValueError: if nothing is registered under that name, or a package is missing.
    """
    module, _, registered_name = name.rpartition(':')
    module = module or _NAMESPACES.get(registered_name.partition('/')[0], '')
    try:
        if module:
            importlib.import_module(module)
        if register and registered_name not in gymnasium.registry:
            register()
        return gymnasium.spec(registered_name)
    except ImportError as error:
        raise missing(name, error) from error
    except gymnasium.error.Error as error:
        what = "a registered gymnasium environment, or 'module:Name-v0' for one that `module` registers"
        raise unknown('name', name, gymnasium.registry, what) from error


def check(name: str) -> None:
    """Checks a name without making the environment or importing the module in 'module:Name-v0'.

    Raises:
      ValueError: if nothing is registered under that name, or the extra that it needs is not
        installed.
    """
    if ':' in name:
        return
    needed = _NAMESPACES.get(name.partition('/')[0])
    if needed is None:
        entry_point = find(name).entry_point
        needed = next((module for package, module in _NEEDED.items() if str(entry_point).startswith(package)), None)
    if needed and extras.is_missing(needed):
        raise missing(name, ModuleNotFoundError(name=needed))


@contextlib.contextmanager
def needed(name: str) -> Iterator[None]:
    """Around imports for the environment `name`, and around making it:
    a missing package becomes a ValueError.
    """
    try:
        yield
    except UserError:
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise missing(name, error) from error


def missing(name: str, error: BaseException) -> UserValueError:
    """Returns the error to raise, in one line, if making the environment `name` raised `error`."""
    # gymnasium's own error does not name the module; its cause does.
    cause = error if isinstance(error, ImportError) else error.__cause__
    module = (getattr(cause, 'name', None) or '').partition('.')[0]
    if name.partition(':')[0] == getattr(cause, 'name', None):
        return UserValueError(
            f'got name={name!r}, whose module {module} is not there; need it in the working directory '
            f'({pathlib.Path.cwd()}), on PYTHONPATH, or installed'
        )
    remedy = extras.install_command(module) or f'install it ({error})'
    return UserValueError(f'got name={name!r}, which needs {module or "a package"}; need that installed; {remedy}')


def unknown(argument: str, name: str, known: Iterable[str], what: str) -> UserValueError:
    """Returns the error to raise if `name`, with or without 'module:',
    is not among the `known` names of `what`.
    """
    by_lower_case = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.rpartition(':')[2].lower(), by_lower_case, n=3, cutoff=0.5)
    nearest = ', '.join(by_lower_case[other] for other in near)
    return UserValueError(f'got {argument}={name!r}; need {what}; nearest: {nearest or "none"}')


def check_factory(factory: str, arguments: Mapping[str, Any]) -> None:
    """Checks an environment factory's bound arguments; does nothing for other functions.

    Args:
      factory: the factory's name with its module.
      arguments: the bound arguments by name; None for an unknown value.

    Raises:
      ValueError: if the environment is unknown, if a package that it needs is not installed, or if
        not exactly one policy of several is without a partner.
    """
    needed = _NEEDED_BY_FACTORY.get(factory)
    if needed and extras.is_missing(needed):
        raise UserValueError(
            f'got {factory}, which needs {needed}; need that installed; {extras.install_command(needed)}'
        )
    name = arguments.get('name')
    if factory == _GYMNASIUM and isinstance(name, str) and 'register' not in arguments:
        check(name)
    policies, played = (arguments.get(argument, {}) for argument in ('policies', 'partners'))
    if factory == _PETTINGZOO and isinstance(policies, Mapping) and isinstance(played, Mapping):
        extensions.load('partners').check(policies, played)
