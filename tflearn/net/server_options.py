"""ServerOptions: where a server of ours listens, and its limits."""

from collections.abc import Sequence
from typing import Any

from tflearn.core import tokens
from tflearn.core.settings import PositiveInt, checked_dataclass
from tflearn.net.tls import TlsFiles


@checked_dataclass(frozen=True)
class ServerOptions:
    """Where a server listens, and its limits.

    Attributes:
      host: the name or address to listen at; '0.0.0.0' is all networks.
      port: the port to listen at, or several, of which the first free one is taken; 0 takes any free one.
      max_connections: connections at the same time; of more, those that were not used for the longest time are ended.
      max_request_bytes: the size of the largest request.
      tls: the files for encryption; None listens without it.
      token: where the token is that clients must show: a file's path, or 'env:NAME' for an environment variable. None
        asks for none.
    """

    host: str = 'localhost'
    port: int | Sequence[int] = 0
    max_connections: PositiveInt = 512
    max_request_bytes: PositiveInt = 4 << 20
    tls: TlsFiles | None = None
    token: str | None = None

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports to listen at, the first one first."""
        given: Any = self.port
        return tuple(given) if isinstance(given, list | tuple) else (given,)

    def read_token(self, name: str) -> str:
        """Returns the token, '' if none is asked for. Raises ValueError if it cannot be read; `name` is the setting."""
        return tokens.read(self.token, name) if self.token else ''
