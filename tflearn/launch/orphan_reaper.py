"""A program that ends the jobs when launch ended without doing so (SIGKILL, out of memory).

launch writes the living process groups to its standard input: '+1234' when one was started, '-1234'
when it has ended. The end of that pipe is the end of launch. This file runs by itself and imports
only the standard library, so it starts in a few milliseconds.
"""

import contextlib
import os
import signal
import sys
import threading
import time


def signal_groups(groups: set[int], number: int) -> set[int]:
    """Sends signal `number` (0 only asks) to process groups. Returns those that exist."""
    alive = set()
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
            alive.add(group)
    return alive


def main() -> None:
    """Reads standard input to its end, then ends the groups that are left:
    SIGTERM, argv[1] seconds, SIGKILL.
    """
    stop_timeout_secs = float(sys.argv[1])
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith('+'):
            groups.add(group)
        else:
            groups.discard(group)
    groups = signal_groups(groups, signal.SIGTERM)
    deadline = time.monotonic() + stop_timeout_secs
    pause = threading.Event()
    while groups and time.monotonic() < deadline:
        pause.wait(0.1)
        groups = signal_groups(groups, 0)
    signal_groups(groups, signal.SIGKILL)


if __name__ == '__main__':
    main()
