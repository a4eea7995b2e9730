"""Finds a run's gin file: by path, or by name among the packaged ones.
Needs neither gin nor TensorFlow.
"""

import difflib
import functools
import os
import pathlib

from absl import logging

from tflearn.core.errors import UserValueError

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def folder() -> pathlib.Path:
    """Returns the packaged gin files' folder, beside the package:
    `tflearn_gin` where it is installed, else `gin`.
    """
    installed = _ROOT / 'tflearn_gin'
    return installed if installed.is_dir() else _ROOT / 'gin'


def names() -> list[str]:
    """Returns the names of the packaged gin files, without their ending:
    'dqn_cartpole', 'algorithms/dqn', ...
    """
    root = folder()
    return sorted(path.relative_to(root).with_suffix('').as_posix() for path in root.rglob('*.gin'))


def runs() -> list[str]:
    """Returns the names of the runs: not of parts of them."""
    return [name for name in names() if '/' not in name and name != 'jobs']


def resolve(name: str) -> pathlib.Path:
    """Finds a gin file. If several have the name, a warning names the one that is used.

    Args:
      name: a path, or the name of a packaged file with or without '.gin'. A path that exists comes
        first.

    Raises:
      ValueError: if there is none; the message names similar ones.
    """
    path = pathlib.Path(os.path.expanduser(name))
    packaged = (folder() / name, folder() / f'{name}.gin')
    # os.path's function, for which what cannot be a path is no file.
    found = [candidate.absolute() for candidate in (path, *packaged) if os.path.isfile(candidate)]
    if found:
        others = [*found[1:], pathlib.Path(f'{path}.gin').absolute()]
        for other in others:
            if os.path.isfile(other) and not other.samefile(found[0]):
                _warn(name, found[0], other)
        return found[0]
    there_are = names()
    by_last_part = {there_is.rpartition('/')[2]: there_is for there_is in reversed(there_are)}
    near = [by_last_part[part] for part in difflib.get_close_matches(path.name.removesuffix('.gin'), by_last_part, n=3)]
    advice = f'did you mean {" or ".join(near)}? ' if near else ''
    raise UserValueError(
        f'got gin_file={name!r}; {advice}need the path of a file, or the name of one of the {len(there_are)} packaged '
        f'ones, such as {", ".join(runs()[:3]) or "(there are none here)"}; all of them are in {folder()}'
    )


@functools.cache  # Each program reads its files several times.
def _warn(name: str, taken: pathlib.Path, other: pathlib.Path) -> None:
    logging.warning('the gin file %s is %s; %s has the same name and is not used', name, taken, other)
