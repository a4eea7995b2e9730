"""Connections of an HTTP server: how many there may be, which are ended for new ones, and when a head is late.

When all places are taken, a new connection gets that of the one which has been idle the longest; those that never sent
a whole request go first. So idle connections and slow heads keep nobody out.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from absl import logging

from tflearn.net import server_options
from tflearn.net.tls import Renewed

HEAD_SECS = 10.0
SMALL_BODY = 1 << 16
_MAX_HEAD = 1 << 15  # bytes of a request's head
_LARGE_BODIES = 32 << 20  # bytes of bodies beyond small ones that are received together; a still larger one is alone
_LARGE_BODY_SECS = 1.0  # then it makes room for others
_NEW = 256  # connections without a head, at least
_YOUNG_SECS = 0.05  # in which a new connection is not ended for another one
_PAUSE_SECS = 0.05
# Connections that are accepted in one turn of the event loop: a request takes several turns, and each waits for these.
_AT_ONCE = 4
_LOOK_SECS = 0.25


class Connection(asyncio.Protocol):
    """One connection. Its transport and aiohttp's protocol are made with its first byte: idle ones cost little.

    Attributes:
      address: the client's.
      was_answered: whether it has sent a whole request.
      has_request: whether one is being answered.
      is_kept: whether it is not ended for another one.
      sends_no_more: whether the client has closed its side.
      body_bytes: the size of a large body that it sends now.
    """

    def __init__(self, connections: 'Connections', accepted: socket.socket, address: Any):
        self.address, self._accepted = address, accepted
        self._connections = connections
        self._http: Any = None
        self._transport: asyncio.Transport | None = None
        self._begun_at, self._head_bytes = time.monotonic(), 0
        self._body_since, self.body_bytes = 0.0, 0
        self._connecting: asyncio.Task[None] | None = None
        self.was_answered = self.has_request = self.is_kept = self.sends_no_more = False

    @property
    def peer_certificate(self) -> Mapping[str, Any]:
        """The client's certificate; {} if it had to show none."""
        return (self._transport and self._transport.get_extra_info('peercert')) or {}

    @property
    def age_secs(self) -> float:
        """The time since it began [s]."""
        return time.monotonic() - self._begun_at

    @property
    def is_late(self) -> bool:
        """Whether the head of its request should be there."""
        if self.has_request or (self.was_answered and not self._head_bytes):
            return False
        return self._head_bytes > _MAX_HEAD or self.age_secs > HEAD_SECS

    @property
    def is_slow(self) -> bool:
        """Whether it sends a large body, and has had some time for it."""
        return bool(self.body_bytes) and self._body_since < time.monotonic() - _LARGE_BODY_SECS

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport
        self._connections.by_transport[transport] = self

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if not self.has_request:
            if self.was_answered and not self._head_bytes:
                self._begun_at = time.monotonic()
            self._head_bytes += len(data)
        if self._http is None:
            self._http = self._connections.make_protocol()
            self._http.connection_made(self._transport)
        self._http.data_received(data)

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`: a client that sends no more still gets its answer, but over TLS."""
        assert self._transport is not None
        self.sends_no_more = True
        waits = self.has_request or self._head_bytes > 0
        return waits and not self._transport.get_extra_info('sslcontext')

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._http:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._http:
            self._http.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._connections.forget(self)
        self._connections.by_transport.pop(self._transport, None)
        if self._http:
            self._http.connection_lost(error)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Keeps the connection for the time of the block, in which a request is answered."""
        self.has_request = self.is_kept = True
        self._head_bytes = 0
        try:
            yield
        finally:
            self.has_request, self.is_kept, self.was_answered = False, False, True
            self._begun_at = time.monotonic()
            self._connections.used(self)

    @contextlib.asynccontextmanager
    async def receiving(self, length: int) -> AsyncIterator[None]:
        """Waits until there is room for the body of a request, and has it for the time of the block."""
        self.is_kept = False
        large = length if length > SMALL_BODY else 0
        while large and self._connections.body_bytes + large > max(large, _LARGE_BODIES):
            if not self._connections.end_idlest(lambda connection: connection.is_slow):
                await asyncio.sleep(_PAUSE_SECS)
        self.body_bytes, self._body_since = large, time.monotonic()
        try:
            yield
        finally:
            self.is_kept, self.body_bytes = True, 0

    def end(self) -> None:
        """Ends the connection."""
        self._connections.forget(self)
        if self._transport:
            self._transport.abort()
        elif self._connecting:
            self._connecting.cancel()
        else:
            asyncio.get_running_loop().remove_reader(self._accepted)
            self._accepted.close()

    def wait(self, tls: Renewed[ssl.SSLContext] | None) -> None:
        """Waits for the first byte."""
        asyncio.get_running_loop().add_reader(self._accepted, self._begin, tls)

    def _begin(self, tls: Renewed[ssl.SSLContext] | None) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._accepted)
        self._connecting = loop.create_task(self._connect(tls))
        # One that is ended before it has a transport; also before the task has begun.
        self._connecting.add_done_callback(lambda ended: self._accepted.close() if ended.cancelled() else None)

    async def _connect(self, tls: Renewed[ssl.SSLContext] | None) -> None:
        settings: dict[str, Any] = {'ssl': tls.get(), 'ssl_handshake_timeout': HEAD_SECS} if tls else {}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self, self._accepted, **settings)
        except OSError as error:
            logging.log_first_n(logging.WARNING, 'lost the connection of %s: %s', 20, self.address, error)
            self._connections.forget(self)


class Connections:
    """Accepts connections from `run` until `close`. For one event loop.

    Attributes:
      by_transport: those that are open.
      are_closing: whether each ends with its next answer.
    """

    def __init__(
        self,
        listening: socket.socket,
        most: int,
        make_protocol: Callable[[], Any],
        tls: Renewed[ssl.SSLContext] | None,
    ):
        """
        Args:
          most: how many there may be; at least 256 all the same, if the process has the handles.
          make_protocol: makes the protocol that reads the requests of one.
          tls: the settings of encryption, which are asked for each connection.
        """
        self.make_protocol, self.by_transport = make_protocol, dict[Any, Connection]()
        self.are_closing = False
        self._socket, self._tls = listening, tls
        self._most = server_options.places(max(most, _NEW))
        self._open: dict[Connection, None] = {}  # the idlest first

    @property
    def num_requests(self) -> int:
        """The number of requests that are being answered; for any thread."""
        return sum(each.has_request for each in list(self._open))

    @property
    def body_bytes(self) -> int:
        """The bytes of the large bodies that are being received."""
        return sum(each.body_bytes for each in self._open)

    def of(self, transport: Any) -> Connection:
        """Returns the connection of a request. Raises ConnectionError if it was lost meanwhile."""
        if transport not in self.by_transport:
            raise ConnectionError('the client is gone')
        return self.by_transport[transport]

    def used(self, connection: Connection) -> None:
        """Makes it the one that was used last."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def forget(self, connection: Connection) -> None:
        """Counts it no more."""
        self._open.pop(connection, None)

    async def run(self) -> None:
        """Accepts connections, and ends those whose heads do not come."""
        self._resume()
        while True:
            await asyncio.sleep(min(_LOOK_SECS, HEAD_SECS / 4))
            for each in [each for each in self._open if each.is_late]:
                each.end()

    async def close(self, grace_secs: float) -> None:
        """Stops to listen, waits so long for the requests that are being answered, and ends all connections."""
        self.are_closing = True
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        until = time.monotonic() + grace_secs
        while self.num_requests and time.monotonic() < until:
            await asyncio.sleep(_PAUSE_SECS)
        for each in list(self._open):
            each.end()
        while self.by_transport:
            await asyncio.sleep(0)

    def _resume(self) -> None:
        if not self.are_closing:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _pause(self, secs: float) -> None:
        """Accepts no connections for a time; they wait in the backlog."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.call_later(secs, self._resume)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            is_full = len(self._open) >= self._most
            young_secs = _YOUNG_SECS - self._oldest_new_secs() if is_full else 0.0
            if young_secs > 0:  # each has the time to send its head
                self._pause(young_secs)
                return
            try:
                accepted, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:  # no file handle is free: it would fail again at once
                self.end_idlest()
                self._pause(_PAUSE_SECS)
                return
            if is_full and not self.end_idlest():
                logging.log_first_n(logging.WARNING, 'refused a connection: all are busy', 5)
                accepted.close()
                continue
            accepted.setblocking(False)
            connection = Connection(self, accepted, address)
            self._open[connection] = None
            connection.wait(self._tls)

    def _oldest_new_secs(self) -> float:
        """Returns the age of the oldest connection that would be ended for a new one, if it has sent no request."""
        new = next((each for each in self._open if not (each.was_answered or each.is_kept)), None)
        return new.age_secs if new else _YOUNG_SECS

    def end_idlest(self, which: Callable[[Connection], bool] = lambda connection: True) -> bool:
        """Ends a connection of which no request is being answered; returns whether there was one."""
        for was_answered in (False, True):
            for each in self._open:
                if not each.is_kept and each.was_answered == was_answered and which(each):
                    each.end()
                    return True
        return False
