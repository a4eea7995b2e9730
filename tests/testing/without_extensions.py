"""Refuses imports of `tflearn.extensions`: the tests of the core pass without them, `pytest --without-extensions`."""

import contextlib
import pathlib
import sys

from tests.testing import lanes

_PACKAGE = 'tflearn.extensions'
_TESTS = pathlib.Path(__file__).parents[1]
# Tests of the core's files and of programs that use an extension: what they test is between the two.
USERS = (
    *('agents/ppo_test.py', 'environments/factories_test.py', 'networks/quantiles_test.py'),
    *('policies/action_probabilities_test.py', 'transforms/hindsight_test.py'),  # tasks
    *('policies/exporter_test.py', 'policies/loaded_model_test.py', 'policies/loader_test.py'),  # a server's policy
    *('policies/structured_policies_test.py', 'jobs/memory_test.py', 'jobs/run_kinds_test.py', 'jobs/start_test.py'),
    *('jobs/task_products_test.py', 'replay/without_reverb_test.py'),
    *('chaos', 'scripts', 'core/extensions_test.py', 'architecture_test.py'),
    *lanes.DOCUMENTS,
)


class _Refusing:
    """A finder that finds no module of an extension."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if f'{name}.'.startswith(f'{_PACKAGE}.'):
            raise ModuleNotFoundError(f'got an import of {name} without extensions', name=name)


def install():
    """Refuses them in this process from now on."""
    sys.meta_path.insert(0, _Refusing)


@contextlib.contextmanager
def hidden():
    """Refuses them during the block, also those that are loaded already."""
    loaded = {name: sys.modules.pop(name) for name in list(sys.modules) if f'{name}.'.startswith(f'{_PACKAGE}.')}
    sys.meta_path.insert(0, _Refusing)
    try:
        yield
    finally:
        sys.meta_path.remove(_Refusing)
        sys.modules.update(loaded)


def uses_them(path):
    """Returns whether a file of tests needs extensions."""
    name = path.relative_to(_TESTS).as_posix()
    return name == 'extensions' or name in USERS
