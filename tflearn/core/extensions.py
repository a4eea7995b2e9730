"""The extensions by what they bring: each name stands for a module,
which is loaded where a user asks for it.

Each verb of the command `tflearn` that an extension brings stands for the extension, whose module
`cli` has it.
"""

import importlib
import pathlib
import types

from tflearn.core.errors import UserImportError
from tflearn.core.verbs import Verb

_PACKAGE = 'tflearn.extensions'
# What extensions bring to the core -> the module, in its extension.
_MODULES = {
    'data_evaluation': 'product.data_evaluation',
    'import': 'product.importing',
    'kubernetes': 'clusters.kubernetes',
    'metric_checks': 'experiments.series',
    'objects': 'stores.objects',
    'partners': 'games.partners',
    'policy_client': 'serving.client',
    'queued_resources': 'clusters.queued_resources',
    'ray': 'clusters.ray_cluster',
    'run_directories': 'stores.opening',
    'serve': 'serving.cli',
    'slurm': 'clusters.slurm',
    'split': 'product.split',
}
VERBS = {
    **dict.fromkeys(('seeds', 'tune', 'population', 'policies', 'list', 'watch'), 'experiments'),
    **dict.fromkeys(('compare', 'report', 'doctor', 'track'), 'experiments'),
    **dict.fromkeys(('promote', 'loop'), 'product'),
}


def load(name: str) -> types.ModuleType:
    """Returns the module that an extension brings by this name; see `imported`."""
    return imported(f'{_PACKAGE}.{_MODULES[name]}')


def verb(name: str) -> Verb | None:
    """Returns a verb of an extension; None if no extension brings it.
    Raises ImportError, see `imported`.
    """
    return imported(f'{_PACKAGE}.{VERBS[name]}.cli').VERBS[name] if name in VERBS else None


def files(name: str) -> list[pathlib.Path]:
    """Returns the files of this name of the extensions that are there."""
    return sorted(pathlib.Path(__file__).parents[1].glob(f'extensions/*/{name}'))


def find(name: str) -> types.ModuleType | None:
    """Returns the module that an extension brings by this name;
    None if the extension is not there.
    """
    try:
        return load(name)
    except UserImportError:
        return None


def imported(module: str) -> types.ModuleType:
    """Returns a module of the library, which may be one of an extension, by its full name.

    Raises:
      ImportError: if its extension is not there, or a library that it needs.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f'{error.name}.'.startswith(f'{_PACKAGE}.'):
            raise  # a library is missing, whose message names it
        extension = module.removeprefix(f'{_PACKAGE}.').partition('.')[0]
        raise UserImportError(
            f'got no extension {extension}, which brings {module}; need it installed; '
            f"pip install 'tflearn-agents[{extension}]'"
        ) from error
