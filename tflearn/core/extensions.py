"""The extensions by what they bring: each name stands for a module, which is loaded where a user asks for it."""

import importlib
import types

from tflearn.core.errors import UserImportError

# Extension -> what it brings to the core, by name: a module.
_BROUGHT = {
    'clusters': {
        'kubernetes': 'tflearn.extensions.clusters.kubernetes',
        'queued_resources': 'tflearn.extensions.clusters.queued_resources',
        'ray': 'tflearn.extensions.clusters.ray_cluster',
        'slurm': 'tflearn.extensions.clusters.slurm',
    },
    'experiments': {'metric_checks': 'tflearn.extensions.experiments.series'},
    'games': {'partners': 'tflearn.extensions.games.partners'},
    'product': {'import': 'tflearn.extensions.product.log_import', 'split': 'tflearn.extensions.product.split'},
    'serving': {'policy_client': 'tflearn.extensions.serving.client'},
    'stores': {'objects': 'tflearn.extensions.stores.objects', 'run_directories': 'tflearn.extensions.stores.opening'},
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
