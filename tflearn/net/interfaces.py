"""The network interfaces of this machine, or of the network namespace that this process is in."""

import fcntl
import socket
import struct
from collections.abc import Sequence

from absl import logging

_GET_FLAGS = 0x8913  # SIOCGIFFLAGS of Linux, and the flags of an interface
_UP, _LOOPBACK = 0x1, 0x8
LOCAL_HOSTS = ('localhost', '127.0.0.1', '[::1]')  # names of this machine that reach it alone


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
