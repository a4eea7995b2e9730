"""Triggers: actions at intervals of train steps or seconds, at given steps, and at the end.

A trigger is called as `trigger(before, after)` after the train steps (before, after], and returns whether it fired; at
the end of training `trigger.end(step)` is called. An action that raises does not count as done: the exception is not
caught, and the next call tries again. If an interval was crossed several times since the last call, the action is
called once.
"""

import abc
import json
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Range, checked
from tflearn.core.train_step import crossed

Action = Callable[[int], object]


class StepTrigger(abc.ABC):
    """Calls `action` with the train step whenever it is `due`; depends on steps only, so it has no state to save."""

    def __init__(self, action: Action, at_end: bool = False):
        """
        Args:
          action: called with the train step.
          at_end: also fires at the end, unless it has fired at that same step.
        """
        self.action, self.at_end = action, at_end
        self._failed = False
        self._fired_at: int | None = None

    @abc.abstractmethod
    def due(self, before: int, after: int) -> bool:
        """Returns whether the action is due in the train steps (before, after]."""

    def __call__(self, before: int, after: int) -> bool:
        """Returns whether it fired for the train steps (before, after]."""
        if not (self.due(before, after) or self._failed):
            return False
        self._fire(after)
        return True

    def end(self, step: int) -> None:
        """Fires a last time, if `at_end` is set or the last action failed."""
        if self._failed or (self.at_end and self._fired_at != step):
            self._fire(step)

    def _fire(self, step: int) -> None:
        self._failed = True
        self.action(step)
        self._failed, self._fired_at = False, step


class IntervalTrigger(StepTrigger):
    """Fires whenever a multiple of `interval` was reached or passed.

    It does not drift from the multiples, and a run that is resumed from a checkpoint fires at the same steps.
    """

    @checked
    def __init__(
        self,
        interval: Annotated[int, Range(least=1, advice='leave the trigger out if it is not wanted')],
        action: Action,
        at_end: bool = False,
    ):
        """
        Args:
          interval: train steps between two calls; at least 1.
          action: called with the train step.
          at_end: also fires at the end, unless it has fired at that same step.
        """
        super().__init__(action, at_end)
        self.interval = interval

    def due(self, before: int, after: int) -> bool:
        return crossed(self.interval, before, after)


class StepsTrigger(StepTrigger):
    """Fires when one of the given train steps was reached or passed."""

    def __init__(self, steps: Sequence[int], action: Action, at_end: bool = False):
        """
        Args:
          steps: train steps, in any order; each at least 1.
          action: called with the train step.
          at_end: also fires at the end, unless it has fired at that same step.
        """
        if not steps or min(steps) < 1:
            raise UserValueError(f'got steps={list(steps)}; need train steps from 1; name at least one')
        super().__init__(action, at_end)
        self.steps = tuple(sorted(steps))

    def due(self, before: int, after: int) -> bool:
        return any(before < step <= after for step in self.steps)


class TotalTrigger(StepTrigger):
    """Fires `total` times, evenly over the train steps of a run; the last time at its last step."""

    def __init__(self, total: int, num_train_steps: int, action: Action, at_end: bool = False):
        """
        Args:
          total: how often it fires; at least 1.
          num_train_steps: the run's train steps; at least `total`.
          action: called with the train step.
          at_end: also fires at the end (of a run that ends early), unless it has fired at that same step.
        """
        if not 1 <= total <= num_train_steps:
            raise UserValueError(
                f'got total={total}, num_train_steps={num_train_steps}; need 1 <= total <= num_train_steps; lower total'
            )
        super().__init__(action, at_end)
        self.total, self.num_train_steps = total, num_train_steps

    def due(self, before: int, after: int) -> bool:
        return self._count(after) > self._count(before)

    def _count(self, step: int) -> int:
        return min(step, self.num_train_steps) * self.total // self.num_train_steps


class EndTrigger(StepTrigger):
    """Fires once, at the end."""

    def __init__(self, action: Action):
        super().__init__(action, at_end=True)

    def due(self, before: int, after: int) -> bool:
        return False


class TimeTrigger(StepTrigger, tf.train.experimental.PythonState):
    """Fires whenever `interval_secs` have passed since it last fired.

    Its clock starts with its first call: neither the time before training nor the time between two sessions of a run
    counts. The seconds since it fired are its state in a checkpoint. Workers have different clocks: it is not for
    actions that all workers must take at the same step.
    """

    @checked
    def __init__(
        self,
        interval_secs: Annotated[float, Range(above=0, advice='leave the trigger out if it is not wanted')],
        action: Action,
        at_end: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          interval_secs: seconds between two calls; above 0.
          action: called with the train step.
          at_end: also fires at the end, unless it has fired at that same step.
          clock: returns seconds that never decrease.
        """
        super().__init__(action, at_end)
        self.interval_secs, self._clock = interval_secs, clock
        self._phase_secs = 0.0
        self._start_secs: float | None = None  # on the clock; None before the first call

    def due(self, before: int, after: int) -> bool:
        if self._start_secs is None:
            self._start_secs = self._clock() - self._phase_secs
        return self._clock() - self._start_secs >= self.interval_secs

    def _fire(self, step: int) -> None:
        start_secs, self._start_secs = self._start_secs, self._clock()  # before the action, which may save this state
        try:
            super()._fire(step)
        except BaseException:
            self._start_secs = start_secs
            raise

    def serialize(self) -> str:
        """Returns the seconds since it fired, as JSON."""
        phase_secs = self._phase_secs if self._start_secs is None else self._clock() - self._start_secs
        return json.dumps({'phase_secs': phase_secs})

    def deserialize(self, string_value: str) -> None:
        """Restores the seconds since it fired; the clock starts again with the next call."""
        self._phase_secs = float(json.loads(string_value)['phase_secs'])
        self._start_secs = None
