"""One piece of work at a time, off the calling thread; of those that wait only the newest counts."""

import threading
from collections.abc import Callable

from absl import logging

from tflearn.errors import UserTimeoutError


class Background:
    """Does the newest work it was given, on a thread that is there only while there is work.

    An ordinary exit of Python waits for the thread; `os._exit`, by which the programs of the jobs end, does not: `join`
    before it. Work is given by one thread.
    """

    def __init__(self, name: str):
        """
        Args:
          name: of the thread.
        """
        self._name = name
        self._lock = threading.Lock()
        self._next: Callable[[], object] | None = None
        self._working = False
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def failed(self) -> bool:
        """Whether the newest work that was done has failed."""
        return self._error is not None

    def submit(self, work: Callable[[], object]) -> None:
        """Has `work` done; it replaces work that has not begun. Never blocks."""
        with self._lock:
            self._next = work
            if self._working:
                return
            self._thread = threading.Thread(target=self._run, name=self._name)
            self._thread.start()
            self._working = True

    def join(self, timeout_secs: float) -> None:
        """Waits until all work is done and the thread has ended, whether or not it failed.

        Raises:
          TimeoutError: if it takes longer.
        """
        if self._thread is None:
            return
        self._thread.join(timeout_secs)
        if self._thread.is_alive():
            raise UserTimeoutError(f'timed out after {timeout_secs:.0f} s waiting for the thread {self._name}')

    def raise_failure(self, but: tuple[type[Exception], ...] = ()) -> None:
        """Raises what the newest work raised, once.

        Args:
          but: kinds of errors that are left for a later call.
        """
        error = self._error
        if error is not None and not isinstance(error, but):
            self._error = None
            raise error

    def _run(self) -> None:
        while True:
            with self._lock:
                work, self._next = self._next, None
                if work is None:
                    self._working = False
                    return
            try:
                work()
                self._error = None
            except Exception as error:  # whoever waits gets it; whoever does not shall go on
                logging.warning('%s', error)
                self._error = error
