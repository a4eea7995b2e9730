"""Signs of life of a job within one long call, such as a step of many slow environments.

A job reports between its calls. What takes long within one of them gives signs, which the job of
the same thread
reports: it works, and does not hang. A single call that does not return gives none: `Unanswered`
warns of it.
"""

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator

from absl import logging

from tflearn.core import background

_SECS = 1.0  # between two signs
_POLL_SECS, _POLLS = 10.0, 3  # a call that is the same one for so many polls is warned of

_of_thread = threading.local()


@contextlib.contextmanager
def reported(report: Callable[[], object]) -> Iterator[None]:
    """Makes what takes long in the block call `report`, about once a second.
    Its errors end what takes long.
    """
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


class Unanswered:
    """Warns of a call that does not return, from a thread of its own: the calling one waits.

    Calls are made in a `with` block of it, and each is begun with `ask`.
    """

    def __init__(self, warning: str):
        """Starts the thread, which ends with this object.

        Args:
          warning: what is logged, with %s for `asked` and %d for the time that has gone by [s].
        """
        self.calls = 0
        self.asked: str | None = None
        ended = threading.Event()
        this = weakref.ref(self, lambda _: ended.set())
        background.Thread(target=_watch, name='unanswered', args=(this, ended, warning)).start()

    def ask(self, whom: str) -> None:
        """Begins a call."""
        self.calls += 1
        self.asked = whom

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.asked = None


def _watch(watched: weakref.ref[Unanswered], ended: threading.Event, warning: str) -> None:
    polls, newest, due = 0, -1, _POLLS
    # The caller reads no clock: a call costs it these two attributes, and nothing more.
    while not ended.wait(_POLL_SECS) and (this := watched()) is not None:
        if this.asked is None or this.calls != newest:
            polls, newest, due = 0, this.calls, _POLLS
        elif polls >= due:
            logging.warning(warning, this.asked, polls * _POLL_SECS)
            due *= 2
        del this  # else it would live as long as the thread
        polls += 1
