"""Whether a run's environment can be made: its name, and the packages it needs. Loads no TensorFlow, makes nothing."""

from collections.abc import Mapping
from typing import Any

from tflearn import extras
from tflearn.environments import registry
from tflearn.errors import UserValueError

_GYMNASIUM = ('tflearn.environments.gymnasium_env.make', 'tflearn.environments.gymnasium_env.record')

# Factory -> the module without which it makes nothing.
_NEEDED = {
    'tflearn.environments.atari.make': 'ale_py',
    'tflearn.environments.dm_control_env.make': 'dm_control',
    'tflearn.environments.dm_control_env.from_dm_env': 'dm_env',
    'tflearn.environments.envpool_env.make': 'envpool',
    'tflearn.environments.gymnasium_env.record': 'moviepy',
}


def check(factory: str, arguments: Mapping[str, Any]) -> None:
    """Checks what a factory is given by its binding; does nothing for a function that is no factory.

    Args:
      factory: its name with its module.
      arguments: by name; what is not known is None.

    Raises:
      ValueError: if the environment is unknown or a package that it needs is not installed.
    """
    needed = _NEEDED.get(factory)
    if needed and extras.is_missing(needed):
        raise UserValueError(
            f'got {factory}, which needs {needed}; need that installed; {extras.install_command(needed)}'
        )
    name = arguments.get('name')
    if factory in _GYMNASIUM and isinstance(name, str) and 'register' not in arguments:
        registry.check(name)
