"""LearnerWatch: for how long a replay server has heard nothing of the learner.

A lost learner cannot be seen otherwise: without a network nothing arrives, no connection ends, and a learner that
waits for data asks for nothing either.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from tflearn.coordinator.state import ENDED

_MAX_COUNTED_SECS = 30.0  # of the time between two looks


class LearnerWatch:
    """Watches nothing before the first heartbeat, and after one that says that the learner ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._updated_at = clock, clock()
        self._beats: int | None = None
        self._heard = False
        self.silent_secs = 0.0  # since the newest heartbeat; 0 before the first one

    def update(self, answer: Mapping[str, Any] | None) -> None:
        """Takes what the coordinator answers to the counts of the tables; None if it answers nothing."""
        now = self._clock()
        secs, self._updated_at = now - self._updated_at, now
        if answer is not None and answer['beats'] != self._beats:
            self._heard, self.silent_secs = self._beats is not None, 0.0
            self._beats = answer['beats']
        elif self._heard:  # a server that stood still, or saved, could not hear anything
            self.silent_secs += min(secs, _MAX_COUNTED_SECS)
        if answer is not None and answer['learner'] == ENDED:
            self._heard, self.silent_secs = False, 0.0  # until the next one comes

    def is_lost(self, timeout_secs: float) -> bool:
        """Returns whether a learner was there, did not say that it ends, and has been silent for so long."""
        return self.silent_secs >= timeout_secs
