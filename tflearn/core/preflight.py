"""Checks that this Python can run a job, and reports a fault in one line.
Needs only the standard library.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator, Mapping

import tflearn
from tflearn.core import stderr
from tflearn.core.errors import UserImportError

# The two lanes: Reverb's operations are compiled against exactly TensorFlow 2.15, which is compiled
# for NumPy 1 and has no package for Python 3.12.
CLASSIC = {'tensorflow': '2.15', 'dm-reverb': '0.14', 'tf-agents': '0.19', 'gin-config': '0.5', 'numpy': '1'}
CURRENT = {'tensorflow': '2.21|2.20', 'tf-keras': '2.21|2.20', 'tf-agents': '0.19', 'gin-config': '0.5'}
# Packages that own the same files as TensorFlow's, and replace it.
TPU = {'tensorflow-tpu': '2.20', 'tf-keras': '2.20', 'tf-agents': '0.19', 'gin-config': '0.5'}
LANES = {(3, 11): CLASSIC, (3, 12): CURRENT, (3, 13): CURRENT}

# What TensorFlow and gym print when they are imported and, without a GPU, when TensorFlow looks for
# one; the user need not see it.
_NOISE = re.compile(
    r'Unable to register cu(DNN|FFT|BLAS) factory'
    r'|^WARNING: All log messages before absl::InitializeLog|^I0000 \d.* (port|cudart_stub)\.cc'
    r'|failed call to cuInit: .*(UNKNOWN ERROR \(303\)|CUDA_ERROR_NO_DEVICE)'
    r'|^Gym has been unmaintained|^Please upgrade to Gymnasium|^See the migration guide at https://gymnasium'
)

_LOG_LEVEL = '2'


def check(
    python_version: tuple[int, int] = sys.version_info[:2], lanes: Mapping[tuple[int, int], Mapping[str, str]] = LANES
) -> None:
    """Checks the version of Python and those of the packages that every job needs,
    without importing them.

    Args:
      lanes: how each distribution's version begins, alternatives divided by |, by its name, for
        each version of Python.

    Raises:
      ImportError: naming what to install.
    """
    if python_version not in lanes:
        raise UserImportError(
            f'got Python {python_version[0]}.{python_version[1]}; need 3.11 (with TensorFlow 2.15 and Reverb), 3.12 or '
            '3.13 (with TensorFlow 2.21, or 2.20 for TPUs); use a virtual environment of one of them (./scripts/quick'
            'start makes one)'
        )
    for name, needed in _needed(lanes[python_version]).items():
        found = _installed(name)
        versions = needed.split('|')
        if not f'{found}.'.startswith(tuple(f'{each}.' for each in versions)):
            raise UserImportError(
                f'got {f"{name} {found}" if found else f"no {name}"} in {sys.prefix}; need {name} {versions[0]}.*; '
                f"install it: {sys.executable} -m pip install '{name}=={versions[0]}.*'"
            )


def _needed(lane: Mapping[str, str]) -> Mapping[str, str]:
    """Returns what a lane needs here: where TensorFlow for TPUs is installed,
    what goes with that.
    """
    return TPU if lane is CURRENT and _installed('tensorflow-tpu') else lane


def _installed(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def versions(program: str) -> str:
    """Returns what --version prints: the program's version, and those that it runs with."""
    found = {name: _installed(name) or '(none)' for name in _needed(LANES.get(sys.version_info[:2], CURRENT))}
    others = ', '.join(f'{name} {version}' for name, version in found.items())
    return f'{program} {tflearn.__version__} (Python {platform.python_version()}, {others})'


def import_from_here() -> None:
    """Makes the modules of the working directory importable, after all others.

    `python -m` does so by itself, a console command does not: only some jobs of a run would find
    its own modules.
    """
    if not {'', os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())


def import_quietly(*modules: str, finds_gpus: bool = True) -> None:
    """Imports modules as `quiet_imports` does, by their names;
    those that are not installed are skipped.
    """
    with quiet_imports(finds_gpus):
        for module in modules:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(module)


@contextlib.contextmanager
def quiet_imports(finds_gpus: bool = True) -> Iterator[None]:
    """Makes imports print none of the lines that TensorFlow and gym always print;
    all other output is kept.

    The output is buffered during the block. With another TF_CPP_MIN_LOG_LEVEL than '2', which is
    set here, all of it is shown at once.

    Args:
      finds_gpus: whether a TensorFlow that is there then looks for GPUs now. A fork could not use
        those that its parent opened.
    """
    # tf_agents compares with `is ()`; Python warns when it compiles these files for the first time.
    warnings.filterwarnings('ignore', '"is( not)?" with .*literal', SyntaxWarning)
    wants_all = os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', _LOG_LEVEL) != _LOG_LEVEL
    with contextlib.nullcontext() if wants_all else stderr.without(_NOISE), _no_collections():
        yield
        if finds_gpus and 'tensorflow' in sys.modules:
            sys.modules['tensorflow'].config.list_physical_devices('GPU')


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Takes from the garbage collector what is imported, now and later.

    Looking through TensorFlow's million objects again and again takes a fifth of the time of its
    import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
