"""The network interfaces of this machine, or of the network namespace that this process is in."""

import fcntl
import socket
import struct

_GET_FLAGS = 0x8913  # SIOCGIFFLAGS of Linux, and the flags of an interface
_UP, _LOOPBACK = 0x1, 0x8


def reachable() -> list[str]:
    """Returns the names of the interfaces over which others can reach this machine: those that are up, but loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        names = [name for _, name in socket.if_nameindex()]
        return [name for name in names if _flags(asking, name) & (_UP | _LOOPBACK) == _UP]


def _flags(asking: socket.socket, name: str) -> int:
    try:
        found = fcntl.ioctl(asking, _GET_FLAGS, struct.pack('16sH14x', name.encode(), 0))
    except OSError:  # it was removed meanwhile
        return 0
    return int(struct.unpack('16sH14x', found)[1])
