"""Waiting for something outside this process: with a deadline, a reason and a way to be stopped."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from absl import logging

from tflearn.errors import UserTimeoutError

T = TypeVar('T')

LOG_EVERY_SECS = 10.0


class Stopped(Exception):
    """The wait ended because the job was asked to stop."""


def wait_until(
    condition: Callable[[], T | None],
    what: str | Callable[[], str],
    timeout_secs: float,
    stop: threading.Event | None = None,
    poll_secs: float = 0.1,
) -> T:
    """Polls `condition` until it returns something true, and returns that.

    While it waits it logs, every ten seconds, what it waits for and how long it still will.

    Args:
      condition: returns a true value when the wait is over. Exceptions pass through.
      what: what is waited for, for the log and the error: 'the replay server at host:port'. A function is asked
        anew each time, so it can tell the state of things.
      timeout_secs: how long to wait.
      stop: ends the wait when set.
      poll_secs: seconds between two polls.

    Returns:
      The true value of `condition`.

    Raises:
      TimeoutError: naming `what`, after `timeout_secs`.
      Stopped: when `stop` was set.
    """
    stop = stop or threading.Event()
    describe = what if callable(what) else lambda: str(what)
    start = time.monotonic()
    next_log_secs = LOG_EVERY_SECS
    while True:
        if value := condition():
            return value
        waited_secs = time.monotonic() - start
        if waited_secs >= timeout_secs:
            raise UserTimeoutError(f'timed out after {waited_secs:.0f} s waiting for {describe()}')
        if waited_secs >= next_log_secs:
            logging.info('waiting for %s (%.0f of %.0f s)', describe(), waited_secs, timeout_secs)
            next_log_secs += LOG_EVERY_SECS
        if stop.wait(min(poll_secs, timeout_secs - waited_secs)):
            raise Stopped(f'stopped while waiting for {describe()}')


def is_listening(address: str, timeout_secs: float = 2.0) -> bool:
    """Returns whether anything listens at `address`, 'host:port': without gRPC, which would wait longer each time."""
    host, _, port = address.rpartition(':')
    try:
        socket.create_connection((host.strip('[]'), int(port)), timeout_secs).close()
    except OSError:
        return False
    return True


class PeerStopped(Exception):
    """Another worker of the same job was asked to stop, so this one cannot go on alone."""


class StopEvent(threading.Event):
    """Set when a job is to end.

    Attributes:
      before_exit: called by whoever sets the event, before it ends the process at once; None: the process must not be
        ended, since the job has something to save or to close.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before_exit: Callable[[], object] | None = None


@contextlib.contextmanager
def may_exit(stop: threading.Event, before_exit: Callable[[], object]) -> Iterator[None]:
    """Lets a request to stop end the process at once during a block that cannot be interrupted, such as tracing.

    Args:
      stop: of the job; only a `StopEvent` has an effect.
      before_exit: called then, on another thread; it must be quick.

    Raises:
      Stopped: if `stop` was set before.
    """
    if isinstance(stop, StopEvent):
        stop.before_exit = before_exit  # before the look: a request that comes between the two is not missed
    try:
        if stop.is_set():
            raise Stopped('stopped before the start')
        yield
    finally:
        if isinstance(stop, StopEvent):
            stop.before_exit = None
