"""Checks that a run's environment exists and that its packages are installed, without TensorFlow or an environment."""

from collections.abc import Mapping
from typing import Any

from tflearn import extras
from tflearn.environments import registry
from tflearn.errors import UserValueError

_GYMNASIUM = ('tflearn.environments.gymnasium_env.make', 'tflearn.environments.gymnasium_env.record')

# Factory -> the module that it needs.
_NEEDED = {
    'tflearn.environments.atari.make': 'ale_py',
    'tflearn.environments.dm_control_env.make': 'dm_control',
    'tflearn.environments.dm_control_env.from_dm_env': 'dm_env',
    'tflearn.environments.envpool_env.make': 'envpool',
    'tflearn.environments.gymnasium_env.record': 'moviepy',
}


def check(factory: str, arguments: Mapping[str, Any]) -> None:
    """Checks an environment factory's bound arguments; does nothing for other functions.

    Args:
      factory: the factory's name with its module.
      arguments: the bound arguments by name; None for an unknown value.

    Raises:
      ValueError: if the environment is unknown, or if a package that it needs is not installed.
    """
    needed = _NEEDED.get(factory)
    if needed and extras.is_missing(needed):
        raise UserValueError(
            f'got {factory}, which needs {needed}; need that installed; {extras.install_command(needed)}'
        )
    name = arguments.get('name')
    if factory in _GYMNASIUM and isinstance(name, str) and 'register' not in arguments:
        registry.check(name)
