"""A limit of the connections of a server whose library has none: gRPC's.

gRPC accepts connections until the process has no file handle left, and keeps them whatever they do. Here a thread of
the same process looks at its own sockets when somebody connects, and ends those that are too many. Requests pay nothing
for it; a proxy in front of the port would cost each of them time.
"""

import contextlib
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Iterator

from absl import logging

from tflearn.core import background
from tflearn.net import server_options

_ACCEPT_SECS = 0.02  # in which gRPC accepts who has connected
_YOUNG_SECS = 0.1
_LOOK_SECS = 5.0


class ConnectionLimit:
    """Ends connections to a port of this process beyond a number: those first that were never used, the oldest first.

    Linux only, as Reverb.
    """

    def __init__(self, port: int, connections: int):
        """Begins.

        Args:
          port: where this process listens.
          connections: how many connections stay; fewer, if the process has not so many handles.
        """
        self._port, self._most = port, server_options.places(connections)
        self._used: dict[str, float] = {}
        self._known: dict[str, float] = {}
        self._null = os.open(os.devnull, os.O_RDONLY)
        self._socket = os.dup(self._null)  # a handle for the socket that is looked at, when there is no other
        self._epoll = select.epoll()
        for number in _open_handles():
            with self._look_at(number) as found:
                if found and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    self._epoll.register(number, select.EPOLLIN | select.EPOLLET)
        self._ended = threading.Event()
        self._thread = background.Thread(target=self._run, name='connection_limit')
        self._thread.start()

    def used(self, peer: str) -> None:
        """Notes that an admitted request came over the connection of `peer`, as gRPC calls it."""
        self._used[peer] = time.monotonic()

    def close(self) -> None:
        """Stops looking."""
        self._ended.set()
        self._thread.join(2 * _LOOK_SECS)
        self._epoll.close()
        os.close(self._socket)
        os.close(self._null)

    def _run(self) -> None:
        more = False
        while not self._ended.is_set():
            self._epoll.poll(_YOUNG_SECS if more else _LOOK_SECS / 10)
            if not self._ended.wait(_ACCEPT_SECS):
                more = self._trim()

    def _trim(self) -> bool:
        """Ends connections; returns whether there are too many that are young."""
        numbers = _open_handles()
        if len(numbers) <= self._most:
            return False
        young = False
        peers = {number: peer for number in numbers if (peer := self._peer(number))}
        now = time.monotonic()
        self._known = {peer: self._known.get(peer, now) for peer in peers.values()}
        for gone in [peer for peer in list(self._used) if peer not in self._known]:
            self._used.pop(gone, None)
        by_use = sorted(peers.items(), key=lambda each: (self._used.get(each[1], 0.0), self._known[each[1]]))
        # A new one has the time to send a request, while there are handles for it.
        urgent = len(numbers) > server_options.num_handles() * 7 // 8
        for number, peer in by_use[: max(0, len(peers) - self._most)]:
            if not urgent and now - self._known[peer] < _YOUNG_SECS:
                young = True
                continue
            logging.log_first_n(logging.WARNING, 'ended a connection: more than %d at the same time', 5, self._most)
            with self._look_at(number) as found, contextlib.suppress(OSError):
                if found and _name(found) == peer:  # the handle may be another one's meanwhile
                    found.shutdown(socket.SHUT_RDWR)
        return young

    def _peer(self, number: int) -> str | None:
        with self._look_at(number) as found, contextlib.suppress(OSError):
            return _name(found) if found else None
        return None

    @contextlib.contextmanager
    def _look_at(self, number: int) -> Iterator[socket.socket | None]:
        """Gives the handle's socket for the time of the block if it is one of the port."""
        found = None
        try:
            os.dup2(number, self._socket, inheritable=False)
            if stat.S_ISSOCK(os.fstat(self._socket).st_mode):
                found = socket.socket(fileno=self._socket)
                address = found.getsockname()
                yield found if isinstance(address, tuple) and len(address) > 1 and address[1] == self._port else None
            else:
                yield None
        except OSError:  # it was closed meanwhile
            if found is None:
                yield None
        finally:
            if found:
                found.detach()
            os.dup2(self._null, self._socket, inheritable=False)


def _open_handles() -> list[int]:
    try:
        return [int(name) for name in os.listdir('/proc/self/fd')]
    except OSError:  # there is none left for the directory
        return list(range(server_options.num_handles()))


def _name(connection: socket.socket) -> str:
    """Returns the name that gRPC has for the other side."""
    host, port = connection.getpeername()[:2]
    host = host.removeprefix('::ffff:')
    return f'ipv6:%5B{host}%5D:{port}' if ':' in host else f'ipv4:{host}:{port}'
