"""Watchdog: ends the process when a piece of work takes too long. It is for work that nothing else can interrupt.

A collective waits forever for a worker that is alive but stuck on its data, a strategy's start-up for a worker that
never starts, and a single process for a device that hangs. No signal handler of Python runs in the meantime, and no
exception can be raised there. So the watchdog prints the stacks of all threads and ends the process; the launcher then
starts all workers again.
"""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from absl import logging

from tflearn.core import background
from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS
from tflearn.core.settings import PositiveFloat, checked


def end_process(message: str) -> None:
    """Prints `message` and the stacks of all threads, and ends the process at once with `TRY_AGAIN_EXIT_STATUS`."""
    logging.error(message)
    sys.stderr.flush()
    faulthandler.dump_traceback(sys.__stderr__ or 2)
    os._exit(TRY_AGAIN_EXIT_STATUS)


@contextlib.contextmanager
def ending_after(timeout_secs: float, what: str) -> Iterator[None]:
    """Ends the process, with the stacks of all threads and exit status 1, if a `with` block takes too long.

    It is for TensorFlow's start-up, which holds Python's global interpreter lock while it waits, so that no thread of
    Python, and no `Watchdog`, can run. A process has only one such deadline.
    """
    logging.info('waiting at most %.0f s for %s', timeout_secs, what)
    faulthandler.dump_traceback_later(timeout_secs, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class Watchdog:
    """Gives pieces of work a deadline."""

    @checked
    def __init__(
        self,
        timeout_secs: PositiveFloat,
        end: Callable[[str], None] = end_process,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts the thread that watches.

        Args:
          end: called once on the watchdog's thread, with a message that names what took too long.

        Raises:
          ValueError: if `timeout_secs` is not above 0.
        """
        self._timeout_secs, self._end, self._clock = timeout_secs, end, clock
        self._work: str | None = None
        self._count: Callable[[], object] | None = None
        self._since = 0.0
        self._closed = threading.Event()
        background.Thread(target=self._watch, name='watchdog').start()

    @contextlib.contextmanager
    def guard(self, what: str, count: Callable[[], object] | None = None) -> Iterator[None]:
        """Watches the work of a `with` block.

        A block may be a part of another one, whose deadline starts again when the part is done.

        Args:
          what: names it in the message: '200 train steps from step 1000'.
          count: returns something else whenever a part of the work is done, such as the train step, which restarts the
            deadline. It is called on the watchdog's thread, and must not wait.
        """
        before, self._since = (self._work, self._count), self._clock()
        self._work, self._count = what, count
        try:
            yield
        finally:
            self._since = self._clock()
            self._work, self._count = before

    def progress(self) -> None:
        """Restarts the deadline of the present work, because a part of it is done. May be called from any thread."""
        self._since = self._clock()

    def close(self) -> None:
        """Stops watching."""
        self._closed.set()

    def _watch(self) -> None:
        poll_secs = min(1.0, self._timeout_secs / 4)
        seen: object = None
        while not self._closed.wait(poll_secs):
            work, count = self._work, self._count
            if count is not None and (now := count()) != seen:
                seen = now
                self.progress()
            if work is None or self._clock() - self._since < self._timeout_secs:
                continue
            self._end(
                f'got no end of {work} in {self._timeout_secs:.0f} s; need it by then; check the other workers, the '
                'devices and the replay server, and start all workers again: they resume from the last checkpoint'
            )
            return
