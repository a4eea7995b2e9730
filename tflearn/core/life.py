"""Signs of life of a job within one long call, such as a step of many slow environments.

A job reports between its calls. What takes long within one of them gives signs, which the job of
the same thread
reports: it works, and does not hang.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

_SECS = 1.0  # between two signs

_of_thread = threading.local()


@contextlib.contextmanager
def reported(report: Callable[[], object]) -> Iterator[None]:
    """Makes what takes long in the block call `report`, about once a second. Its errors end what takes long."""
    before = getattr(_of_thread, 'report', None)
    _of_thread.report = report
    try:
        yield
    finally:
        _of_thread.report = before


class Signs:
    """The signs of life of one call.

    Attributes:
      due: when the next one is due [s of time.monotonic]; infinite if no job reports them.
    """

    def __init__(self) -> None:
        """Begins the call."""
        self._report: Callable[[], object] | None = getattr(_of_thread, 'report', None)
        self.due = math.inf if self._report is None else time.monotonic() + _SECS

    def give(self) -> None:
        """Reports one, which is due."""
        if self._report is not None:
            self._report()
            self.due = time.monotonic() + _SECS
