"""File handles of this process: how many connections a server may take, so that some are left for everything else."""

import os
import resource

from absl import logging

_RESERVED = 4  # a fourth of all


def limit() -> int:
    """Returns how many handles this process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def places(wanted: int) -> int:
    """Returns how many connections a server may take: as many as are wanted, where there are handles for them."""
    room = max(1, limit() * (_RESERVED - 1) // _RESERVED - len(os.listdir('/proc/self/fd')))
    if room < wanted:
        logging.warning('takes %d connections at most, since there are %d handles (ulimit -n)', room, limit())
    return min(wanted, room)
