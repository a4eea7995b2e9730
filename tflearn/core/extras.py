"""Extras: the optional packages by the modules that they install,
and the command that installs a missing one.
"""

import contextlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from tflearn.core.errors import UserImportError

# Module -> the extra of this package that installs it.
_EXTRAS = {
    'mujoco': 'mujoco',
    'imageio': 'mujoco',
    'ale_py': 'atari',
    'minatar': 'minatar',
    'Box2D': 'box2d',
    'envpool': 'envpool',
    'jax': 'tasks',
    'brax': 'tasks',
    'gymnax': 'tasks',
    'pettingzoo': 'games',
    'dm_control': 'dm-control',
    'dm_env': 'dm-control',
    'grpc': 'serving',
    'grpc_health': 'serving',
    'prometheus_client': 'serving',
    'tensorflow_serving': 'serving',
    'moviepy': 'video',
    'minari': 'minari',
    'h5py': 'minari',
    'PIL': 'minari',
    'tensorflow_datasets': 'rlds',
    'fsspec': 'stores',
    's3fs': 'stores',
    'zstandard': 'valkey',
    'pyarrow': 'product',
    'jinja2': 'experiments',  # and of product
    'optuna': 'experiments',
    'yaml': 'clusters',
    'onnx': 'onnx',
    'onnxruntime': 'onnx',
    'tf2onnx': 'onnx',
}

_DISTRIBUTION = 'tflearn-agents'


def install_command(module: str) -> str | None:
    """Returns the command that installs `module` with its extra's packages;
    None if `module` belongs to no extra.

    The command names the packages themselves: this package is on no index, and a wheel comes
    without a checkout.
    """
    extra = _EXTRAS.get(module.partition('.')[0])
    if extra is None:
        return None
    has, lacks = 'python_version < "3.12"', 'python_version >= "3.12"'
    if sys.version_info >= (3, 12):
        has, lacks = lacks, has
    needed = [each.removesuffix(f'; {has}') for each in _requirements(extra) if not each.endswith(lacks)]
    command = f'pip install {" ".join(map(repr, needed))}' if needed else 'run it with Python 3.12 or 3.13'
    return f'{command} (the extra {extra})'


def _requirements(extra: str) -> list[str]:
    """Returns what an extra requires by the metadata of this package;
    of one that is not installed, the extra.
    """
    mark = re.compile(rf'(;| and) extra == "{extra}"$')
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found = importlib.metadata.requires(_DISTRIBUTION) or ()
        # Versions of setuptools write the ends of a range in different orders.
        in_order = lambda each: re.sub(r'(<[\d.]+),(>=[\d.]+)', r'\2,\1', each)  # noqa: E731
        return [in_order(mark.sub('', each)) for each in found if mark.search(each)]
    return [f'.[{extra}]']


@contextlib.contextmanager
def needed_by(user: str) -> Iterator[None]:
    """Around imports of optional packages: raises UserImportError where `user`, such as 'serving',
    lacks one.
    """
    try:
        yield
    except ImportError as error:
        remedy = install_command(error.name or '') or f'install it ({error})'
        raise UserImportError(f'got no {error.name}, which {user} needs; need that installed; {remedy}') from error


def check_installed(module: str, user: str) -> None:
    """Raises UserImportError if `module` of an extra, which `user` needs, is not installed.
    Imports nothing.
    """
    if is_missing(module):
        raise UserImportError(f'got no {module}, which {user} needs; need that installed; {install_command(module)}')


def default_replay_backend() -> str:
    """Returns the server that keeps a replay: 'reverb' where it is installed, else 'valkey'.
    Imports nothing.
    """
    return 'reverb' if importlib.util.find_spec('reverb') else 'valkey'


def is_missing(module: str) -> bool:
    """Whether `module` belongs to an extra and is not installed. Imports nothing."""
    return module in _EXTRAS and importlib.util.find_spec(module) is None


class _Unraised(Exception):
    pass


class Absent:
    """Stands for a package that could not be imported,
    in code that only some processes use it from.

    Its names are such objects too, so that annotations can be read; its errors are ones that
    nothing raises. Whoever calls one gets the error.
    """

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        if name.endswith('Error'):
            return _Unraised
        return Absent(f'{self._name}.{name}')

    def __or__(self, other: Any) -> 'Absent':
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        package = self._name.partition('.')[0]
        raise UserImportError(
            f'got a call of {self._name} where {package} cannot be imported; need {package}, or a learner that is fed '
            'by a feed job (tflearn-train --feed_address)'
        )
