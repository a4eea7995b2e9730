"""EpisodeMetrics: what the episodes of a batch of environments earned. Needs no TensorFlow."""

import collections
import time
from collections.abc import Callable
from typing import Any

import numpy as np

# Values of tf_agents.trajectories.StepType.
_FIRST, _LAST = 0, 2

_RATE_MARKS = 10
_RATE_MARK_SECS = 1.0
_MAX_DRAINED = 100_000


class EpisodeMetrics:
    """Observer of trajectories [B] that keeps count of steps and episodes.

    Termination and a time limit both end an episode. An episode that an environment's reset cuts off is forgotten.

    Attributes:
      episodes: finished episodes.
      env_steps: environment steps; boundary rows (LAST -> FIRST) are none.
    """

    def __init__(
        self,
        num_environments: int,
        buffer_size: int = 10,
        gamma: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts at zero.

        Args:
          num_environments: B.
          buffer_size: means are over the newest max(buffer_size, B) episodes, so that each environment has its share.
          gamma: discount factor of `mean_discounted_return`.
          clock: seconds.
        """
        self.episodes = 0
        self.env_steps = 0
        self._gamma = gamma
        self._returns = np.zeros(num_environments)
        self._discounted = np.zeros(num_environments)
        self._weights = np.ones(num_environments)
        self._lengths = np.zeros(num_environments, np.int64)
        window = max(buffer_size, num_environments)
        self._newest: collections.deque[tuple[float, int, float]] = collections.deque(maxlen=window)
        self._undrained: collections.deque[tuple[float, int]] = collections.deque(maxlen=_MAX_DRAINED)
        self._clock = clock
        self._marks = collections.deque([(clock(), 0)], maxlen=_RATE_MARKS)

    def __call__(self, trajectory: Any) -> None:
        """Takes in one step of every environment.

        Args:
          trajectory: tf_agents Trajectory of arrays [B]; of it are read step_type, next_step_type and reward.
        """
        first = trajectory.step_type == _FIRST
        if first.any():
            self._returns[first] = self._discounted[first] = self._lengths[first] = 0
            self._weights[first] = 1.0
        self._returns += trajectory.reward
        self._discounted += self._weights * trajectory.reward
        self._weights *= self._gamma
        steps = trajectory.step_type != _LAST
        self._lengths += steps
        self.env_steps += int(np.count_nonzero(steps))
        for i in np.flatnonzero(trajectory.next_step_type == _LAST):
            self._finish(float(self._returns[i]), int(self._lengths[i]), float(self._discounted[i]))
        if (now := self._clock()) - self._marks[-1][0] >= _RATE_MARK_SECS:
            self._marks.append((now, self.env_steps))

    def _finish(self, episode_return: float, length: int, discounted_return: float) -> None:
        self.episodes += 1
        self._newest.append((episode_return, length, discounted_return))
        self._undrained.append((episode_return, length))

    @property
    def mean_return(self) -> float | None:
        """Mean undiscounted return of the newest episodes; None before the first has ended."""
        return self._mean(0)

    @property
    def mean_length(self) -> float | None:
        """Mean length [steps] of the newest episodes; None before the first has ended."""
        return self._mean(1)

    @property
    def mean_discounted_return(self) -> float | None:
        """Mean return of the newest episodes, discounted with gamma; None before the first has ended."""
        return self._mean(2)

    @property
    def env_steps_per_sec(self) -> float:
        """Environment steps per second over the last ten seconds or so."""
        then, steps = self._marks[0]
        elapsed_secs = self._clock() - then
        return (self.env_steps - steps) / elapsed_secs if elapsed_secs > 0 else 0.0

    def drain(self) -> list[tuple[float, int]]:
        """Returns (return, length) of the episodes that ended since the last call (at most the newest 100 000)."""
        drained = list(self._undrained)
        self._undrained.clear()
        return drained

    def _mean(self, column: int) -> float | None:
        return float(np.mean([episode[column] for episode in self._newest])) if self._newest else None
