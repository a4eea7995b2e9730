"""Locks of open files, by the kernel: among the processes of one machine, until all that have the file open have ended.

Who owns a run directory, also among machines, is `lock.py`.
"""

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator
from typing import IO, Any


def try_lock(file: IO[Any] | int) -> bool:
    """Locks an open file, or its descriptor; returns False if another process has locked it.

    Raises:
      OSError: if its file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Locks a file, which is made, for the time of the block; waits for another process that has locked it."""
    with path.open('ab') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
