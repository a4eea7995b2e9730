"""Files of a log that others write: those of a directory that are complete, in their order."""

import pathlib
from collections.abc import Sequence

from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import local_path


def find(paths: Sequence[str], name: str) -> list[pathlib.Path]:
    """Returns files, and of directories the complete ones, `<name>-*.jsonl`.

    Raises:
      ValueError: if a directory has none, or there is no such file.
    """
    found: list[pathlib.Path] = []
    for path in (local_path(path, name) for path in paths):
        inside = sorted(path.glob(f'{name}-*.jsonl')) if path.is_dir() else [path] if path.exists() else []
        if not inside:
            raise UserValueError(f'got {name}={path}; need a file, or a directory with {name}-*.jsonl')
        found += inside
    return found
