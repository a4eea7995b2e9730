"""Restarts: what follows the death of each kind of job, and how often a job is started again."""

import collections
import dataclasses
import random
import time
from collections.abc import Callable
from typing import Literal

from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS

Spent = Literal['fail', 'drop', 'later']

WINDOW_SECS = 600.0
MAX_RESTARTS = 20  # within the window
MAX_FAILED_STARTS = 3  # in a row, of a job that never ran
_FIRST_DELAY_SECS, _LAST_DELAY_SECS = 0.5, 30.0


@dataclasses.dataclass(frozen=True)
class RestartRule:
    """What follows the death of a job.

    A job that a signal killed, or that asks for another try with `TRY_AGAIN_EXIT_STATUS`, is started again. So is one
    that ended with an error if `after_error`.

    Attributes:
      after_error: whether to start it again after an error of its own, too; else the run fails.
      spent: what follows when it may not be started again: the run fails; or it goes on without the job until no other
        of its kind is left ('drop'); or the job is started again when the job that the run lasts for has ended
        ('later').
    """

    after_error: bool = False
    spent: Spent = 'fail'

    def restarts(self, exit_code: int) -> bool:
        """Whether a job that ended with `exit_code` is started again; negative: the signal that killed it."""
        if exit_code < 0 or exit_code == TRY_AGAIN_EXIT_STATUS:
            return True
        return self.after_error and exit_code != 0


# By kind of job. An error of the two first ones would come again; each of the others can be done without for a while.
RULES = {
    'replay_server': RestartRule(),
    'train': RestartRule(),
    'collect': RestartRule(after_error=True, spent='drop'),
    'evaluate': RestartRule(after_error=True, spent='later'),
    'coordinator': RestartRule(after_error=True),
    'relay': RestartRule(after_error=True, spent='drop'),
    'feed': RestartRule(after_error=True),
    'feed_worker': RestartRule(after_error=True, spent='drop'),
}


class RestartBudget:
    """How often a job may be started again, and when: at most `MAX_RESTARTS` times in `WINDOW_SECS`.

    A job that did not run since its last start has failed to start: that may happen `MAX_FAILED_STARTS` times in a
    row, with twice the delay each time. Delays differ by chance, so that jobs that died together come back one by one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, seed: int | None = None):
        self._clock, self._random = clock, random.Random(seed)
        self._restarted_at: collections.deque[float] = collections.deque()
        self._failed_starts = 0

    def spend(self, has_run: bool) -> float | None:
        """Takes one restart.

        Args:
          has_run: whether the job ran since its last start.

        Returns:
          The delay [s] before the job is started; None if the budget is spent.
        """
        now = self._clock()
        while self._restarted_at and now - self._restarted_at[0] > WINDOW_SECS:
            self._restarted_at.popleft()
        self._failed_starts = 0 if has_run else self._failed_starts + 1
        if self._failed_starts > MAX_FAILED_STARTS or len(self._restarted_at) >= MAX_RESTARTS:
            return None
        self._restarted_at.append(now)
        delay = min(_LAST_DELAY_SECS, _FIRST_DELAY_SECS * 2 ** max(0, self._failed_starts - 1))
        return delay * self._random.uniform(0.5, 1.5)

    @property
    def text(self) -> str:
        """Which restart the last one was, in words."""
        if self._failed_starts:
            return f'failed start {self._failed_starts} of {MAX_FAILED_STARTS}'
        return f'restart {len(self._restarted_at)} of {MAX_RESTARTS} within {WINDOW_SECS / 60:g} min'
