"""Streams from and to a replay server in the test's own process."""

import threading
import time

_DEADLINE_SECS = 5.0
_THREADS = ('replay_draw', 'subscriber', 'credit_reader', 'fill')


def wait_until_ended() -> None:
    """Waits for the threads that read and write, before the server ends. (Some are meant to lose their server.)

    Reverb reads from a server in the same process without gRPC. If that one goes away, the stream tries again a
    thousand times a second, forever: it takes CPU time from all later tests, and may crash the process.
    """
    deadline = time.monotonic() + _DEADLINE_SECS
    for thread in threading.enumerate():
        if thread.name in _THREADS:
            thread.join(max(0.0, deadline - time.monotonic()))
            thread.name += ' (left over)'
