"""EpisodeMetrics: returns and lengths of the episodes of a batch of environments.
Needs no TensorFlow.
"""

import collections
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tflearn.core.resumable import Resumable

# See `types.BatchedEnvironment.info`; they are no metrics.
EXECUTED_ACTION, IDLE = 'executed_action', 'idle'


class InfoMetrics:
    """The mean and the last value of each number in every environment's current episode.
    NaN is a missing value.
    """

    def __init__(self, num_environments: int):
        """Starts without numbers."""
        self._num_environments = num_environments
        self._seen: frozenset[str] = frozenset()
        self._keys: list[str] = []  # K
        self._sums, self._counts, self._last = np.zeros((3, 0, num_environments))  # [K, B] each

    def add(self, info: Mapping[str, np.ndarray], taken: np.ndarray) -> None:
        """Adds the info of a step.

        Args:
          info: arrays [B, ...], of which numbers [B] are used.
          taken: bool [B], whether the environment made a step.
        """
        if not self._seen.issuperset(info):
            self._add_keys(info)
        if not self._keys:
            return
        values = np.stack([info[key] for key in self._keys]).astype(np.float64)
        valid = taken & ~np.isnan(values)
        np.add(self._sums, values, out=self._sums, where=valid)
        self._counts += valid
        np.copyto(self._last, values, where=valid)

    def begin(self, first: np.ndarray) -> None:
        """Starts a new episode in the environments where `first`, bool [B], is true."""
        if self._keys:
            self._sums[:, first], self._counts[:, first], self._last[:, first] = 0.0, 0.0, np.nan

    def of(self, i: int) -> dict[str, float]:
        """Returns the metrics of environment i's episode:
        means as 'info/<key>', last values as 'info_end/<key>'.
        """
        metrics = {}
        for key, total, count, last in zip(
            self._keys, self._sums[:, i].tolist(), self._counts[:, i].tolist(), self._last[:, i].tolist(), strict=True
        ):
            if count:
                metrics[f'info/{key}'], metrics[f'info_end/{key}'] = total / count, last
        return metrics

    def _add_keys(self, info: Mapping[str, np.ndarray]) -> None:
        """Adds rows for new numbers."""
        shape = (self._num_environments,)
        new = [key for key in info if key not in self._seen and key not in (EXECUTED_ACTION, IDLE)]
        new = [key for key in new if info[key].shape == shape and info[key].dtype.kind in 'biuf']
        self._seen = self._seen.union(info)
        self._keys += new
        zeros = np.zeros((len(new), *shape))
        self._sums, self._counts = np.concatenate([self._sums, zeros]), np.concatenate([self._counts, zeros])
        self._last = np.concatenate([self._last, np.full_like(zeros, np.nan)])


Episode = Mapping[str, float]

# Values of tf_agents.trajectories.StepType.
_FIRST, _LAST = 0, 2

_RATE_MARKS = 10
_RATE_MARK_SECS = 1.0
_MAX_DRAINED = 100_000


