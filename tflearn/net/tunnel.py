"""A tunnel: forwards TCP connections over mutual TLS, for a server that has neither encryption nor authentication.

    job -> Tunnel(CLIENT) on its machine == mutual TLS == Tunnel(SERVER) on the server's machine -> server at localhost

Both sides show a certificate, and believe only what the authority in their files has signed. It needs Python's standard
library only. Connections, handshakes and buffers are bounded; bytes are forwarded as they are.
"""

import asyncio
import contextlib
import dataclasses
import enum
import functools
import gc
import os
import socket
import ssl
from collections.abc import Iterator
from typing import Any, cast

from absl import logging

from tflearn.core import background
from tflearn.core.errors import UserValueError, check_at_least
from tflearn.core.waiting import HOST_PORT
from tflearn.net import tls
from tflearn.net.renewed import Renewed

_BUFFER_BYTES = 256 * 1024  # read at once; a slow reader stops the other side after a few of them
_BACKLOG = 128
_COLLECT_EVERY = 25  # connections
_CLOSE_SECS = 5.0
_RETRY_SECS = 1.0  # without file handles
_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
# A machine that has vanished is noticed after about a minute, however long nothing was to be sent.
_KEEPALIVE = ((socket.SO_KEEPALIVE, 1),)
_TCP_KEEPALIVE = (('TCP_KEEPIDLE', 20), ('TCP_KEEPINTVL', 10), ('TCP_KEEPCNT', 4), ('TCP_USER_TIMEOUT', 60_000))


class Side(enum.Enum):
    """Which of its two connections a tunnel encrypts: the one that it accepts (SERVER) or the one it makes (CLIENT)."""

    SERVER = 'server'
    CLIENT = 'client'


@dataclasses.dataclass(frozen=True)
class Address:
    """HOST:PORT, or a Unix socket: unix:PATH.

    Attributes:
      host: a name or an address; the path of a Unix socket.
      port: None for a Unix socket.
    """

    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str, name: str) -> 'Address':
        """Returns the address that `text` is.

        Args:
          name: the flag's or argument's name, for the error.

        Raises:
          ValueError: if it is neither HOST:PORT nor unix:PATH.
        """
        if text.startswith('unix:') and len(text) > len('unix:'):
            return cls(text.removeprefix('unix:'), None)
        match = HOST_PORT.fullmatch(text)
        if not match or int(match[2]) > 65535:
            raise UserValueError(f'got {name}={text}; need HOST:PORT or unix:PATH')
        return cls(match[1].strip('[]'), int(match[2]))

    def __str__(self) -> str:
        if self.port is None:
            return f'unix:{self.host}'
        return f'[{self.host}]:{self.port}' if ':' in self.host else f'{self.host}:{self.port}'


@dataclasses.dataclass(frozen=True)
class TunnelOptions:
    """One side of a tunnel.

    Attributes:
      side: which side.
      listen: where it accepts connections.
      to: where it forwards each of them.
      files: its certificate, the key, and the authority of the other side's certificates (`client_ca`), which is
        needed.
      server_name: the name that the server's certificate must have; None is the host of `to`. CLIENT only.
      max_connections: connections at the same time, unfinished handshakes included, of which the oldest one ends for
        a further one; if there is none, that is closed. Each takes about 0.6 MB.
      handshake_timeout_secs: how long a handshake, or a connection to `to`, may take.
    """

    side: Side
    listen: Address
    to: Address
    files: tls.TlsFiles
    server_name: str | None = None
    max_connections: int = 256
    handshake_timeout_secs: float = 10.0

    def __post_init__(self) -> None:
        check_at_least(1, max_connections=self.max_connections)
        if not self.files.client_ca:
            raise UserValueError('got no authority; need the certificate of the one that signs the other side')
        if not self.handshake_timeout_secs > 0:
            raise UserValueError(f'got handshake_timeout_secs={self.handshake_timeout_secs}; need a number above 0')


