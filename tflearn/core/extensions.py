"""The extensions by what they bring: each name stands for a module, which is loaded where a user asks for it."""

import importlib
import types

from tflearn.core.errors import UserImportError

# Extension -> what it brings to the core, by name: a module.
_BROUGHT = {
    'clusters': {
        'kubernetes': 'tflearn.launch.kubernetes',
        'queued_resources': 'tflearn.launch.queued_resources',
        'ray': 'tflearn.launch.ray_cluster',
        'slurm': 'tflearn.launch.slurm',
    },
    'experiments': {'metric_checks': 'tflearn.tools.series'},
    'games': {'partners': 'tflearn.environments.partners'},
    'product': {'import': 'tflearn.data.log_import', 'split': 'tflearn.data.split'},
    'serving': {'policy_client': 'tflearn.serving.client'},
    'stores': {'objects': 'tflearn.files.objects', 'run_directories': 'tflearn.files.opening'},
}
_HOMES = {name: (extension, module) for extension, brought in _BROUGHT.items() for name, module in brought.items()}


def load(name: str) -> types.ModuleType:
    """Returns the module that an extension brings by this name.

    Raises:
      ImportError: if the extension is not there, or a library that it needs.
    """
    extension, module = _HOMES[name]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A library of the extension that is missing has its own message.
        if not f'{module}.'.startswith(f'{error.name}.'):
            raise
        raise UserImportError(
            f"got no extension {extension}, which brings {name}; need it installed; pip install 'tflearn-agents"
            f"[{extension}]'"
        ) from error


def find(name: str) -> types.ModuleType | None:
    """Returns the module that an extension brings by this name; None if the extension is not there."""
    try:
        return load(name)
    except UserImportError:
        return None
