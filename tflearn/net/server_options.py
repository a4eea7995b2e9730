"""ServerOptions: where a server of ours listens, its limits,
and over which networks others can reach it.
"""

import fcntl
import resource
import socket
import struct
from collections.abc import Sequence
from typing import Any

from absl import logging

from tflearn.core import tokens
from tflearn.core.settings import PositiveInt, checked_dataclass
from tflearn.net.tls import TlsFiles

_GET_FLAGS = 0x8913  # SIOCGIFFLAGS of Linux, and the flags of an interface
_UP, _LOOPBACK = 0x1, 0x8
# Names of this machine that reach it alone.
LOCAL_HOSTS = ('localhost', '127.0.0.1', '::1', '[::1]')


def url_host(host: str) -> str:
    """Returns a host as it stands before a colon and a port: an address of IPv6 in brackets."""
    return f'[{host}]' if ':' in host and not host.startswith('[') else host


def num_handles() -> int:
    """Returns how many handles this process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def places(wanted: int) -> int:
    """Returns how many connections a server may take:
    as many as are wanted, or one for every second file handle.
    """
    room = num_handles() // 2
    if room < wanted:
        logging.warning('takes %d connections at most, since there are %d handles (ulimit -n)', room, num_handles())
    return min(wanted, room)


@checked_dataclass(frozen=True)
class ServerOptions:
    """Where a server listens, and its limits.

    Attributes:
      host: the name or address to listen at; '0.0.0.0' is all networks.
      port: the port to listen at, or several, of which the first free one is taken; 0 takes any
        free one.
      max_connections: connections at the same time; of more, those that were not used for the
        longest time are ended.
      max_request_bytes: the size of the largest request.
      tls: the files for encryption; None listens without it.
      token: where the token is that clients must show: a file's path, or 'env:NAME' for an
        environment variable. None asks for none.
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
        """Returns the token, '' if none is asked for. Raises ValueError if it cannot be read;
        `name` is the setting.
        """
        return tokens.read(self.token, name) if self.token else ''


def reachable() -> list[str]:
    """Returns the names of the interfaces over which others can reach this machine:
    those that are up, but loopback.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        names = [name for _, name in socket.if_nameindex()]
        return [name for name in names if _flags(asking, name) & (_UP | _LOOPBACK) == _UP]


def log_shield(ports: Sequence[object], shield: str | None, why: str, setting: str) -> None:
    """Warns of ports that are open to all networks.

    Args:
      ports: their numbers, or words.
      shield: what protects them from unknown clients, such as 'firewall'; None warns, unless no
        other machine can reach them.
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
