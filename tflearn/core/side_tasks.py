"""Side tasks: they stand beside what a job is for, and cannot end it.
They poll, log, write summaries and metrics.
"""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator

from absl import logging

from tflearn.core.errors import UserError

_LOG_SECS, _MAX_LOG_SECS = 30.0, 3_600.0

failures: collections.Counter[str] = collections.Counter()
"""How often each side task of this process has failed."""
# Of those whose last attempt failed: when that is logged again, and the pause after it.
_failing: dict[str, tuple[float, float]] = {}


@contextlib.contextmanager
def guarded(what: str, catches: Callable[[Exception], bool] = lambda error: True) -> Iterator[None]:
    """Guards a side task: its failure is logged and counted in `failures`,
    and its caller repeats it.

    Args:
      what: names it, after 'could not': 'write summaries to /runs/a/summaries'.
      catches: returns whether an error is such a failure; others are raised.
    """
    try:
        yield
    except Exception as error:
        if not catches(error):
            raise
        record_failure(what, error)
    else:
        if _failing and _failing.pop(what, None) is not None:
            logging.info('could %s again', what)


def record_failure(what: str, error: Exception) -> None:
    """Counts the failure of a side task, and logs it: at once, then after 30 s, a minute, ..."""
    failures[what] += 1
    now = time.monotonic()
    due, pause_secs = _failing.get(what, (now, _LOG_SECS))
    if now < due:
        return
    if now > due + pause_secs:  # it did not fail for so long: this is something else
        pause_secs = _LOG_SECS
    _failing[what] = now + pause_secs, min(2 * pause_secs, _MAX_LOG_SECS)
    # What is not of the machine or the user may be a mistake in code: its traceback shows where.
    trace = None if isinstance(error, OSError | UserError) else error
    logging.warning('could not %s; tries again: %s', what, error, exc_info=trace)
