"""Waiting for something outside this process, with a deadline, a reason and a way to stop."""

import contextlib
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from absl import logging

from tflearn.core.errors import UserTimeoutError

T = TypeVar('T')

LOG_EVERY_SECS = 10.0
# How long a job may not hear of the coordinator. Both sides of a partition then end within two
# minutes, even on a busy machine.
PEER_TIMEOUT_SECS = 90.0
LEASE_SECS = 5.0  # of a job's claim; the job renews it with each message
# HOST:PORT, its two groups. Longer or empty parts of a name cannot be looked up.
HOST_PORT = re.compile(r'((?:[\w-]{1,63}\.)*[\w-]{1,63}\.?|\[[\da-fA-F:]+\]):(\d{1,5})', re.ASCII)


class Stopped(Exception):
    """The wait ended because the job was asked to stop."""


def wait_until(
    condition: Callable[[], T | None],
    what: str | Callable[[], str],
    timeout_secs: float,
    stop: threading.Event | None = None,
    poll_secs: float = 0.1,
) -> T:
    """Polls `condition` until it returns a true value, and returns that value.

    While it waits it logs every ten seconds what it waits for, and for how long.

    Args:
      condition: returns a true value when the wait is over. Its exceptions propagate.
      what: what is waited for, for the log and the error: 'the replay server at host:port'. A
        function is called each time, so it can report the current state.

    Raises:
      TimeoutError: after `timeout_secs`; it names `what`.
      Stopped: if `stop` is set.
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
    """Returns whether anything listens at `address`, 'host:port'.
    Without gRPC, which would wait longer each time.
    """
    host, _, port = address.rpartition(':')
    try:
        socket.create_connection((host.strip('[]'), int(port)), timeout_secs).close()
    except (OSError, UnicodeError, OverflowError):  # the latter ones: a name, a port that cannot be
        return False
    return True


class Jitter:
    """Pauses between questions to a server, so that processes that started together do not ask together.

    They follow from the identity alone: a process that is started again makes the same ones.
    """

    def __init__(self, identity: str):
        """`identity` is what differs between the processes, such as a job's name."""
        self._random = random.Random(identity)

    def next(self, secs: float) -> float:
        """Returns the pause before the next question:
        uniform in [secs / 2, 3 * secs / 2), on average `secs`.

        So processes that a lost server has brought together part again.
        """
        return secs * self._random.uniform(0.5, 1.5)


class PeerStopped(Exception):
    """Another worker of the same job was asked to stop, so this one cannot continue."""


class PeerLost(PeerStopped):
    """Another job has not been heard of for too long; a new start may find it again."""


class StopEvent(threading.Event):
    """Set when a job should end.

    Attributes:
      before_exit: called by the code that sets the event, before it ends the process immediately.
        None means that the process must not be ended, since the job still has something to save or
        to close.
      save_requested: whether the user wants a checkpoint now; see `wants_save`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before_exit: Callable[[], object] | None = None
        self.save_requested = False


def wants_save(stop: threading.Event) -> bool:
    """Returns whether the user asked for a checkpoint since the last call;
    of a `StopEvent` only.
    """
    if not (isinstance(stop, StopEvent) and stop.save_requested):
        return False
    stop.save_requested = False
    logging.info('saves a checkpoint, as it was asked to (SIGUSR2)')
    return True


@contextlib.contextmanager
def may_exit(stop: threading.Event, before_exit: Callable[[], object]) -> Iterator[None]:
    """Makes a stop request end the process immediately during a block that cannot be interrupted,
    such as tracing.

    Args:
      stop: the job's stop event; only a `StopEvent` has an effect.
      before_exit: called before the exit, on another thread; it must be quick.

    Raises:
      Stopped: if `stop` was set before the block.
    """
    if isinstance(stop, StopEvent):
        # Before the check, so that a request between the two is not missed.
        stop.before_exit = before_exit
    try:
        if stop.is_set():
            raise Stopped('stopped before the start')
        yield
    finally:
        if isinstance(stop, StopEvent):
            stop.before_exit = None