class Tunnel:
    """Forwards connections from its construction until `close`, on an event loop in its own thread.

    Replaced files are taken over at the next connection.

    Attributes:
      port: the port that it listens at; None for a Unix socket.
    """

    def __init__(self, options: TunnelOptions):
        """Starts to listen.

        Raises:
          ValueError: if it cannot listen at the address, or a file is invalid.
        """
        self._options = options
        server = options.side is Side.SERVER
        make = options.files.context if server else options.files.client_context
        self._settings = Renewed(options.files.names, lambda: _newest_protocol(make()))
        self._listener = _listen(options.listen)
        self.port = None if options.listen.port is None else self._listener.getsockname()[1]
        self._connections: set[asyncio.Task[None]] = set()
        self._unproven: dict[asyncio.Task[None], None] = {}  # without a handshake, the oldest first
        self._num_ended = 0
        self._loop = asyncio.new_event_loop()
        self._accepting = self._loop.create_task(self._accept())
        self._thread = background.Thread(target=self._run, name='tunnel')
        self._thread.start()

    @property
    def num_connections(self) -> int:
        """Connections that are open now, unfinished handshakes included."""
        return len(self._connections)

    def close(self) -> None:
        """Stops to listen, and ends all connections. May be called twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._accepting.cancel)
            self._thread.join(_CLOSE_SECS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._accepting)
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _accept(self) -> None:
        try:
            while True:
                try:
                    accepted, peer = await self._loop.sock_accept(self._listener)
                except OSError as error:  # out of file handles; or the other side has gone already
                    logging.log_first_n(logging.WARNING, 'could not accept a connection: %s', 5, error)
                    await asyncio.sleep(_RETRY_SECS)
                    continue
                if len(self._connections) >= self._options.max_connections and not self._end_oldest():
                    logging.log_first_n(logging.WARNING, 'refused a connection: too many at the same time', 5)
                    accepted.close()
                    continue
                task = self._loop.create_task(self._forward(accepted, peer))
                self._connections.add(task)
                self._unproven[task] = None
                task.add_done_callback(self._forget)
                task.add_done_callback(functools.partial(_close, accepted))  # one that ends before it has begun
        finally:
            self._listener.close()
            if self.port is None:
                with contextlib.suppress(OSError):
                    os.unlink(self._options.listen.host)

    def _end_oldest(self) -> bool:
        """Ends the oldest connection that has not been forwarded yet; returns whether there was one."""
        oldest = next(iter(self._unproven), None)
        if oldest is None:
            return False
        del self._unproven[oldest]
        oldest.cancel()
        return True

    def _forget(self, ended: asyncio.Task[None]) -> None:
        self._connections.discard(ended)
        self._unproven.pop(ended, None)
        self._num_ended += 1
        # asyncio's TLS leaves cycles with a buffer of 256 kB each; Python would collect them too late, and the heap
        # would grow with each stranger.
        if self._num_ended % _COLLECT_EVERY == 0:
            gc.collect()

    async def _end(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    async def _forward(self, accepted: socket.socket, peer: object) -> None:
        """Handles one connection to its end; raises nothing that a peer causes."""
        who = str(peer[0]) if isinstance(peer, tuple) else 'a Unix socket'
        secs, server = self._options.handshake_timeout_secs, self._options.side is Side.SERVER
        readers: list[asyncio.StreamReader] = []
        writers: list[asyncio.StreamWriter] = []
        try:
            # The side with TLS first: nothing is done for a stranger before it has shown its certificate.
            for encrypted in (True, False):
                connecting = self._take(accepted, server) if encrypted == server else self._connect(not server)
                reader, writer = await asyncio.wait_for(connecting, secs)
                readers.append(reader)
                writers.append(writer)
            self._unproven.pop(cast(Any, asyncio.current_task()), None)
            await _both_ways(readers, writers)
        except (OSError, asyncio.TimeoutError, ValueError) as error:
            text = 'a connection of %s to %s failed: %s'
            logging.log_first_n(logging.WARNING, text, 50, who, self._options.to, _reason(error))
        finally:
            for writer in writers:
                writer.transport.abort()

    async def _take(self, accepted: socket.socket, encrypted: bool) -> _Stream:
        accepted.setblocking(False)
        _keep_alive(accepted)
        if encrypted:  # TLS takes most of a connection's memory: not for one that sends nothing
            await _readable(self._loop, accepted)
        reader = asyncio.StreamReader(_BUFFER_BYTES, self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        settings: dict[str, Any] = {'ssl': self._settings.get()} if encrypted else {}
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, accepted, **settings)
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _connect(self, encrypted: bool) -> _Stream:
        to = self._options.to
        settings: dict[str, Any] = {}
        if encrypted:
            settings = {'ssl': self._settings.get(), 'server_hostname': self._options.server_name or to.host}
        if to.port is None:
            return await asyncio.open_unix_connection(to.host, limit=_BUFFER_BYTES, **settings)
        reader, writer = await asyncio.open_connection(to.host, to.port, limit=_BUFFER_BYTES, **settings)
        _keep_alive(writer.get_extra_info('socket'))
        return reader, writer


@contextlib.contextmanager
def opened(options: TunnelOptions) -> Iterator[Tunnel]:
    """A tunnel for the time of the block; see `Tunnel`."""
    tunnel = Tunnel(options)
    try:
        yield tunnel
    finally:
        tunnel.close()


def _newest_protocol(settings: ssl.SSLContext) -> ssl.SSLContext:
    settings.minimum_version = ssl.TLSVersion.TLSv1_3  # both sides are ours
    return settings


def _listen(address: Address) -> socket.socket:
    with contextlib.ExitStack() as on_failure:
        try:
            family: socket.AddressFamily = socket.AF_UNIX
            name: Any = address.host
            if address.port is not None:
                family, _, _, _, name = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
            listener = on_failure.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(name)
            listener.listen(_BACKLOG)
        except OSError as error:
            raise UserValueError(
                f'got the address {address}, which cannot be listened at ({error.strerror or error}); need a name of '
                'this machine and a free port, or the path of a new socket'
            ) from error
        listener.setblocking(False)
        on_failure.pop_all()
    return listener


def _keep_alive(connection: socket.socket) -> None:
    if connection.family == socket.AF_UNIX:
        return
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.SOL_SOCKET, option, value)
    for name, value in _TCP_KEEPALIVE:
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _readable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    ready = loop.create_future()
    loop.add_reader(connection, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connection)


def _close(accepted: socket.socket, ended: object) -> None:
    accepted.close()


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _both_ways(readers: list[asyncio.StreamReader], writers: list[asyncio.StreamWriter]) -> None:
    """Forwards until one side has ended: TLS has no half-open connections, and gRPC does not use them."""
    ways = [asyncio.ensure_future(_one_way(readers[i], writers[1 - i])) for i in (0, 1)]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in done:
            way.result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_BUFFER_BYTES):
        writer.write(data)
        await writer.drain()
    writer.close()
    with contextlib.suppress(asyncio.TimeoutError):  # the other side need not answer the end of TLS
        await asyncio.wait_for(writer.wait_closed(), _CLOSE_SECS)


def _reason(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return 'timed out'
    if isinstance(error, ssl.SSLCertVerificationError):
        return f'the certificate of the other side is not accepted: {error.verify_message}'
    if isinstance(error, ssl.SSLError):
        return f'no handshake: {error.reason or error}'
    return str(error) or type(error).__name__
