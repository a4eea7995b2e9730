"""Refuses imports of `tflearn.extensions`: the tests of the core pass without them, `pytest --extensions=none`."""

import contextlib
import pathlib
import sys

_PACKAGE = 'tflearn.extensions'
_TESTS = pathlib.Path(__file__).parents[1]
# Beside `tests/extensions`: files of tests whose subject is between the core and what stands around it. A single such
# test of another file has the mark `extensions`, and imports what it needs itself.
_USERS = (
    *('chaos', 'core/extensions_test.py', 'scripts/exit_status_test.py'),  # whole systems, and all programs
    'tf_agents_script_test.py',  # whose learner is that of an extension
)


class _Refusing:
    """A finder that finds no module of an extension."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if f'{name}.'.startswith(f'{_PACKAGE}.'):
            raise ModuleNotFoundError(f'got an import of {name} without extensions', name=name)


def install():
    """Refuses them from now on in this process, and in the programs that it starts by `forks`."""
    sys.meta_path.insert(0, _Refusing)


def is_installed():
    return _Refusing in sys.meta_path


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
    return any(name == each or name.startswith(f'{each}/') for each in ('extensions', *_USERS))
