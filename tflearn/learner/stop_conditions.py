"""StopConditions: when training ends, and how near that is;
DataStopConditions: for recorded data.
"""

import collections
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from tflearn.core.errors import UserValueError
from tflearn.core.settings import NonNegativeFloat, PositiveFloat, PositiveInt, checked_dataclass

_WINDOW_SECS = 30.0
_SAMPLE_SECS = 0.5
_STALL_SECS = 5.0
_FEW = 3
_STALL_FACTOR = 5  # times the usual time between two updates


@checked_dataclass(frozen=True)
class StopConditions:
    """When training ends: as soon as one of these is reached; None is no condition.
    A job needs one of them.

    A run that has ended goes on if the one that ended it is raised, or removed beside another one.

    Attributes:
      num_train_steps: the run's train steps.
      max_env_steps: the run's environment steps, over all collectors.
      max_secs: seconds of training, over all sessions of the run. Compiling, in the learner's first
        call, does not count; waits for data do.
    """

    num_train_steps: PositiveInt | None = None
    max_env_steps: PositiveInt | None = None
    max_secs: PositiveFloat | None = None

    def reached(self, train_step: int, env_steps: int, secs: float) -> str | None:
        """Returns the condition that is reached, for the log; None if there is none."""
        if self.num_train_steps is not None and train_step >= self.num_train_steps:
            return f'num_train_steps {self.num_train_steps} reached'
        if self.max_env_steps is not None and env_steps >= self.max_env_steps:
            return f'max_env_steps {self.max_env_steps} reached'
        if self.max_secs is not None and secs >= self.max_secs:
            return f'max_secs {self.max_secs:.0f} reached'
        return None

    def check(self, *others: object) -> None:
        """Raises a ValueError if there is neither a condition here nor one of `others`,
        which may be None.
        """
        if all(value is None for value in (*dataclasses.astuple(self), *others)):
            raise UserValueError(
                'got no stop condition; need one of StopConditions.num_train_steps, max_env_steps, max_secs (a '
                'target_return alone may never be reached); bind train.StopConditions.max_secs = 3600, for example'
            )

    def most_steps(self, train_step: int, wanted: int) -> int:
        """Returns how many of the `wanted` train steps may be taken."""
        return wanted if self.num_train_steps is None else min(wanted, self.num_train_steps - train_step)

    def given(self) -> dict[str, float]:
        """Returns the conditions that there are, by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


class Forecast:
    """Predicts which stop condition will be reached first, and when,
    from the rates of the last half minute.

    A stall, such as the compilation of a program, starts the measurement of the rates again.
    """

    def __init__(self, conditions: StopConditions, clock: Callable[[], float] = time.monotonic):
        """`clock` returns the time [s]."""
        self._conditions, self._clock = conditions.given(), clock
        self._seen: collections.deque[tuple[float, dict[str, float]]] = collections.deque()
        self._updated_at: float | None = None
        # Between two updates [s].
        self._gaps: collections.deque[float] = collections.deque(maxlen=10)

    def update(self, train_step: int, env_steps: int, secs: float) -> dict[str, Any]:
        """Returns the metrics 'nearest', a condition's name, 'nearest_share' of it,
        and 'secs_left' [s].

        They are None as long as they are unknown.

        Args:
          train_step: the run's train steps now.
          env_steps: its environment steps.
          secs: its seconds of training.
        """
        counts = {'num_train_steps': train_step, 'max_env_steps': env_steps, 'max_secs': secs}
        if not self._conditions:
            return {'nearest': None, 'nearest_share': None, 'secs_left': None}
        left = {}
        for name, rate in self._rates(counts).items():
            if rate > 0:
                left[name] = max(0.0, self._conditions[name] - counts[name]) / rate
        shares = {name: min(1.0, counts[name] / end) for name, end in self._conditions.items()}
        # Without a rate that with the greatest share.
        nearest = min(left, key=left.__getitem__) if left else max(shares, key=shares.__getitem__)
        return {'nearest': nearest, 'nearest_share': shares[nearest], 'secs_left': left.get(nearest)}

    def _rates(self, counts: dict[str, float]) -> dict[str, float]:
        """Takes in the counts of now; returns how fast those of conditions have grown lately [1/s]."""
        now = self._clock()
        if self._updated_at is not None:
            gap = now - self._updated_at
            if len(self._gaps) >= _FEW and gap > max(_STALL_SECS, _STALL_FACTOR * sum(self._gaps) / len(self._gaps)):
                self._seen.clear()
            self._gaps.append(gap)
        self._updated_at = now
        while len(self._seen) > 1 and now - self._seen[1][0] >= _WINDOW_SECS:
            self._seen.popleft()
        if not self._seen or now - self._seen[-1][0] >= _SAMPLE_SECS:
            self._seen.append((now, counts))
        then, before = self._seen[0]
        if now <= then:
            return {}
        return {name: (counts[name] - before[name]) / (now - then) for name in self._conditions}


@checked_dataclass(frozen=True)
class DataStopConditions:
    """When training on a data set ends, in addition to `StopConditions`; None is no condition.

    Attributes:
      max_epochs: passes over the data; of several weighted data sets over the one that is passed
        first.
      patience: the number of validations in a row without a lower loss than the best one so far.
      min_improvement: how much lower a loss must be to count as an improvement.
    """

    max_epochs: PositiveInt | None = None
    patience: PositiveInt | None = None
    min_improvement: NonNegativeFloat = 0.0
