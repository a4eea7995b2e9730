"""IntervalMetrics: the learner's metrics over all train steps since the last summary."""

import os
import pathlib
import time
from collections.abc import Callable, Mapping

from tflearn.learner.train_loop import Taken


class IntervalMetrics:
    """Adds up what happened between two summaries.

    Attributes:
      num_steps: train steps since the last summary.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._start: float | None = None  # before the first train step there is nothing to wait for
        self.num_steps = self._num_nonfinite = 0
        self._waited_secs = self._trigger_secs = self._longest_trigger_secs = 0.0
        self._sums: dict[str, float] = {}

    def begin(self) -> None:
        """Starts the clock; it then runs until the end of training."""
        if self._start is None:
            self._start = self._clock()

    def add(self, taken: Taken) -> None:
        """Takes in train steps."""
        self.num_steps += taken.num_steps
        self._num_nonfinite += taken.num_nonfinite
        self._waited_secs += taken.waited_secs
        self._add('loss', taken.loss)
        for kind, values in (('extra', taken.extra), ('info', taken.info)):
            for name, value in values.items():
                self._add(f'{kind}/{name}', value)

    def add_wait(self, secs: float) -> None:
        """Takes in seconds spent waiting for data."""
        if self._start is not None:
            self._waited_secs += secs

    def add_trigger(self, secs: float) -> None:
        """Takes in seconds that a trigger held up training."""
        self._trigger_secs += secs
        self._longest_trigger_secs = max(self._longest_trigger_secs, secs)

    def leave_out(self, secs: float) -> None:
        """Leaves out seconds that just passed."""
        if self._start is not None:
            self._start += secs

    def take(self) -> Mapping[str, float]:
        """Returns the metrics since the last call, and begins anew.

        Returns:
          `loss`, `extra/...` and `info/...`: means over the steps whose loss was finite (none without such a step);
          `nonfinite_steps`; `steps_per_sec`, of all time that passed, but what was left out; `data_wait_share`, the
          part of it spent waiting for data, in [0, 1]; `trigger_secs`, spent in triggers, and `longest_trigger_secs`,
          in one of them at a time.
        """
        now = self._clock()
        secs = max(now - (self._start or now), 1e-9)
        counted = self.num_steps - self._num_nonfinite
        means = {name: value / counted for name, value in self._sums.items()} if counted else {}
        metrics = {
            **means,
            'nonfinite_steps': self._num_nonfinite,
            'steps_per_sec': self.num_steps / secs,
            'data_wait_share': min(self._waited_secs / secs, 1.0),
            'trigger_secs': self._trigger_secs,
            'longest_trigger_secs': self._longest_trigger_secs,
        }
        self._start = now
        self._clear()
        return metrics

    def _add(self, name: str, value: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + value

    def _clear(self) -> None:
        self.num_steps = self._num_nonfinite = 0
        self._waited_secs = self._trigger_secs = self._longest_trigger_secs = 0.0
        self._sums = {}


_PAGES = pathlib.Path('/proc/self/statm')


def rss_mb(pages: pathlib.Path = _PAGES) -> float | None:
    """Returns the memory that this process holds [MB]; None where the system does not tell.

    Args:
      pages: the file in which the system tells it.
    """
    try:
        resident = int(pages.read_text(encoding='utf-8').split()[1])
    except OSError:
        return None
    return resident * os.sysconf('SC_PAGE_SIZE') / 1e6
