"""Evaluator: measures a policy's returns over complete episodes."""

import dataclasses
import math
import threading

import numpy as np
from tf_agents.trajectories import time_step as ts

from tflearn.errors import UserValueError, check_at_least
from tflearn.types import IDLE, BatchedEnvironment, EvaluationPolicy
from tflearn.waiting import Stopped

_MAX_DROPPED_IN_A_ROW = 10


@dataclasses.dataclass(frozen=True)
class EpisodeStatistics:
    """Returns and lengths of the episodes of one evaluation.

    Attributes:
      returns: the undiscounted return of each episode, grouped by environment, oldest first; of the sum of several
        rewards.
      lengths: the steps of each episode.
      dropped_episodes: the number of episodes that a failure interrupted; others replaced them.
      mean_returns: the mean return of each reward, where there are several; else ().
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    dropped_episodes: int = 0
    mean_returns: tuple[float, ...] = ()

    @property
    def num_episodes(self) -> int:
        return len(self.returns)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        """Sample standard deviation of the returns; 0 for a single one."""
        return float(np.std(self.returns, ddof=1)) if self.num_episodes > 1 else 0.0

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))

    @property
    def mean_return_interval(self) -> tuple[float, float]:
        """The mean's 95% confidence interval by Student's t distribution; unbounded for a single episode."""
        if self.num_episodes == 1:
            return -math.inf, math.inf
        radius = _t_975(self.num_episodes - 1) * self.std_return / math.sqrt(self.num_episodes)
        return self.mean_return - radius, self.mean_return + radius


def _t_975(dof: int) -> float:
    """Returns the 97.5% quantile of Student's t distribution with `dof` degrees of freedom, to about 1%."""
    if dof < 3:  # the expansion below is inaccurate there
        return (12.706, 4.303)[dof - 1]
    z = 1.959964
    # Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5: to order 1 / dof^3.
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / dof + second / dof**2 + third / dof**3


class Evaluator:
    """Plays complete episodes of a policy in a batch of environments.

    The number of episodes of each environment is fixed: num_episodes // B, and one more in the first num_episodes % B.
    (To take the first ones that end would favour short episodes.) An episode that a failure interrupts (FIRST after a
    time step that was not LAST) does not count, and another one is played.
    """

    def __init__(self, environment: BatchedEnvironment, num_episodes: int = 20, max_steps_per_episode: int = 100_000):
        """Plays nothing yet.

        Args:
          num_episodes: the number of episodes of an evaluation; best a multiple of the number of environments.
          max_steps_per_episode: the longest episode; a longer one is an error, so that an evaluation ends.

        Raises:
          ValueError: if a number is below 1.
        """
        check_at_least(1, num_episodes=num_episodes, max_steps_per_episode=max_steps_per_episode)
        self._environment = environment
        self._max_steps_per_episode = max_steps_per_episode
        share, rest = divmod(num_episodes, environment.num_environments)
        self._quotas = np.full(environment.num_environments, share)
        self._quotas[:rest] += 1

    def run(self, policy: EvaluationPolicy, stop: threading.Event | None = None) -> EpisodeStatistics:
        """Resets the environments and plays new episodes.

        Raises:
          ValueError: if an episode does not end.
          RuntimeError: if too many episodes in a row of one environment are interrupted.
          Stopped: when `stop` was set.
        """
        episodes: list[list[tuple[np.ndarray, int]]] = [[] for _ in self._quotas]
        missing = self._quotas.copy()
        returns, lengths = np.zeros((len(missing), 1)), np.zeros(len(missing), np.int64)
        dropped, dropped_in_a_row = 0, np.zeros(len(missing), np.int64)
        time_step = self._environment.reset()
        policy_state = policy.initial_state(len(missing))
        while missing.any():
            if stop is not None and stop.is_set():
                raise Stopped(f'stopped with {missing.sum()} of {self._quotas.sum()} episodes still to play')
            ended = (time_step.step_type == ts.StepType.LAST) | self._environment.info.get(IDLE, False)
            action, policy_state = policy.action(time_step, policy_state)
            time_step = self._environment.step(action)
            first = time_step.step_type == ts.StepType.FIRST
            interrupted = first & ~ended & (missing > 0)
            dropped += np.count_nonzero(interrupted)
            dropped_in_a_row = np.where(ended, 0, dropped_in_a_row) + interrupted
            rewards = time_step.reward.reshape(len(missing), -1)
            returns, lengths = np.where(first[:, None], 0.0, returns + rewards), np.where(first, 0, lengths + 1)
            self._check(lengths[missing > 0], dropped_in_a_row)
            for i in np.flatnonzero(time_step.step_type == ts.StepType.LAST):
                if missing[i]:
                    episodes[i].append((returns[i], int(lengths[i])))
                    missing[i] -= 1
        played = [episode for group in episodes for episode in group]
        of_rewards = np.stack([values for values, _ in played])  # [episodes, rewards]
        return EpisodeStatistics(
            tuple(of_rewards.sum(axis=1).tolist()),
            tuple(length for _, length in played),
            dropped,
            tuple(of_rewards.mean(axis=0).tolist()) if time_step.reward.ndim > 1 else (),
        )

    def _check(self, lengths: np.ndarray, dropped_in_a_row: np.ndarray) -> None:
        """Raises an error if the evaluation might not end; `lengths` are those of the episodes that still count."""
        if lengths.max() > self._max_steps_per_episode:
            raise UserValueError(
                f'got an episode of more than max_steps_per_episode={self._max_steps_per_episode} steps; need episodes '
                "that end; set the environment's max_episode_steps, or raise the limit"
            )
        if dropped_in_a_row.max() > _MAX_DROPPED_IN_A_ROW:
            raise RuntimeError(
                f'got {dropped_in_a_row.max()} interrupted episodes in a row of environment '
                f'{dropped_in_a_row.argmax()}; need complete ones; fix the cause, which is in the log'
            )
