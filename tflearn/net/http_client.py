"""HttpClient: asks an HTTP server of ours over one connection,
which is opened again when it was closed.
"""

import contextlib
import http.client
import socket
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tflearn.core import tokens

_CONNECT_SECS = 5.0


class HttpClient:
    """A client of one server. For one thread, but `close`.

    Attributes:
      address: the server's 'host:port'.
    """

    def __init__(self, address: str, token: str = ''):
        """Connects to nothing yet; `token` is what it shows."""
        self.address = address
        self._headers = {'Authorization': tokens.header(token)} if token else {}
        self._connection: http.client.HTTPConnection | None = None
        self._closed = threading.Event()

    def ask(
        self,
        method: str,
        path: str,
        secs: float,
        headers: Mapping[str, str] = MappingProxyType({}),
        body: Sequence[bytes | memoryview] | None = None,
    ) -> http.client.HTTPResponse:
        """Sends a request, and returns the response when its head is there.

        Args:
          secs: how long each step may take [s].
          body: the body in parts; None sends none.

        Raises:
          OSError, http.client.HTTPException: if there is no answer in time.
        """
        sizes = {} if body is None else {'Content-Length': str(sum(map(len, body)))}
        while True:
            if self._closed.is_set():
                raise ConnectionError('closed')
            kept = self._connection if self._connection and self._connection.sock else None
            connection = kept or self._connect()
            connection.sock.settimeout(secs)
            try:
                # One that refuses answers before.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, path, body, {**self._headers, **headers, **sizes})
                return connection.getresponse()
            except (ConnectionError, http.client.HTTPException):
                self.drop()
                if not kept:  # one that was kept may have been closed meanwhile
                    raise

    def drop(self) -> None:
        """Closes the connection; the next request opens another one."""
        if self._connection:
            self._connection.close()
        self._connection = None

    def close(self) -> None:
        """Ends the request that another thread may wait for; there are no more."""
        self._closed.set()
        if (connection := self._connection) and connection.sock:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _connect(self) -> http.client.HTTPConnection:
        host, _, port = self.address.rpartition(':')
        connection = http.client.HTTPConnection(host.strip('[]'), int(port), timeout=_CONNECT_SECS)
        connection.connect()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        return connection
