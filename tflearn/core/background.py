"""Threads that end their job when they die, or when work takes too long;
and work off the calling thread.

A collective waits forever for a worker that is alive but stuck on its data, a strategy's start-up
for a worker that never starts, and a single process for a device that hangs. No signal handler of
Python runs in the meantime, and no exception can be raised there. So a `Watchdog` prints the stacks
of all threads and ends the process; the launcher then starts all workers again.
"""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS, UserTimeoutError
from tflearn.core.settings import PositiveFloat, checked

_deaths: list[Callable[[str, BaseException], None]] = []  # what is called when a thread dies


class Thread(threading.Thread):
    """A daemon thread without which a job cannot go on:
    if it dies of an error, `ending_with_threads` ends the job.

    All threads of tflearn are such threads, so that none can die without a word (a test looks for
    others).
    """

    def __init__(self, target: Callable[..., object], name: str, args: tuple[Any, ...] = (), daemon: bool = True):
        """Does not start it; see `threading.Thread`."""
        super().__init__(target=target, name=name, args=args, daemon=daemon)

    def run(self) -> None:
        """See `threading.Thread`."""
        try:
            super().run()
        except BaseException as error:  # also MemoryError and SystemExit
            for call in list(_deaths):
                call(self.name, error)
            raise


@contextlib.contextmanager
def ending_with_threads(stop: threading.Event) -> Iterator[None]:
    """Sets `stop` as soon as a thread dies in the time of the block, which then ends with an error.

    Raises:
      RuntimeError: if one has died; its cause is what it died of.
    """
    dead: list[tuple[str, BaseException]] = []

    def end(name: str, error: BaseException) -> None:
        dead.append((name, error))
        stop.set()

    _deaths.append(end)
    try:
        yield
    finally:
        _deaths.remove(end)
        if dead:
            name, error = dead[0]
            raise RuntimeError(f'the thread {name} died ({type(error).__name__}: {error})') from error


class Background:
    """Runs the newest submitted work on a thread that exists only while there is work.

    A normal exit of Python waits for the thread, unless it is a daemon; `os._exit`, with which the
    jobs' programs end, does not: call `join` first. Only one thread may submit work.
    """

    def __init__(self, name: str, daemon: bool = False):
        self._name, self._daemon = name, daemon
        self._lock = threading.Lock()
        self._next: Callable[[], object] | None = None
        self._working = False
        self._thread: Thread | None = None
        self._error: Exception | None = None

    @property
    def failed(self) -> bool:
        """Whether the newest completed work has failed."""
        return self._error is not None

    def submit(self, work: Callable[[], object]) -> None:
        """Schedules `work`: at once if there is none, else in the place of work that has not begun.
        Never blocks.
        """
        with self._lock:
            if self._working:
                self._next = work
                return
            self._thread = Thread(target=self._run, args=(work,), name=self._name, daemon=self._daemon)
            self._thread.start()
            self._working = True

    def join(self, timeout_secs: float) -> None:
        """Waits until all work is done and the thread has ended, whether or not the work failed.

        Raises:
          TimeoutError: if that takes longer than `timeout_secs`.
        """
        if self._thread is None:
            return
        self._thread.join(timeout_secs)
        if self._thread.is_alive():
            raise UserTimeoutError(f'timed out after {timeout_secs:.0f} s waiting for the thread {self._name}')

    def raise_failure(self, but: tuple[type[Exception], ...] = ()) -> None:
        """Raises the newest work's error, once; errors of the classes in `but` are left for a later call."""
        error = self._error
        if error is not None and not isinstance(error, but):
            self._error = None
            raise error

    def _run(self, work: Callable[[], object] | None) -> None:
        while work is not None:
            try:
                work()
                self._error = None
            except Exception as error:  # `raise_failure` raises it; a caller that never asks goes on
                logging.warning('%s', error)
                self._error = error
            with self._lock:
                work, self._next = self._next, None
                self._working = work is not None


def end_process(message: str) -> None:
    """Prints `message` and the stacks of all threads,
    and ends the process at once with `TRY_AGAIN_EXIT_STATUS`.
    """
    logging.error(message)
    sys.stderr.flush()
    faulthandler.dump_traceback(sys.__stderr__ or 2)
    os._exit(TRY_AGAIN_EXIT_STATUS)


@contextlib.contextmanager
def ending_after(timeout_secs: float, what: str) -> Iterator[None]:
    """Ends the process, with the stacks of all threads and exit status 1,
    if a `with` block takes too long.

    It is for TensorFlow's start-up, which holds Python's global interpreter lock while it waits, so
    that no thread of Python, and no `Watchdog`, can run. A process has only one such deadline.
    """
    logging.info('waiting at most %.0f s for %s', timeout_secs, what)
    faulthandler.dump_traceback_later(timeout_secs, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class Watchdog:
    """Sets deadlines for pieces of work."""

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
        Thread(target=self._watch, name='watchdog').start()

    @contextlib.contextmanager
    def guard(self, what: str, count: Callable[[], object] | None = None) -> Iterator[None]:
        """Watches the work of a `with` block.

        A block may be a part of another one, whose deadline starts again when the part is done.

        Args:
          what: names it in the message: '200 train steps from step 1000'.
          count: returns something else whenever a part of the work is done, such as the train step,
            which restarts the deadline. It is called on the watchdog's thread, and must not wait.
        """
        before, self._since = (self._work, self._count), self._clock()
        self._work, self._count = what, count
        try:
            yield
        finally:
            self._since = self._clock()
            self._work, self._count = before

    def progress(self) -> None:
        """Restarts the deadline of the present work, because a part of it is done.
        May be called from any thread.
        """
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
