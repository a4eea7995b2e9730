"""The PEM files of one side of TLS, and Python's settings for it."""

import dataclasses
import pathlib
import ssl

from tflearn.core.errors import UserValueError


@dataclasses.dataclass(frozen=True)
class TlsFiles:
    """PEM files of an encrypted server.

    Attributes:
      certificate: the server's certificate, with its chain.
      key: the certificate's key.
      client_ca: the certificates that sign those of clients; if given, clients need such a certificate (mutual TLS).
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
