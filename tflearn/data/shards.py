"""The files of a data set of episodes, and what their names say of them."""

import pathlib
import re
from typing import NamedTuple

from tflearn.core.errors import UserOSError

SUFFIX = '.tfrecord'
_SHARD = re.compile(r'(?P<writer>[\w.]+)-(?P<number>\d{5})-e(?P<episodes>\d+)-s(?P<steps>\d+)\.tfrecord(\.gz)?')


class Shard(NamedTuple):
    """A complete file of a data set: its name holds what is in it,
    so it is complete as soon as it has that name.
    """

    path: pathlib.Path
    writer: str
    number: int
    episodes: int
    steps: int


def find_shards(directory: pathlib.Path) -> list[Shard]:
    """Returns the complete files of a data set, in the order of their names.

    Raises:
      OSError: if one of them is a directory, a named pipe or the like.
    """
    found = [(path, _SHARD.fullmatch(path.name)) for path in sorted(directory.glob(f'*{SUFFIX}*'))]
    for path, match in found:
        # To open a named pipe would wait for ever.
        if match and path.exists() and not path.is_file():
            raise UserOSError(f'got {path}, which is no regular file; need files of episodes; remove it')
    return [
        Shard(path, match['writer'], int(match['number']), int(match['episodes']), int(match['steps']))
        for path, match in found
        if match
    ]
