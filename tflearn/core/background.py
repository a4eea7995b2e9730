"""Threads that end their job when they die; and work, one piece at a time, off the calling thread."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from tflearn.core.errors import UserTimeoutError

_deaths: list[Callable[[str, BaseException], None]] = []  # what is called when a thread dies


class Thread(threading.Thread):
    """A daemon thread without which a job cannot go on: if it dies of an error, `ending_with_threads` ends the job.

    All threads of tflearn are such threads, so that none can die without a word (a test looks for others).
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

    A normal exit of Python waits for the thread; `os._exit`, with which the jobs' programs end, does not: call `join`
    first. Only one thread may submit work.
    """

    def __init__(self, name: str):
        self._name = name
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
        """Schedules `work`: at once if there is none, else in the place of work that has not begun. Never blocks."""
        with self._lock:
            if self._working:
                self._next = work
                return
            self._thread = Thread(target=self._run, args=(work,), name=self._name, daemon=False)
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
