"""One piece of work at a time, off the calling thread; of those that wait only the newest counts."""

import threading
from collections.abc import Callable

from absl import logging


class Background:
    """Does the newest work it was given, on a thread that is there only while there is work.

    The thread keeps the process alive until it is done, so nothing is lost at exit. Work is given by one thread.
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
        """Says whether the newest work that was done has failed."""
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
            raise TimeoutError(f'waited {timeout_secs:.0f} s in vain for the thread {self._name}')

    def raise_failure(self) -> None:
        """Raises what the newest work raised, once."""
        error, self._error = self._error, None
        if error is not None:
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
