"""The requests of one HTTP connection, with deadlines and a bound of their size; and the responses."""

import contextlib
import dataclasses
import http.server
import io
import json
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from absl import logging

from tflearn.core import tokens
from tflearn.core.errors import UserTimeoutError, UserValueError

if TYPE_CHECKING:
    from tflearn.net.http_server import HttpServer

HEAD_SECS, _IDLE_SECS = 10.0, 600.0
MAX_HEAD = 1 << 15  # bytes of a request's head
_BODY_SECS, _SLOWEST_BYTES_PER_SEC = 10.0, 1e6
_SEND_SECS = 30.0  # for each block of a response
_BLOCK_BYTES = 1 << 20
_MAX_QUOTED = 500  # characters of an error that a client gets
_CLOSING = (HTTPStatus.UNAUTHORIZED, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclasses.dataclass(frozen=True)
class Response:
    """What a request is answered.

    Attributes:
      body: its bytes, in parts.
      headers: those beside the size.
    """

    body: Sequence[bytes | memoryview] = ()
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def json_response(message: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Returns a response whose body is a JSON object."""
    return Response([(json.dumps(message) + '\n').encode()], status, {'Content-Type': 'application/json'})


def json_object(
    data: bytes | memoryview, needed: Mapping[str, Any] = MappingProxyType({}), known: Collection[str] | None = None
) -> dict[str, Any]:
    """Returns the JSON object in some bytes.

    Args:
      needed: keys that it must have, each with the type of its value.
      known: keys that it may have; None is any.

    Raises:
      ValueError: if it is something else.
    """
    try:
        message = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise UserValueError(f'got a body that is no JSON ({error}); need a JSON object') from error
    names = ', '.join(sorted(needed)) or 'any keys'
    if not isinstance(message, dict):
        raise UserValueError(f'got a JSON {type(message).__name__}; need an object with {names}')
    if missing := needed.keys() - message.keys():
        raise UserValueError(f'got a message without {", ".join(sorted(missing))}; need {names}')
    if known is not None and (unknown := message.keys() - known):
        raise UserValueError(f'got a message with {", ".join(sorted(unknown))}; need only {", ".join(sorted(known))}')
    for name, kind in needed.items():
        value = message[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
            need = getattr(kind, '__name__', kind)
            raise UserValueError(f'got {name} of the type {type(value).__name__}; need {need}')
    return message


class Refused(Exception):
    """A request is answered with this status and {"error": ...}."""

    def __init__(self, status: HTTPStatus, error: str):
        super().__init__(error)
        self.status = status


def shut(connection: Any) -> None:
    """Ends a connection; its thread ends soon."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # also of TLS: that of its class would change the object


class _Reader(io.RawIOBase):
    """Reads a connection until a time, and at most so many bytes."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self.allow(HEAD_SECS, MAX_HEAD)

    def allow(self, secs: float, most: int) -> None:
        """Sets the time, from now on, and the number of bytes."""
        self._until, self._most = time.monotonic() + secs, most

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`. Raises TimeoutError after the time or the bytes."""
        secs = self._until - time.monotonic()
        if secs <= 0 or not self._most:
            raise UserTimeoutError('got a request that is too slow or too large; need its head and body in time')
        self._connection.settimeout(secs)
        try:
            count = self._connection.recv_into(memoryview(buffer)[: self._most])
        finally:
            self._connection.settimeout(_SEND_SECS)
        self._most -= count
        return count


class Request(http.server.BaseHTTPRequestHandler):
    """The request of a connection that is answered now: its `command`, such as GET, its `path`, its `headers`.

    A head has to be there 10 s after its first byte, the first one 10 s after the connection began.

    Attributes:
      num_received: bytes of the body that came so far.
    """

    num_received = 0
    timeout = _SEND_SECS
    server: 'HttpServer'
    protocol_version = 'HTTP/1.1'  # connections stay open
    disable_nagle_algorithm = True
    wbufsize = -1  # a response is sent at once

    def setup(self) -> None:
        """See `socketserver.StreamRequestHandler`."""
        super().setup()
        self.rfile.close()
        self._reader, self._first = _Reader(self.connection), True
        self.rfile = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        """See `http.server.BaseHTTPRequestHandler`."""
        try:
            if not self._first:
                self._reader.allow(_IDLE_SECS, MAX_HEAD)
                self.rfile.peek(1)  # type: ignore[attr-defined]
                self._reader.allow(HEAD_SECS, MAX_HEAD)
        except OSError:
            self.close_connection = True
            return
        super().handle_one_request()
        self._first = False
        self.server.busy(self.request, False)

    def parse_request(self) -> bool:
        """See `http.server.BaseHTTPRequestHandler`; refuses whoever does not show the token."""
        if not super().parse_request():
            return False
        self._has_body = self.headers.get('Content-Length', '0') != '0'
        token = self.server.token
        if token and not tokens.equal(tokens.received(self.headers.get('Authorization')), token):
            error = 'got no token, or another; need Authorization: Bearer TOKEN'
            self._send(self._refusal(Refused(HTTPStatus.UNAUTHORIZED, error)))
            return False
        self.server.busy(self.request, True)
        return True

    def _answer(self) -> None:
        try:
            response = self.server.route(self.command, self.path.partition('?')[0])(self)
        except Exception as error:
            response = self._refusal(error)
        self._send(response)

    do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

    def body(self) -> memoryview:
        """Returns the request's body, which is read now.

        Raises:
          Refused: if there is none, it is too large, or it comes slower than 1 MB/s after 10 s.
        """
        text, most = self.headers.get('Content-Length', ''), self.server.options.max_request_bytes
        if not text.isdecimal():
            raise Refused(HTTPStatus.LENGTH_REQUIRED, 'got no Content-Length; need the size of the body')
        if len(text) > 18 or int(text) > most:
            error = f'got a request of {text[:18]} bytes; need at most {most}'
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error)
        length = int(text)
        self.num_received = 0
        received, start = memoryview(bytearray(length)), time.monotonic()
        with self.server.receiving(self.request, length):
            while (at := self.num_received) < length:
                secs = start + _BODY_SECS + at / _SLOWEST_BYTES_PER_SEC - time.monotonic()
                self._reader.allow(secs, length - at)
                try:
                    count = self.rfile.readinto1(received[at:])  # type: ignore[attr-defined]
                except OSError:
                    count = 0
                if not count:
                    raise Refused(HTTPStatus.REQUEST_TIMEOUT, 'got a part of a message; need all of it')
                self.num_received += count
        self._has_body = False
        return received

    def text(self) -> str:
        """Returns the text in the body. Raises ValueError if it is none."""
        try:
            return bytes(self.body()).decode()
        except UnicodeDecodeError as error:
            raise UserValueError(f'got a body that is no text ({error}); need UTF-8') from error

    def json(
        self, needed: Mapping[str, Any] = MappingProxyType({}), known: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Returns the JSON object in the body; see `json_object`."""
        return json_object(self.body(), needed, known)

    def end(self) -> None:
        """Ends the connection, from another thread."""
        shut(self.request)

    def _refusal(self, error: Exception) -> Response:
        status = self.server.status_of(error)
        if status is None:
            logging.error('a request failed', exc_info=error)
            status, text = HTTPStatus.INTERNAL_SERVER_ERROR, 'the server has the details in its log'
            return json_response({'error': f'{type(error).__name__}: {text}'}, status)
        logging.log_first_n(logging.WARNING, 'refused a request of %s: %s', 20, self.client_address, error)
        return json_response({'error': str(error)[:_MAX_QUOTED]}, status)

    def _send(self, response: Response) -> None:
        """Sends a response; closes the connection if the request's body was not read, or a status asks for that."""
        self.close_connection |= self._has_body or response.status in _CLOSING
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.send_header('Content-Length', str(sum(map(len, response.body))))
        if response.status == HTTPStatus.UNAUTHORIZED:
            self.send_header('WWW-Authenticate', 'Bearer')
        if self.close_connection:
            self.send_header('Connection', 'close')
        self.end_headers()
        for part in map(memoryview, response.body):
            for at in range(0, len(part), _BLOCK_BYTES):
                self.wfile.write(part[at : at + _BLOCK_BYTES])

    def log_message(self, format: str, *args: Any) -> None:
        """Logs no line for each request."""
