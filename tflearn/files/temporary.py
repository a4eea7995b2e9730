"""Names of files that are being written or removed,
by which others know what a killed process has left.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import pathlib
import shutil
import socket
import time
from collections.abc import Sequence

from tflearn.files import lock

WRITTEN, REMOVED = '.writing', '.removing'
# Of small files, which several jobs and threads write into a directory.
PART = '.part'
# Temporary files of another machine are leftovers if they have not changed for this long.
_ABANDONED_SECS = 24 * 3600.0
_MAX_DIRECTORIES = 1024


@functools.lru_cache(_MAX_DIRECTORIES)
def remove_leftovers_once(directory: pathlib.Path) -> None:
    """Removes what killed processes have left in a directory,
    when this process first writes there.
    """
    with contextlib.suppress(OSError):  # the write itself says what is wrong
        remove_leftovers(directory, own=False, prefixes=(PART,))


def remove_leftovers(
    directory: pathlib.Path,
    shared: bool = True,
    own: bool = True,
    prefixes: Sequence[str] = (WRITTEN, REMOVED),
) -> None:
    """Removes temporary files of a killed writer and of this process.

    Args:
      shared: whether others may write there too. Then the files of processes that run are kept, and
        those of other machines, whose processes are not known here, until a day after their last
        change.
      own: whether no thread of this process writes there now.
      prefixes: of the names of such files.
    """
    for path in itertools.chain.from_iterable(directory.glob(f'{prefix}*') for prefix in prefixes):
        if shared and _is_in_use(path, own):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def temporary(path: pathlib.Path, prefix: str = WRITTEN) -> pathlib.Path:
    """Returns a path beside another one that only this process uses, on whichever machine."""
    return path.with_name(f'{prefix}-{path.name}-{_machine()}-{os.getpid()}')


def _is_in_use(path: pathlib.Path, own: bool) -> bool:
    """Returns whether another process, named at the end of the path, may still use it."""
    *_, machine, pid = ['', *path.name.split('-')]
    if machine != _machine():
        return time.time() - _last_change(path) < _ABANDONED_SECS
    if not pid.isdecimal():
        return False
    if int(pid) == os.getpid():
        return not own
    try:
        os.kill(int(pid), 0)
    except PermissionError:  # it is another user's
        return True
    except (OSError, OverflowError):
        return False
    return True


def _last_change(path: pathlib.Path) -> float:
    """Returns when anything in `path` was last changed [unix s];
    0 if it does not exist any more.
    """
    files = [path]
    if not path.is_symlink():
        files += [pathlib.Path(folder, name) for folder, *names in os.walk(path) for name in itertools.chain(*names)]
    newest = 0.0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            newest = max(newest, file.lstat().st_mtime)
    return newest


@functools.cache
def _machine() -> str:
    """Returns a name for the namespace of the process's number:
    a machine since its start, or a container.
    """
    name = lock.machine() or socket.gethostname()
    return hashlib.sha256(name.encode()).hexdigest()[:12]
