"""The files of a log: those below directories, and what their names and those of directories say of them."""

import collections
import pathlib
import re
import urllib.parse
from collections.abc import Sequence

from tflearn.core.errors import UserValueError
from tflearn.extensions.serving.decision_files import begun_at
from tflearn.files.run_dir import local_path

FORMATS = {
    '.csv': 'csv', '.parquet': 'parquet', '.tsv': 'csv', '.arrow': 'arrow', '.feather': 'arrow', '.jsonl': 'json',
    '.json': 'json', '.ndjson': 'json', '.dsjson': 'dsjson', '.vw': 'vw', '.dat': 'vw', '.txt': 'vw',
}  # fmt: skip
_PACKED = ('.gz', '.zst')
_BINARY = ('parquet', 'arrow')  # which pack their columns themselves
_OF_SERVERS = ('decisions', 'outcomes')
_NULL = '__HIVE_DEFAULT_PARTITION__'
# Letters before a number or between two signs; a to f alone may be random digits.
_WORD = re.compile(r'(?:^|(?<=[\W_]))(?![a-f]{3,}(?:[\W_]|$))[^\W\d_]+(?=[\W_]|$)|^[^\W\d_]+')
# Partitions of one source by time: year=2026/month=11, date=2026-11-01, dt=20261101, hour=2026-11-01T07.
_OF_TIME = re.compile(r'(year|month|week|day|hour|minute)=\d+|\w+=\d{4}-?\d\d(-?\d\d([T _-].*)?)?')


def find(paths: Sequence[str | pathlib.Path], name: str) -> list[pathlib.Path]:
    """Returns files, and those of directories in the order of their names, each once.

    Of a directory in which a server writes these are its complete files, `<name>-*`; of any other one all files below
    it, but hidden ones, and those whose names begin with _ or with what servers call another kind of file.

    Args:
      paths: files and directories.
      name: what they are of: 'decisions', 'outcomes', or 'from' for both in one.

    Raises:
      ValueError: if there is no such file, or a directory has none, or one that is no table.
    """
    found: dict[pathlib.Path, None] = {}
    for path in (local_path(path, f'--{name}') for path in paths):
        if not path.exists():
            raise UserValueError(f'got --{name}={path}, which cannot be read; need a file or a directory of a log')
        inside = _below(path, name) if path.is_dir() else [path]
        if not inside:
            raise UserValueError(f'got --{name}={path} without a file; need {name}-*.jsonl, or tables of any format')
        found.update(dict.fromkeys(inside))
    return list(found)


def _below(directory: pathlib.Path, name: str) -> list[pathlib.Path]:
    if own := sorted(path for path in directory.glob(f'{name}-*') if format_of(path)):
        return own
    others = tuple(f'{each}-' for each in _OF_SERVERS if name in _OF_SERVERS and each != name)
    found = [path.relative_to(directory) for path in sorted(directory.rglob('*')) if path.is_file()]
    visible = [each for each in found if not any(part.startswith(('.', '_')) for part in each.parts)]
    return [directory / each for each in visible if not each.name.startswith(others)]


def format_of(path: pathlib.Path) -> str | None:
    """Returns which of `FORMATS` a file has by its name, which may end with .gz or .zst if it is text."""
    kind = FORMATS.get(path.with_suffix('').suffix if path.suffix in _PACKED else path.suffix)
    return None if path.suffix in _PACKED and kind in _BINARY else kind


def is_text(path: pathlib.Path) -> bool:
    """Returns whether a file is text by its name, which has to be parsed."""
    return format_of(path) not in _BINARY


def partitions(path: pathlib.Path) -> dict[str, str | None]:
    """Returns the columns that the directories of a file have in their names, such as date=2026-11-01."""
    pairs = [part.split('=', 1) for part in path.parts[:-1] if '=' in part]
    return {name: None if value == _NULL else urllib.parse.unquote(value) for name, value in pairs}


def labels(paths: Sequence[pathlib.Path]) -> list[str]:
    """Returns the names of files for messages: with their directories, if several have one name."""
    count = collections.Counter(path.name for path in paths)
    return [path.name if count[path.name] == 1 else str(path) for path in paths]


def source(path: pathlib.Path) -> str:
    """Returns what the files of one source of outcomes have in common: their directory, and the words of their names.

    Directories that only say of which time a file is are left out: they are all of one source. So are numbers, random
    digits, the format, and what servers put behind the kind of a file.
    """
    kind = next((kind for kind in _OF_SERVERS if begun_at(path.name, kind) is not None), '')
    words = [kind] if kind else [word for word in _WORD.findall(path.name) if f'.{word}' not in (*FORMATS, *_PACKED)]
    parents = [part for part in path.parts[:-1] if not _OF_TIME.fullmatch(part)]
    return f'{pathlib.Path(*parents, "*".join(words))}*'
