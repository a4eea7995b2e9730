"""Environments as `types.BatchedEnvironment`: some copies of a task, stepped together;
external simulators.
"""

import importlib

from tflearn.core import preflight


def __getattr__(name: str) -> object:
    """Imports a module, such as that of `from tflearn.environments import gymnasium_env`: a program's
    first import of TensorFlow may be that, and is then without its noise.
    """
    if name.startswith('_'):
        raise AttributeError(f'module {__name__} has no attribute {name!r}')
    module = f'{__name__}.{name}'
    with preflight.quiet_imports(finds_gpus=False):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:  # a package that it needs
                raise
            raise AttributeError(f'module {__name__} has no attribute {name!r}') from error
