"""ServerOptions: where a server of ours listens, its limits, and over which networks others can reach it.

ConnectionLimit is for a server whose library has no limit: gRPC's. It accepts connections until the process has no file
handle left, and keeps them whatever they do. Here a thread of the same process looks at its own sockets when somebody
connects, and ends those that are too many. Requests pay nothing for it; a proxy in front of the port would cost each of
them time.
"""

import contextlib
import fcntl
import os
import resource
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from tflearn.core import background, tokens
from tflearn.core.settings import PositiveInt, checked_dataclass
from tflearn.net.tls import TlsFiles

_RESERVED = 4  # a fourth of all handles
_GET_FLAGS = 0x8913  # SIOCGIFFLAGS of Linux, and the flags of an interface
_UP, _LOOPBACK = 0x1, 0x8
LOCAL_HOSTS = ('localhost', '127.0.0.1', '[::1]')  # names of this machine that reach it alone


def num_handles() -> int:
    """Returns how many handles this process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def places(wanted: int) -> int:
    """Returns how many connections a server may take: as many as are wanted, where there are handles for them."""
    room = max(1, num_handles() * (_RESERVED - 1) // _RESERVED - len(os.listdir('/proc/self/fd')))
    if room < wanted:
        logging.warning('takes %d connections at most, since there are %d handles (ulimit -n)', room, num_handles())
    return min(wanted, room)


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


def reachable() -> list[str]:
    """Returns the names of the interfaces over which others can reach this machine: those that are up, but loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        names = [name for _, name in socket.if_nameindex()]
        return [name for name in names if _flags(asking, name) & (_UP | _LOOPBACK) == _UP]


def log_shield(ports: Sequence[object], shield: str | None, why: str, setting: str) -> None:
    """Warns of ports that are open to all networks.

    Args:
      ports: their numbers, or words.
      shield: what protects them from unknown clients, such as 'firewall'; None warns, unless no other machine can
        reach them.
      why: what makes them dangerous.
      setting: the setting by which a user gives `shield`.
    """
    text = f'port {ports[0]} is' if len(ports) == 1 else f'ports {", ".join(map(str, ports))} are'
    if shield is not None:
        logging.info('%s protected by: %s', text, shield)
    elif networks := reachable():
        logging.warning(
            '%s open to everybody who reaches %s: %s; shield it as docs/security.md says (a firewall rule, '
            'stunnel, a network namespace), and set %s = "firewall"',
            text, ', '.join(networks), why, setting,
        )  # fmt: skip


def _flags(asking: socket.socket, name: str) -> int:
    try:
        found = fcntl.ioctl(asking, _GET_FLAGS, struct.pack('16sH14x', name.encode(), 0))
    except OSError:  # it was removed meanwhile
        return 0
    return int(struct.unpack('16sH14x', found)[1])


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
        self._port, self._most = port, places(connections)
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
        urgent = len(numbers) > num_handles() * 7 // 8
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
        return list(range(num_handles()))


def _name(connection: socket.socket) -> str:
    """Returns the name that gRPC has for the other side."""
    host, port = connection.getpeername()[:2]
    host = host.removeprefix('::ffff:')
    return f'ipv6:%5B{host}%5D:{port}' if ':' in host else f'ipv4:{host}:{port}'
