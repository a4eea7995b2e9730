"""Renewed: settings that are made of files, and follow them when they are replaced."""

import os
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from absl import logging

from tflearn.core.errors import UserError

Settings = TypeVar('Settings')


class Renewed(Generic[Settings]):
    """Settings that are made of files, and made again when one of them has changed. Thread-safe.

    Files that cannot be used, as in the middle of a replacement, change nothing; that is logged once.
    """

    def __init__(self, files: Sequence[str | os.PathLike[str]], make: Callable[[], Settings]):
        """Makes the first settings, and raises what `make` raises: a UserError for files that cannot be used."""
        self._files, self._make = tuple(map(pathlib.Path, files)), make
        self._identity = self._identities()
        self._settings = make()
        self._renewing = threading.Lock()

    def get(self) -> Settings:
        """Returns the newest settings that could be made; asks the file system for changes at each call."""
        with self._renewing:
            identity = self._identities()
            if identity != self._identity:
                self._identity = identity
                names = ', '.join(map(str, self._files))
                try:
                    self._settings = self._make()
                    logging.info('took over what is new in %s', names)
                except UserError as error:
                    logging.warning('kept what was in %s before: %s', names, error)
            return self._settings

    def _identities(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_identity, self._files))


def _identity(file: pathlib.Path) -> tuple[int, int, int] | None:
    """Returns what tells a replaced file from the one before."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
