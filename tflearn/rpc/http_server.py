"""An HTTP server: a thread for each connection, with limits, a token and TLS. It needs only the standard library."""

import contextlib
import http.server
import json
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from absl import logging

from tflearn.errors import UserValueError
from tflearn.security import tokens
from tflearn.security.renewed import Renewed
from tflearn.waiting import is_listening

_FIRST_REQUEST_SECS, IDLE_SECS = 10.0, 600.0
_MAX_UNREAD = 1 << 16  # bytes of a stranger's message
_LINGER_SECS = 1.0


class HttpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """One thread for each connection, and a limit of them; those beyond it are closed."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type['Handler'], connections: int, tls: Renewed[ssl.SSLContext] | None
    ):
        """Takes the address, at which it listens after `server_bind` and `server_activate`.

        Args:
          connections: the number of connections at the same time.
        """
        self._free_connections = threading.BoundedSemaphore(connections)
        self._open: set[Any] = set()
        self._tls = tls
        super().__init__(address, handler, bind_and_activate=False)

    def get_request(self) -> tuple[Any, Any]:
        """See `socketserver.TCPServer`."""
        accepted, address = super().get_request()
        if self._tls:  # the handshake is made in the connection's thread, so that none can block the others
            accepted = self._tls.get().wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        return accepted, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """See `socketserver.BaseServer`."""
        if self._free_connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            logging.log_first_n(logging.WARNING, 'refused a connection: too many at the same time', 5)
            self.close_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """See `socketserver.ThreadingMixIn`."""
        self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)
            self._free_connections.release()

    def shutdown_request(self, request: Any) -> None:
        """See `socketserver.TCPServer`. What a client still sends is read: it would not see the answer otherwise."""
        until = time.monotonic() + _LINGER_SECS
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            request.settimeout(_LINGER_SECS)
            while request.recv(_MAX_UNREAD) and time.monotonic() < until:
                pass
        self.close_request(request)

    def end_connections(self) -> None:
        """Ends those that are open; their threads end soon."""
        for request in list(self._open):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs one line: a client that vanished, or spoke no HTTP."""
        logging.log_first_n(logging.WARNING, 'lost the connection of %s', 20, client_address, exc_info=False)


def listen(
    host: str,
    ports: Sequence[int],
    handler: type['Handler'],
    connections: int,
    tls: Renewed[ssl.SSLContext] | None = None,
    setting: str = 'ports',
    held: bool = False,
) -> HttpServer:
    """Returns a server at the first of the ports that is free; 0 takes any.

    Args:
      connections: the number of connections at the same time.
      setting: where a user gives the ports, for the error.
      held: whether the port may be held for it by a socket of this user that does not listen.

    Raises:
      ValueError: if none is free, or the machine has no such name.
    """
    failures = []
    for port in ports:
        if held and port and is_listening(f'{host}:{port}'):  # with a shared port, both would get connections
            failures.append(f'{port}: another server listens there')
            continue
        server = HttpServer((host, port), handler, connections, tls)
        try:
            if held and port:
                server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.server_bind()
            server.server_activate()
            return server
        except OSError as error:
            server.server_close()
            failures.append(f'{port}: {error.strerror or error}')
    raise UserValueError(
        f'got host={host!r}, which cannot be listened at ({"; ".join(failures)}); need a name of this machine and a '
        f'free port; give others by {setting}'
    )


class Handler(http.server.BaseHTTPRequestHandler):
    """Handles the requests of one connection.

    Attributes:
      token: what clients have to show; '' is nothing.
      timeout: of a connection without a request [s]; a stranger keeps its place for a short time only.
    """

    token = ''
    timeout = _FIRST_REQUEST_SECS
    protocol_version = 'HTTP/1.1'  # connections stay open
    disable_nagle_algorithm = True
    wbufsize = -1  # a response is sent at once

    def parse_request(self) -> bool:
        """See `http.server.BaseHTTPRequestHandler`; refuses whoever does not show the token."""
        if not super().parse_request():
            return False
        if self.token and not tokens.equal(tokens.shown(self.headers.get('Authorization')), self.token):
            logging.log_first_n(
                logging.WARNING, 'refused a request of %s: no token, or another', 20, self.client_address
            )
            # A body that is not read would reset the connection before the client has its answer.
            length = self.headers.get('Content-Length', '')
            self.rfile.read(min(int(length), _MAX_UNREAD) if length.isdecimal() else 0)
            self.refuse(HTTPStatus.UNAUTHORIZED, 'got no token, or another; need Authorization: Bearer TOKEN')
            return False
        self.connection.settimeout(IDLE_SECS)
        return True

    def answer(self) -> None:
        """Answers the request: its `command`, such as GET, its `path`, its `headers`."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_DELETE(self) -> None:
        self.answer()

    def length_of_body(self, most: int) -> int | None:
        """Returns the size of the request's body; None if it was refused, since there is none or it is too large."""
        length = self.headers.get('Content-Length', '')
        if not length.isdecimal():
            self.refuse(HTTPStatus.LENGTH_REQUIRED, 'got no Content-Length; need the size of the body')
        elif len(length) > 18 or int(length) > most:
            self.refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f'got a request of {length[:18]} bytes; need at most {most}'
            )
        else:
            return int(length)
        return None

    def refuse(self, status: HTTPStatus, error: str) -> None:
        """Answers {"error": ...}, and closes the connection, since the body is not read."""
        self.close_connection = True
        self.send_json(status, {'error': error})

    def send_json(self, status: HTTPStatus, message: dict[str, Any]) -> None:
        """Sends a response."""
        body = (json.dumps(message) + '\n').encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header('WWW-Authenticate', 'Bearer')
        if self.close_connection:
            self.send_header('Connection', 'close')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs no line for each request."""
