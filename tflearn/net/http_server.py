"""An HTTP server: a thread for each connection, with limits, a token and TLS. It needs only the standard library.

All HTTP ports of ours are such servers. When all places are taken, a new connection gets that of the one which has been
idle the longest; those that never sent a whole request go first. So idle connections and slow heads keep nobody out.
"""

import contextlib
import dataclasses
import errno
import re
import select
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from absl import logging

from tflearn.core import background
from tflearn.core.errors import UserValueError
from tflearn.core.waiting import is_listening
from tflearn.net import server_options
from tflearn.net.http_request import HEAD_SECS, MAX_HEAD, Refused, Request, Response, shut
from tflearn.net.server_options import ServerOptions
from tflearn.net.tls import Renewed

# Answers a request; it also gets the words of its path that stand at 'ID' in the route.
Route = Callable[..., Response]

_SMALL_BODY = 1 << 16
_LARGE_BODIES = 32 << 20  # bytes of larger ones that are received at the same time; a still larger one is alone
_LARGE_BODY_SECS = 1.0  # then it makes room for others
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
      has_request: whether a request came that is not answered yet.
      busy: whether it is being answered now.
      body: the size of a large body that it sends now.
    """

    since: float = 0.0
    answered: bool = False
    has_request: bool = False
    busy: bool = False
    body: int = 0


class HttpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Answers requests by their routes, from `start` until `close`.

    One thread for each connection that has sent a head, and a limit of connections.

    Attributes:
      options: where it listens, and its limits.
      port: where it listens.
      token: what clients have to show; '' is nothing.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(
        self,
        options: ServerOptions,
        routes: Mapping[str, Route],
        name: str,
        settings: tuple[str, str],
        shared: bool = False,
    ):
        """Takes the port.

        Args:
          routes: what answers, by method and path, such as 'GET /v1/status'. 'ID' in a path is any word, 'NAME' also
            one with dots and hyphens.
          name: the server's name, for its thread.
          settings: where a user gives port and token, for errors.
          shared: whether the port may be held for it by a socket of this user that does not listen.

        Raises:
          ValueError: if no port is free, the machine has no such name, a file of TLS is invalid, or there is no token.
        """
        self.options, self.token = options, options.read_token(settings[1])
        self._routes = routes
        self._places = server_options.places(max(options.max_connections, _NEW))
        self._most_open = min(options.max_connections, self._places)
        self._running = threading.BoundedSemaphore(self._most_open + _ENDING)
        self._resume_at: float | None = None  # to accept connections
        self._open: dict[Any, _Connection] = {}  # those with a thread; the idlest first
        self._new: dict[int, tuple[socket.socket, Any, float]] = {}  # those without a head, by their handles
        self._changed = threading.Condition()
        self._stop, self._stopped = threading.Event(), threading.Event()
        self._tls = Renewed(options.tls.names, options.tls.context) if options.tls else None
        self._listen(settings[0], shared)
        self.port = int(self.server_address[1])
        self._thread = background.Thread(target=self.serve_forever, name=name)

    def start(self) -> None:
        """Starts to answer."""
        self._thread.start()

    def _listen(self, setting: str, shared: bool) -> None:
        """Takes the first of the ports that is free."""
        host, failures = self.options.host, []
        for port in self.options.ports:
            if shared and port and is_listening(f'{host}:{port}'):  # both would get connections
                failures.append(f'{port}: another server listens there')
                continue
            super().__init__((host, port), Request, bind_and_activate=False)
            try:
                if shared and port:
                    self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                self.server_bind()
                self.server_activate()
                return
            except OSError as error:
                self.server_close()
                failures.append(f'{port}: {error.strerror or error}')
        raise UserValueError(
            f'got host={host!r}, which cannot be listened at ({"; ".join(failures)}); need a name of this machine and '
            f'a free port; give others by {setting}'
        )

    @property
    def num_requests(self) -> int:
        """The number of requests that are being answered."""
        with self._changed:
            return sum(each.has_request for each in self._open.values())

    def route(self, method: str, path: str) -> Callable[[Request], Response]:
        """Returns what answers a request. Raises Refused if there is nothing."""
        status = HTTPStatus.NOT_FOUND
        for route, answer in self._routes.items():
            known, _, pattern = route.partition(' ')
            pattern = pattern.replace('/ID', r'/(\w{1,64})').replace('/NAME', r'/([\w.-]{1,200})')
            if match := re.fullmatch(pattern, path):
                if known == method:
                    words = match.groups()
                    return lambda request: answer(request, *words)
                status = HTTPStatus.METHOD_NOT_ALLOWED
        raise Refused(status, f'got {method} {path[:80]}; need {", ".join(self._routes)}')

    def status_of(self, error: Exception) -> HTTPStatus | None:
        """Returns the status of an error that a request has caused; None for one of the server itself."""
        if isinstance(error, Refused):
            return error.status
        return HTTPStatus.BAD_REQUEST if isinstance(error, UserValueError) else None

    def wait(self, timeout_secs: float) -> bool:
        """Waits so long for its end; returns whether it has ended."""
        self._thread.join(timeout_secs)
        return not self._thread.is_alive()

    def close(self, end_connections: bool = True) -> None:
        """Stops listening. May be called twice.

        Args:
          end_connections: whether to end those that are open; otherwise their requests are still answered.
        """
        self._stop.set()
        self._stopped.wait()
        with self._changed:
            for request in self._open if end_connections else ():
                shut(request)  # their threads end soon
        self.server_close()
        self._thread.join(10.0)

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
                    late = time.monotonic() - HEAD_SECS
                    while self._new and next(iter(self._new.values()))[2] < late:
                        self._end_oldest()
        finally:
            while self._new:
                self._end_oldest()
            self._stopped.set()

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
            head = connection.recv(MAX_HEAD, socket.MSG_PEEK)
        except BlockingIOError:  # the event was of an earlier connection with this handle
            return
        except OSError:
            head = b''
        if head and len(head) < MAX_HEAD and not ends and not self._tls and not _HEAD_END.search(head):
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
                connection.busy, connection.has_request, connection.answered = busy, busy, True

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
                    shut(request)  # its thread ends soon
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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs one line: a client that vanished, or spoke no HTTP."""
        logging.log_first_n(logging.WARNING, 'lost the connection of %s', 20, client_address, exc_info=False)


def _is_late(connection: _Connection) -> bool:
    return bool(connection.body) and connection.since < time.monotonic() - _LARGE_BODY_SECS
