"""Environments in real time: steps at a fixed interval,
as for a robot or a game at its original speed.
"""

import threading
import time
from typing import Any

from absl import logging
from tf_agents.trajectories import time_step as ts

from tflearn.core.settings import PositiveFloat, checked
from tflearn.core.types import BatchedEnvironment, EnvironmentFactory
from tflearn.environments.wrappers import Wrapper

_JITTER = 0.1  # of an interval, by which a wake-up may be late


@checked
def make(
    num_environments: int,
    seed: int | None,
    make_environment: EnvironmentFactory,
    unroll_step_interval_secs: PositiveFloat,
) -> 'PacedEnvironment':
    """Makes the environments of `make_environment`, stepped in real time;
    see `PacedEnvironment`.
    """
    return PacedEnvironment(make_environment(num_environments=num_environments, seed=seed), unroll_step_interval_secs)


class PacedEnvironment(Wrapper):
    """Another environment whose steps start `unroll_step_interval_secs` apart.

    A step that starts late, since the policy or the machine was late, is an overrun: it is counted
    and taken at once, and the next one is due an interval later. Later steps do not catch up. What
    a wake-up is late by, up to a tenth of the interval, is none: the next step is due an interval
    after the last one was. After a reset, the next step is due an interval later.
    """

    def __init__(self, environment: BatchedEnvironment, unroll_step_interval_secs: float):
        """Takes over `environment`: it is closed with this."""
        super().__init__(environment)
        self._num_overruns = 0
        self._interval_secs = unroll_step_interval_secs
        self._due = 0.0
        self._never = threading.Event()

    @property
    def num_overruns(self) -> int:
        """The number of steps that came late."""
        return self._num_overruns

    def reset(self) -> ts.TimeStep:
        """Starts new episodes everywhere; the first step is due an interval after that.
        Returns time steps [B].
        """
        time_step = self._environment.reset()
        self._due = time.monotonic() + self._interval_secs
        return time_step

    def step(self, action: Any) -> ts.TimeStep:
        """Waits until the step is due, then applies `action`. Returns time steps [B]."""
        early_secs = self._due - time.monotonic()
        if early_secs > 0:
            self._never.wait(early_secs)
        late_secs = time.monotonic() - self._due
        if early_secs > 0 and late_secs <= _JITTER * self._interval_secs:
            self._due += self._interval_secs
        else:
            self._num_overruns += 1
            if self._num_overruns.bit_count() == 1:  # 1, 2, 4, 8, ...
                logging.warning('step came %.2f ms late (overrun %d)', 1e3 * late_secs, self._num_overruns)
            self._due = time.monotonic() + self._interval_secs  # the message took its time, too
        time_step = self._environment.step(action)
        # A reset took its time, not the policy.
        if (time_step.step_type == ts.StepType.FIRST).any():
            self._due = time.monotonic() + self._interval_secs
        return time_step
