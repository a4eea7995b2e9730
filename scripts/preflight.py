"""Whether this Python can run a job at all, told in one line instead of a traceback. Needs nothing but Python."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping

from tflearn.errors import UserImportError

# The first two are built for each other: Reverb's operations are compiled against exactly this TensorFlow, which is
# compiled for NumPy 1.
NEEDED_VERSIONS = {'tensorflow': '2.15', 'dm-reverb': '0.14', 'tf-agents': '0.19', 'gin-config': '0.5', 'numpy': '1'}

# What TensorFlow 2.15 and gym print when they are imported, and what is no matter of the user's.
_IMPORT_NOISE = re.compile(
    r'Unable to register cu(DNN|FFT|BLAS) factory'
    r'|^Gym has been unmaintained|^Please upgrade to Gymnasium|^See the migration guide at https://gymnasium'
)


def check(
    needed_versions: Mapping[str, str] = NEEDED_VERSIONS, python_version: tuple[int, int] = sys.version_info[:2]
) -> None:
    """Checks the Python version and the versions of what a job stands on, without importing any of it.

    Args:
      needed_versions: by distribution name, the beginning of its version.
      python_version: major and minor.

    Raises:
      ImportError: saying what to do.
    """
    if not (3, 10) <= python_version <= (3, 11):
        raise UserImportError(
            f'got Python {python_version[0]}.{python_version[1]}; need 3.10 or 3.11, which TensorFlow 2.15 and Reverb '
            '0.14 are built for; use a virtual environment of one of them (./scripts/quickstart makes one)'
        )
    for name, needed in needed_versions.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = None
        if not f'{found}.'.startswith(f'{needed}.'):
            raise UserImportError(
                f'got {f"{name} {found}" if found else f"no {name}"} in {sys.prefix}; need {name} {needed}.*; '
                f"install it: {sys.executable} -m pip install '{name}=={needed}.*'"
            )


def import_from_here() -> None:
    """Lets modules of the working directory be imported, after all others, whichever way the program was started.

    `python -m` does so by itself, a console command does not: a run's own modules would be found by some of its jobs.
    """
    if not {'', os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())


def import_quietly(*modules: str) -> None:
    """Imports `modules` without what TensorFlow and gym always print then; everything else they print is kept.

    The output is held back while they are imported. Whoever sets TF_CPP_MIN_LOG_LEVEL sees all of it at once.

    Args:
      modules: names; one that is not installed is left out.
    """
    # tf_agents compares with `is ()`; Python says so when it compiles these files, the first time they are used.
    warnings.filterwarnings('ignore', '"is( not)?" with a literal', SyntaxWarning)
    wants_all = 'TF_CPP_MIN_LOG_LEVEL' in os.environ
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    with contextlib.nullcontext() if wants_all else _held_back_stderr():
        for module in modules:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(module)


@contextlib.contextmanager
def _held_back_stderr() -> Iterator[None]:
    """Collects what Python and C++ write to stderr, and writes it at the end without the lines that are noise."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile('w+', buffering=1, encoding='utf-8', errors='replace') as held:
        os.dup2(held.fileno(), 2)
        try:
            with contextlib.redirect_stderr(held):
                yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            sys.stderr.writelines(line for line in held if not _IMPORT_NOISE.search(line))
            sys.stderr.flush()
