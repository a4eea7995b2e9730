"""The PEM files of one side of TLS, Python's settings for it,
and settings that follow files when they are replaced.
"""

import dataclasses
import os
import pathlib
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from absl import logging

from tflearn.core.errors import UserError, UserValueError

Settings = TypeVar('Settings')


@dataclasses.dataclass(frozen=True)
class TlsFiles:
    """PEM files of an encrypted server.

    Attributes:
      certificate: the server's certificate, with its chain.
      key: the certificate's key.
      client_ca: the certificates that sign those of clients; if given, clients need such a
        certificate (mutual TLS).
    """

    certificate: pathlib.Path | str
    key: pathlib.Path | str
    client_ca: pathlib.Path | str | None = None

    @property
    def names(self) -> tuple[pathlib.Path | str, ...]:
        """The files that are given."""
        return tuple(file for file in (self.certificate, self.key, self.client_ca) if file)

    def context(self) -> ssl.SSLContext:
        """Returns the settings of a server.

        Raises:
          ValueError: if a file cannot be read or is not what it should be.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, _no_password)
            if self.client_ca:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:
            raise UserValueError(
                f'got the files {", ".join(map(str, self.names))} ({error}); need a certificate, its key, CAs, in PEM'
            ) from error
        return context


def _no_password() -> str:
    """Answers OpenSSL, which would otherwise ask at the terminal."""
    raise ssl.SSLError('the key needs a password, which is not supported')


class Renewed(Generic[Settings]):
    """Settings that are made of files, and made again when one of them has changed. Thread-safe.

    Files that cannot be used, as in the middle of a replacement, change nothing; that is logged
    once.
    """

    def __init__(self, files: Sequence[str | os.PathLike[str]], make: Callable[[], Settings]):
        """Makes the first settings, and raises what `make` raises:
        a UserError for files that cannot be used.
        """
        self._files, self._make = tuple(map(pathlib.Path, files)), make
        self._identity = self._identities()
        self._settings = make()
        self._renewing = threading.Lock()

    def get(self) -> Settings:
        """Returns the newest settings that could be made;
        asks the file system for changes at each call.
        """
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
