"""Connections of an HTTP server: what aiohttp lacks,
a limit of their number and the deadline of a head.

When all places are taken, a new connection gets that of the one which has been idle the longest;
those that never sent a whole request go first. So idle connections and slow heads keep nobody out.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from tflearn.net import server_options
from tflearn.net.limited_warnings import LimitedWarnings
from tflearn.net.tls import Renewed

HEAD_SECS = 10.0
_NEW = 256  # connections without a head, at least
_YOUNG_SECS = 0.05  # in which a new connection is not ended for another one
_PAUSE_SECS = 0.05
_BUSY, _LOST = LimitedWarnings(5), LimitedWarnings()


class Connection(web.RequestHandler):
    """One connection, as aiohttp reads it.

    Attributes:
      address: the client's.
      connecting: the task that makes its transport.
      was_answered: whether it has sent a whole request.
      has_request: whether one is being answered.
      is_kept: whether it is not ended for another one.
    """

    def __init__(self, connections: 'Connections', address: Any, **settings: Any):
        """`settings` are those of aiohttp's `RequestHandler`."""
        super().__init__(**settings)
        self.address, self._connections = address, connections
        self.connecting: asyncio.Task[None] | None = None
        self.was_answered = self.has_request = self.is_kept = False
        self.begun_at = time.monotonic()
        self._head_deadline = self._loop.call_later(HEAD_SECS, self.end)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if not self.has_request and self._head_deadline.cancelled():
            self._head_deadline = self._loop.call_later(HEAD_SECS, self.end)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See `asyncio.Protocol`."""
        self._head_deadline.cancel()
        self._connections.forget(self)
        super().connection_lost(exc)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Keeps the connection for the time of the block, in which a request is answered."""
        self._head_deadline.cancel()
        self.has_request = self.is_kept = True
        try:
            yield
        finally:
            self.has_request, self.is_kept, self.was_answered = False, False, True
            self._connections.used(self)

    def end(self) -> None:
        """Ends the connection."""
        self._connections.forget(self)
        if self.transport:
            self.transport.abort()
        elif self.connecting:
            self.connecting.cancel()


class Connections:
    """Accepts connections from `run` until `close`. For one event loop.

    Attributes:
      are_closing: whether each ends with its next answer.
    """

    def __init__(self, listening: socket.socket, most: int, tls: Renewed[ssl.SSLContext] | None, **settings: Any):
        """
        Args:
          most: how many there may be; at least 256 all the same, if the process has the handles.
          tls: the settings of encryption, which are asked for each connection.
          settings: those of aiohttp's `RequestHandler`.
        """
        self.are_closing = False
        self._socket, self._tls, self._settings = listening, tls, settings
        self._most = server_options.places(max(most, _NEW))
        self._open: dict[Connection, None] = {}  # the idlest first
        self._accepting: asyncio.Task[Any] | None = None

    @property
    def num_requests(self) -> int:
        """The number of requests that are being answered; for any thread."""
        return sum(each.has_request for each in list(self._open))

    def used(self, connection: Connection) -> None:
        """Makes it the one that was used last."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def forget(self, connection: Connection) -> None:
        """Counts it no more."""
        self._open.pop(connection, None)

    async def run(self) -> None:
        """Accepts connections."""
        self._accepting = asyncio.current_task()
        while True:
            if len(self._open) >= self._most and (idlest := self._idlest()) and not idlest.was_answered:
                # Each has the time to send its head; the others wait in the backlog.
                await asyncio.sleep(idlest.begun_at + _YOUNG_SECS - time.monotonic())
            try:
                accepted, address = await self._accept()
            except OSError:  # no file handle is free: it would fail again at once
                self._end_idlest()
                await asyncio.sleep(_PAUSE_SECS)
                continue
            if len(self._open) >= self._most and not self._end_idlest():
                _BUSY.log('refused a connection: all are busy')
                accepted.close()
                continue
            self._connect(Connection(self, address, **self._settings), accepted)
            await asyncio.sleep(0)  # lets the requests of others go on

    async def _accept(self) -> tuple[socket.socket, Any]:
        """Unlike `loop.sock_accept`, loses no connection when its task is cancelled in the turn after it."""
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(BlockingIOError):
                accepted, address = self._socket.accept()
                accepted.setblocking(False)
                return accepted, address
            is_ready = asyncio.Event()
            loop.add_reader(self._socket, is_ready.set)
            try:
                await is_ready.wait()
            finally:
                loop.remove_reader(self._socket)

    def _connect(self, connection: Connection, accepted: socket.socket) -> None:
        """Begins to make the connection's transport."""
        settings: dict[str, Any] = {'ssl': self._tls.get(), 'ssl_handshake_timeout': HEAD_SECS} if self._tls else {}
        loop = asyncio.get_running_loop()

        async def connect() -> None:
            try:
                await loop.connect_accepted_socket(lambda: connection, accepted, **settings)
            except OSError as error:
                _LOST.log('lost the connection of %s: %s', connection.address, error)
                self.forget(connection)

        self._open[connection] = None
        connection.connecting = loop.create_task(connect())
        # One that is ended before it has a transport; also before the task has begun.
        connection.connecting.add_done_callback(lambda ended: accepted.close() if ended.cancelled() else None)

    async def close(self, grace_secs: float) -> None:
        """Stops to listen, waits so long for the requests that are being answered,
        and ends all connections.
        """
        self.are_closing = True
        if self._accepting:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        self._socket.close()
        until = time.monotonic() + grace_secs
        while self.num_requests and time.monotonic() < until:
            await asyncio.sleep(_PAUSE_SECS)
        ended = list(self._open)
        for each in ended:
            each.end()
        while any(each.transport for each in ended):
            await asyncio.sleep(0)

    def _idlest(self) -> Connection | None:
        """Returns the connection that makes room for a new one;
        None if all have requests that are being answered.
        """
        for was_answered in (False, True):
            for each in self._open:
                if not each.is_kept and each.was_answered == was_answered:
                    return each
        return None

    def _end_idlest(self) -> bool:
        """Ends a connection of which no request is being answered;
        returns whether there was one.
        """
        idlest = self._idlest()
        if idlest:
            idlest.end()
        return idlest is not None
