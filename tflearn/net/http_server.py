"""An HTTP server: a thread for each connection, with limits, a token and TLS. It needs only the standard library.

All HTTP ports of ours are such servers. When all places are taken, a new connection gets that of the one which has been
idle the longest; those that never sent a whole request go first. So idle connections and slow heads keep nobody out.
"""

import contextlib
import dataclasses
import errno
import http.server
import io
import json
import re
import select
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

from absl import logging

from tflearn.core import tokens
from tflearn.core.errors import UserTimeoutError, UserValueError
from tflearn.core.waiting import is_listening
from tflearn.net import handles
from tflearn.net.renewed import Renewed

_HEAD_SECS, IDLE_SECS = 10.0, 600.0
_MAX_HEAD = 1 << 15  # bytes of a request's head
_BODY_SECS, _SLOWEST_BYTES_PER_SEC = 10.0, 1e6
_SMALL_BODY = 1 << 16
_LARGE_BODIES = 32 << 20  # bytes of larger ones that are received at the same time; a still larger one is alone
_LARGE_BODY_SECS = 1.0  # then it makes room for others
_SEND_SECS = 30.0
_MAX_UNREAD = 1 << 16  # bytes that are dropped at once
_LINGER_SECS = 1.0
_AT_ONCE = 64  # connections that are accepted before others are looked at
_HEAD_END = re.compile(rb'\r?\n\r?\n')
_NEW = 256  # connections without a head, at least
_YOUNG_SECS = 0.05  # in which a new connection is not ended for another one
_ENDS = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_ENDING = 64  # threads of connections that were ended
_PAUSE_SECS = 0.05  # without file handles


@dataclasses.dataclass(eq=False)
class _Connection:
    """One connection of a server.

    Attributes:
      since: when it began to send its body.
      answered: whether it has sent a request that was admitted.
      busy: whether a request is being answered now.
      body: the size of a large body that it sends now.
    """

    since: float = 0.0
    answered: bool = False
    busy: bool = False
    body: int = 0


class HttpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """One thread for each connection that has sent a head, and a limit of connections."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(
        self, address: tuple[str, int], handler: type['Handler'], connections: int, tls: Renewed[ssl.SSLContext] | None
    ):
        """Takes the address, at which it listens after `server_bind` and `server_activate`.

        Args:
          connections: the number of connections at the same time.
        """
        self._places = handles.places(max(connections, _NEW))
        self._most_open = min(connections, self._places)
        self._running = threading.BoundedSemaphore(self._most_open + _ENDING)
        self._resume_at: float | None = None  # to accept connections
        self._open: dict[Any, _Connection] = {}  # those with a thread; the idlest first
        self._new: dict[int, tuple[socket.socket, Any, float]] = {}  # those without a head, by their handles
        self._changed = threading.Condition()
        self._stop, self._stopped = threading.Event(), threading.Event()
        self._tls = tls
        super().__init__(address, handler, bind_and_activate=False)

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """See `socketserver.BaseServer`."""
        self.socket.setblocking(False)
        try:
            with select.epoll() as ready:
                ready.register(self.fileno(), select.EPOLLIN)
                while not self._stop.is_set():
                    for number, event in ready.poll(poll_interval if self._resume_at is None else _YOUNG_SECS / 5):
                        if number == self.fileno():
                            self._accept(ready)
                        elif number in self._new:
                            self._look_at(ready, number, bool(event & _ENDS))
                    if self._resume_at is not None and time.monotonic() > self._resume_at:
                        self._resume_at = None
                        ready.register(self.fileno(), select.EPOLLIN)
                    late = time.monotonic() - _HEAD_SECS
                    while self._new and next(iter(self._new.values()))[2] < late:
                        self._end_oldest()
        finally:
            while self._new:
                self._end_oldest()
            self._stopped.set()

    def shutdown(self) -> None:
        """See `socketserver.BaseServer`."""
        self._stop.set()
        self._stopped.wait()

    def _accept(self, ready: select.epoll) -> None:
        for _ in range(_AT_ONCE):
            if len(self._new) + len(self._open) >= self._places and self._new:
                young_until = next(iter(self._new.values()))[2] + _YOUNG_SECS
                if young_until > time.monotonic():  # each has the time to send its head; others wait in the backlog
                    self._resume_at = young_until
                    ready.unregister(self.fileno())
                    return
            try:
                accepted, address = self.get_request()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):  # or it would try again at once
                    self._make_room(0)
                    self._stop.wait(_PAUSE_SECS)
                return
            if not self._make_room(self._places):
                logging.log_first_n(logging.WARNING, 'refused a connection: all are busy', 5)
                accepted.close()
                continue
            accepted.setblocking(False)
            self._new[accepted.fileno()] = accepted, address, time.monotonic()
            ready.register(accepted.fileno(), select.EPOLLIN | select.EPOLLET | select.EPOLLRDHUP)

    def _look_at(self, ready: select.epoll, number: int, ends: bool) -> None:
        """Gives a connection a thread if it has sent a whole head, or begins a handshake."""
        connection, address, _ = self._new[number]
        try:
            head = connection.recv(_MAX_HEAD, socket.MSG_PEEK)
        except BlockingIOError:  # the event was of an earlier connection with this handle
            return
        except OSError:
            head = b''
        if head and len(head) < _MAX_HEAD and not ends and not self._tls and not _HEAD_END.search(head):
            return
        del self._new[number]
        ready.unregister(number)
        connection.setblocking(True)
        with self._changed:
            has_place = bool(head) and (len(self._open) < self._most_open or self._end_idlest())
        if has_place:
            self.process_request(connection, address)
        else:
            if head:
                logging.log_first_n(logging.WARNING, 'refused a connection: all are busy', 5)
            connection.close()

    def _make_room(self, most: int) -> bool:
        """Ends the idlest connection if there are that many; returns whether there is room for another one."""
        with self._changed:
            if len(self._new) + len(self._open) < most:
                return True
            logging.log_first_n(logging.INFO, 'more than %d connections: ends the idlest', 1, self._places)
            if not self._new:
                return self._end_idlest()
        self._end_oldest()
        return True

    def _end_oldest(self) -> None:
        self._new.pop(next(iter(self._new)))[0].close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """See `socketserver.BaseServer`."""
        started = False
        try:
            if self._running.acquire(timeout=_LINGER_SECS):
                if self._tls:  # the handshake is made in the connection's thread, so that none can block the others
                    request = self._tls.get().wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                with self._changed:
                    self._open[request] = _Connection()
                super().process_request(request, client_address)
                started = True
        except Exception as error:  # the machine has no thread; it is gone
            logging.log_first_n(logging.WARNING, 'refused a connection: %s', 5, error)
            self._running.release()
        finally:
            if not started:
                self._forget(request)
                self.close_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """See `socketserver.ThreadingMixIn`."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)
            self._running.release()

    def busy(self, request: Any, busy: bool) -> None:
        """Notes that a request of a connection is being answered, or that it was."""
        with self._changed:
            if connection := self._open.pop(request, None):
                self._open[request] = connection
                connection.busy, connection.answered = busy, True

    @contextlib.contextmanager
    def receiving(self, request: Any, length: int) -> Iterator[None]:
        """Waits until there is room for the body of a request, and keeps it for the time of the block."""
        large = length if length > _SMALL_BODY else 0
        with self._changed:
            if connection := self._open.get(request):
                connection.busy = False
            while (
                large
                and connection
                and sum(each.body for each in self._open.values()) + large > max(large, _LARGE_BODIES)
            ):
                if not self._end_idlest(_is_late):
                    self._changed.wait(_PAUSE_SECS)
            if connection:
                connection.body, connection.since = large, time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                if connection:
                    connection.busy, connection.body = True, 0
                self._changed.notify_all()

    def _forget(self, request: Any) -> None:
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify_all()

    def _end_idlest(self, which: Callable[[_Connection], bool] = lambda connection: True) -> bool:
        """Ends a connection of which no request is being answered; returns whether there was one."""
        for answered in (False, True):
            for request, each in self._open.items():
                if not each.busy and each.answered == answered and which(each):
                    del self._open[request]
                    _shut(request)  # its thread ends soon
                    return True
        return False

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
        with self._changed:
            for request in self._open:
                _shut(request)

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