class EpisodeMetrics(Resumable):
    """Observer of trajectories [B] that counts steps and episodes.

    Termination and a time limit both end an episode. An episode that a reset cuts off is ignored.
    One that a failure of its environment interrupts (FIRST after a step that is not LAST) is
    dropped and counted.

    The metrics of an episode of L steps with the rewards r_1 ... r_L are

      return             r_1 + ... + r_L
      length             L
      start_return       sum over t of gamma^(t - 1) r_t: the discounted return from the episode's start
      discounted_return  the mean of the discounted returns from each of its steps; compare it with a critic's values.
                         If a time limit ended the episode, it is below the returns that these
                         values predict.
      reward             the mean of its rewards
      return_<i>         the sum of the i-th reward, from 0 on, where there are several; the others are of their sum
      info/<key>         the mean, over its steps, of a number in the environment's info
      info_end/<key>     the last value of that number

    Attributes:
      episodes: the number of finished episodes.
      env_steps: the number of environment steps, without boundary rows (LAST -> FIRST) and steps
        that interrupted an episode.
      ended: the episodes that ended in the newest step, by environment; an observer after this one
        may add metrics.
      interrupted: bool [B], where a failure interrupted an episode in the newest step.
      lengths: int64 [B], the steps of the episodes that run; 1 more where none does.
    """

    _KEPT = (
        'episodes',
        'dropped_episodes',
        'env_steps',
        '_sums',
        '_weights',
        'lengths',
        '_returns',
        '_was_idle',
        '_info',
        '_newest',
    )

    def __init__(
        self,
        num_environments: int,
        buffer_size: int = 100,
        gamma: float = 1.0,
        read_info: Callable[[], Mapping[str, np.ndarray]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts at zero.

        Args:
          num_environments: B.
          buffer_size: means are over the newest max(buffer_size, B) episodes, so that all
            environments contribute.
          read_info: returns the environments' info of the newest step, see
            `types.BatchedEnvironment.info`.
        """
        self.episodes = self.dropped_episodes = self.env_steps = 0
        # Rows: return, start return, sum of the discounted returns from each step. The weights of a
        # reward in them are 1, gamma^(t - 1), and 1 + gamma + ... + gamma^(t - 1), since it counts
        # for all steps up to its own.
        self._sums = np.zeros((3, num_environments))
        self._weights = np.ones((3, num_environments))
        self._factors, self._addends = np.array([[1.0], [gamma], [gamma]]), np.array([[0.0], [0.0], [1.0]])
        self.lengths = np.zeros(num_environments, np.int64)
        self.ended: dict[int, dict[str, float]] = {}
        self.interrupted = self._none = np.zeros(num_environments, bool)
        self._returns: np.ndarray | None = None  # of each of several rewards, [B, n]
        # Whether the newest time steps belong to no episode.
        self._was_idle: np.ndarray | bool | None = None
        self._read_info, self._info = read_info, InfoMetrics(num_environments)
        self._newest: collections.deque[Episode] = collections.deque(maxlen=max(buffer_size, num_environments))
        self._undrained: collections.deque[Episode] = collections.deque(maxlen=_MAX_DRAINED)
        self._clock = clock
        self._marks = collections.deque([(clock(), 0)], maxlen=_RATE_MARKS)

    def __call__(self, trajectory: Any) -> None:
        """Adds one step of every environment.

        Args:
          trajectory: a tf_agents Trajectory of arrays [B], of which step_type, next_step_type and
            reward are read (several rewards [B, ...] are summed).
        """
        step_type, next_step_type = trajectory.step_type, trajectory.next_step_type
        first = step_type == _FIRST
        if np.count_nonzero(first):
            self._begin(first)
        reward = trajectory.reward
        if reward.ndim > 1:
            rewards = reward.reshape(len(reward), -1)
            self._returns = rewards.astype(np.float64) if self._returns is None else self._returns + rewards
            reward = rewards.sum(1)
        self._sums += self._weights * reward
        self._weights *= self._factors
        self._weights += self._addends
        self.lengths += 1  # at boundaries too, but the next row resets it
        num_steps = int(np.count_nonzero(next_step_type))  # FIRST is 0; no action leads to it
        self.env_steps += num_steps
        info = self._read_info()
        if info:
            self._info.add(info, next_step_type != _FIRST)
        if self._was_idle is None:  # what a reset returned is unknown
            self._was_idle = IDLE in info
        self.interrupted, self.ended = self._none, {}
        if num_steps < len(step_type):
            failed = (next_step_type == _FIRST) & (step_type != _LAST)
            # One that had no episode, or begins its next one, has lost none.
            self.interrupted = failed & np.logical_not(self._was_idle)
            self.dropped_episodes += int(np.count_nonzero(self.interrupted))
        self._was_idle = info.get(IDLE, False)
        ended = next_step_type == _LAST
        if np.count_nonzero(ended):
            self.ended = {i: self.current(i) for i in np.flatnonzero(ended).tolist()}
            self.episodes += len(self.ended)
            self._newest.extend(self.ended.values())
            self._undrained.extend(self.ended.values())
        if (now := self._clock()) - self._marks[-1][0] >= _RATE_MARK_SECS:
            self._marks.append((now, self.env_steps))

    def _begin(self, first: np.ndarray) -> None:
        self._sums[:, first], self._weights[:, first], self.lengths[first] = 0.0, 1.0, 0
        if self._returns is not None:
            self._returns[first] = 0.0
        self._info.begin(first)

    def current(self, i: int) -> dict[str, float]:
        """Returns the metrics of environment i's episode up to now; it has at least one step."""
        length = int(self.lengths[i])
        episode_return, start_return, sum_of_returns = self._sums[:, i].tolist()
        episode = {
            'return': episode_return,
            'length': length,
            'start_return': start_return,
            'discounted_return': sum_of_returns / length,
            'reward': episode_return / length,
            **self._info.of(i),
        }
        if self._returns is not None:
            episode |= {f'return_{k}': value for k, value in enumerate(self._returns[i].tolist())}
        return episode

    def means(self) -> dict[str, float]:
        """Returns the means over the newest episodes, 'mean_return' and so on;
        empty before the first has ended.
        """
        names = {name: None for episode in self._newest for name in episode}
        return {f'mean_{name}': self._mean(name) for name in names}

    @property
    def mean_return(self) -> float | None:
        """Mean undiscounted return of the newest episodes; None before the first has ended."""
        return self._mean('return') if self._newest else None

    @property
    def env_steps_per_sec(self) -> float:
        """Environment steps per second over about the last ten seconds."""
        then, steps = self._marks[0]
        elapsed_secs = self._clock() - then
        return (self.env_steps - steps) / elapsed_secs if elapsed_secs > 0 else 0.0

    def drain(self) -> list[Episode]:
        """Returns the episodes that ended since the last call (at most the newest 100 000)."""
        drained = list(self._undrained)
        self._undrained.clear()
        return drained

    def _mean(self, name: str) -> float:
        return float(np.mean([episode[name] for episode in self._newest if name in episode]))
