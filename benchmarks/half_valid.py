"""Sends half-valid messages to a port of a running program, and looks at what the program does after them."""

import contextlib
import json
import os
import pathlib
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import wrong_messages

SEED = 1
_STILL_SECS, _MOST_KEPT_MB = 2.0, 150.0


def sent(name: str, pid: int, send: Callable[[int], tuple[dict[Any, int], list[str]]], messages: int) -> dict[str, Any]:
    """Sends half-valid messages to a port, and looks at what the server does after them.

    Args:
      send: sends so many messages; returns how many answers had each status, and what they should not have been.
    """
    send(100)
    before, start = resident_mb(pid), time.monotonic()
    statuses, faults = send(messages)
    secs, grown = time.monotonic() - start, resident_mb(pid) - before
    used = _cpu_secs(pid)
    time.sleep(_STILL_SECS)  # noqa: TID251
    spun = _cpu_secs(pid) - used
    row = {
        'server': f'{name}: {messages} half-valid messages',
        'statuses': {str(status): count for status, count in sorted(statuses.items())},
        'faults': len(faults),
        'secs': round(secs, 1),
        'grown_mb': round(grown, 1),
        'cpu_secs_afterwards': round(spun, 2),
        'stood': not faults and grown < _MOST_KEPT_MB and spun < _STILL_SECS / 2,
    }
    print(json.dumps(row), faults[:3], flush=True)
    return row


def over_http(name: str, pid: int, port: int, forms: Sequence[wrong_messages.Form], messages: int) -> dict[str, Any]:
    """Sends half-valid messages to a port of HTTP; see `sent`."""

    def send(count: int) -> tuple[dict[Any, int], list[str]]:
        asked = wrong_messages.Port(port)
        with contextlib.closing(asked):
            for request in wrong_messages.requests(forms, count, SEED):
                asked.send(request)
        return asked.statuses, asked.faults

    return sent(name, pid, send, messages)


def resident_mb(pid: int) -> float:
    """Returns the memory of a process."""
    pages = int(pathlib.Path(f'/proc/{pid}/statm').read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def _cpu_secs(pid: int) -> float:
    fields = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf('SC_CLK_TCK')