def _is_late(connection: _Connection) -> bool:
    return bool(connection.body) and connection.since < time.monotonic() - _LARGE_BODY_SECS


def _shut(request: Any) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(request, socket.SHUT_RDWR)  # also of TLS: that of its class would change the object


class _Reader(io.RawIOBase):
    """Reads a connection until a time, and at most so many bytes."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self.allow(_HEAD_SECS, _MAX_HEAD)

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


class Handler(http.server.BaseHTTPRequestHandler):
    """Handles the requests of one connection.

    A head has to be there 10 s after its first byte, the first one 10 s after the connection began.

    Attributes:
      token: what clients have to show; '' is nothing.
      num_received: bytes of the body that came so far.
    """

    token = ''
    num_received = 0
    timeout = _SEND_SECS
    server: HttpServer
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
                self._reader.allow(IDLE_SECS, _MAX_HEAD)
                self.rfile.peek(1)  # type: ignore[attr-defined]
                self._reader.allow(_HEAD_SECS, _MAX_HEAD)
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
        if self.token and not tokens.equal(tokens.shown(self.headers.get('Authorization')), self.token):
            logging.log_first_n(
                logging.WARNING, 'refused a request of %s: no token, or another', 20, self.client_address
            )
            self.refuse(HTTPStatus.UNAUTHORIZED, 'got no token, or another; need Authorization: Bearer TOKEN')
            return False
        self.server.busy(self.request, True)
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

    def read_body(self, length: int) -> memoryview | None:
        """Returns the request's body of this size; None if the client is gone or slower than 1 MB/s after 10 s."""
        self.num_received = 0
        received, at, start = memoryview(bytearray(length)), 0, time.monotonic()
        with self.server.receiving(self.request, length):
            while at < length:
                secs = start + _BODY_SECS + at / _SLOWEST_BYTES_PER_SEC - time.monotonic()
                self._reader.allow(secs, length - at)
                try:
                    count = self.rfile.readinto1(received[at:])  # type: ignore[attr-defined]
                except OSError:
                    count = 0
                if not count:
                    self.close_connection = True
                    return None
                at += count
                self.num_received = at
        return received

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
