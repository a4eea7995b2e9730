"""Actions of a learner's host program: at intervals of train steps or seconds, on given steps,
and at the end.

    report = PeriodicAction(lambda step: print(step), every_steps=1_000, at_end=True)
    Learner(agent, dataset_fn, run_dir, triggers=[report])

A trigger is called as `trigger(before, after)` after the train steps (before, after], and returns
whether it acted; at the end of training `trigger.end(step)` is called. An action that raises does
not count as done: the exception is not caught, and the next call tries again. If several events lie
between two calls, the action is called once.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import tensorflow as tf

from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.core.settings import Range, checked
from tflearn.core.train_step import crossed
from tflearn.core.workers import Agreement

Action = Callable[[int], object]
_ADVICE = 'leave it out if it is not wanted'


def own_triggers(make_triggers: Callable[[Any], Iterable[Any]] | None, learner: Any) -> Iterable[Any]:
    """Returns a user's own triggers, see `LearnerOptions.make_triggers`."""
    made = make_triggers(learner) if make_triggers else ()
    if not isinstance(made, Iterable):
        raise UserTypeError(f'got {made!r} from make_triggers; need a list of triggers; return one')
    return made


class Phase(tf.train.experimental.PythonState):
    """The seconds since an action, which a checkpoint saves.

    Its clock starts with the first call: neither the time before training nor the time between two
    sessions of a run counts. Workers have different clocks: it is not for actions that all workers
    must take at the same step.
    """

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._restored_secs = 0.0
        self._start_secs: float | None = None  # on the clock; None before the first call

    def secs(self) -> float:
        """Returns the seconds, and starts the clock."""
        now = self._clock()
        if self._start_secs is None:
            self._start_secs = now - self._restored_secs
        return now - self._start_secs

    def restart(self, elapsed_secs: float = 0.0) -> None:
        """Counts from `elapsed_secs` on."""
        self._start_secs = self._clock() - elapsed_secs

    def serialize(self) -> str:
        """Returns the seconds as JSON."""
        secs = self._restored_secs if self._start_secs is None else self._clock() - self._start_secs
        return json.dumps({'phase_secs': secs})

    def deserialize(self, string_value: str) -> None:
        """Restores the seconds; the clock starts again with the next call."""
        self._restored_secs = float(json.loads(string_value)['phase_secs'])
        self._start_secs = None


class PeriodicAction:
    """Calls `action` with the train step whenever one of its conditions holds.

    Attributes:
      phase: the seconds since the last action, for checkpoints; None without `every_secs`.
    """

    @checked
    def __init__(
        self,
        action: Action,
        *,
        every_steps: Annotated[int, Range(least=1, advice=_ADVICE)] | None = None,
        every_secs: Annotated[float, Range(above=0, advice=_ADVICE)] | None = None,
        on_steps: Sequence[int] = (),
        at_end: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          action: called with the train step.
          every_steps: acts whenever a multiple of it was reached or passed. It does not drift from
            the multiples, and a run that is resumed from a checkpoint acts at the same steps.
          every_secs: acts whenever so many seconds have passed since the last action.
          on_steps: acts when one of these train steps was reached or passed.
          at_end: also acts at the end, unless it has acted at that same step.
          clock: returns seconds that never decrease.
        """
        if any(step < 1 for step in on_steps):
            raise UserValueError(f'got on_steps={list(on_steps)}; need train steps from 1; remove the others')
        if every_steps is None and every_secs is None and not on_steps and not at_end:
            raise UserValueError('got no condition; need every_steps, every_secs, on_steps or at_end; give one of them')
        self._action, self._at_end = action, at_end
        self._every_steps, self._every_secs, self._on_steps = every_steps, every_secs, tuple(on_steps)
        self.phase = None if every_secs is None else Phase(clock)
        self._failed = False
        self._acted_at: int | None = None

    def __call__(self, before: int, after: int) -> bool:
        """Returns whether it acted for the train steps (before, after]."""
        is_time = self.phase is not None and self._every_secs is not None and self.phase.secs() >= self._every_secs
        is_interval = self._every_steps is not None and crossed(self._every_steps, before, after)
        is_step = any(before < step <= after for step in self._on_steps)
        if not (is_time or is_interval or is_step or self._failed):
            return False
        self._act(after)
        return True

    def end(self, step: int) -> None:
        """Acts a last time, if `at_end` is set or the last action failed."""
        if self._failed or (self._at_end and self._acted_at != step):
            self._act(step)

    def _act(self, step: int) -> None:
        self._failed = True
        if self.phase is not None:
            # Before the action, which may save this state; and back after a failure, so that it is
            # due again.
            elapsed_secs = self.phase.secs()
            self.phase.restart()
            try:
                self._action(step)
            except BaseException:
                self.phase.restart(elapsed_secs)
                raise
        else:
            self._action(step)
        self._failed, self._acted_at = False, step


class PeriodicSave:
    """Saves checkpoints at intervals of train steps or seconds, on all workers at the same steps.

    A checkpoint does not hold its clock: one that is restored was saved just then.
    """

    def __init__(
        self,
        save: Callable[[], object],
        every_steps: int | None,
        every_secs: float | None,
        strategy: tf.distribute.Strategy,
        clock: Callable[[], float] = time.monotonic,
    ):
        """See `PeriodicAction`; at least one interval. `strategy` is the one of the workers."""
        self._agreement, self._clock, self._secs = Agreement(strategy), clock, 0.0
        self._action = PeriodicAction(
            lambda _: save(), every_steps=every_steps, every_secs=every_secs, clock=lambda: self._secs
        )

    def __call__(self, before: int, after: int) -> bool:
        """Returns whether it saved for the train steps (before, after]."""
        if self._action.phase is not None:
            # Each worker has a clock of its own, so the chief's counts. It is read once in each
            # call: a worker on which saving fails must not ask the others for the time.
            self._secs = self._agreement.of_chief(round(self._clock() * 1e6)) / 1e6
        return self._action(before, after)
