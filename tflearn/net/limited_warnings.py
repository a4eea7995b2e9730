"""Warnings of what clients do, who may do it very often: the first ones are logged, then one a minute."""

import time
from collections.abc import Callable

from absl import logging

_EVERY_SECS = 60.0


class LimitedWarnings:
    """Logs warnings of one kind, and in each how many were left out since the last one."""

    def __init__(self, first: int = 20, clock: Callable[[], float] = time.monotonic):
        """`first`: how many are logged at any time."""
        self._first, self._clock = first, clock
        self._left_out, self._next_at = 0, 0.0

    def log(self, text: str, *args: object) -> None:
        """Logs a warning, or counts it."""
        now = self._clock()
        if self._first <= 0 and now < self._next_at:
            self._left_out += 1
            return
        more = f' (and {self._left_out} more since the last such line)' if self._left_out else ''
        logging.warning(f'{text}%s', *args, more)
        self._first, self._left_out, self._next_at = self._first - 1, 0, now + _EVERY_SECS
