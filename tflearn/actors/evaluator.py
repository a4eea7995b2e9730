"""Evaluator: measures a policy over complete episodes:
returns, lengths, and numbers of the info.
"""

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn.actors.episode_metrics import Episode, EpisodeMetrics
from tflearn.actors.episode_recorder import EpisodeRecorder, OnEpisode
from tflearn.core.errors import LoggedError
from tflearn.core.settings import PositiveFloat, PositiveInt, checked
from tflearn.core.types import BatchedEnvironment, EvaluationPolicy, waits_for_episodes
from tflearn.core.waiting import LOG_EVERY_SECS, Stopped

MAX_STEPS_PER_EPISODE = 100_000
MAX_SECS = 3600.0  # of an evaluation

_MAX_DROPPED_IN_A_ROW = 10
_REPORT_EVERY_SECS = 0.5
# An environment may have no end if no episode has ended after so long, or one takes so many steps.
_WARN_SECS, WARN_STEPS = 30.0, 10_000

_DISCOUNTED = ('start_return', 'discounted_return')


def _row(before: ts.TimeStep, action: Any, after: ts.TimeStep) -> trajectory.Trajectory:
    """Returns the row of a step, as an actor writes it."""
    return trajectory.Trajectory(
        before.step_type, before.observation, action, (), after.step_type, after.reward, after.discount
    )


@dataclasses.dataclass(frozen=True)
class EpisodeStatistics:
    """The episodes of one evaluation.

    Attributes:
      episodes: the metrics of each episode, see `EpisodeMetrics`; grouped by environment, oldest
        first.
      dropped_episodes: the number of episodes that a failure interrupted; others replaced them.
      incomplete: why these are not all episodes, or not complete ones; '' if they are.
    """

    episodes: tuple[Episode, ...]
    dropped_episodes: int = 0
    incomplete: str = ''

    @property
    def num_episodes(self) -> int:
        return len(self.episodes)

    @property
    def returns(self) -> tuple[float, ...]:
        """The undiscounted return of each episode; of the sum of several rewards."""
        return tuple(episode['return'] for episode in self.episodes)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The steps of each episode."""
        return tuple(int(episode['length']) for episode in self.episodes)

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
    def means(self) -> dict[str, float]:
        """The mean of each metric over the episodes that have it;
        an evaluation does not discount.
        """
        names = {name: None for episode in self.episodes for name in episode if name not in _DISCOUNTED}
        return {name: float(np.mean([each[name] for each in self.episodes if name in each])) for name in names}

    @property
    def mean_return_interval(self) -> tuple[float, float]:
        """The mean's 95% confidence interval by Student's t distribution;
        unbounded for a single episode.
        """
        if self.num_episodes == 1:
            return -math.inf, math.inf
        radius = _t_975(self.num_episodes - 1) * self.std_return / math.sqrt(self.num_episodes)
        return self.mean_return - radius, self.mean_return + radius

    def as_json(self) -> dict[str, Any]:
        """Returns what a run records of them, as JSON values."""
        low, high = self.mean_return_interval
        return {
            'mean_return': self.mean_return,
            'num_episodes': self.num_episodes,
            'returns': list(self.returns),
            'mean_return_interval': [low, high] if math.isfinite(low) else None,
            'mean_length': self.mean_length,
            'metrics': {name: mean for name, mean in self.means.items() if name not in ('return', 'length')},
            'dropped_episodes': self.dropped_episodes,
        }


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far an evaluation is.

    Attributes:
      episodes: the episodes that have ended.
      num_episodes: those that it is to have.
      steps: the environment steps so far.
      secs_left: the seconds that it will take, by the lengths of the episodes so far; before the
        first has ended, those until a limit ends it. None before the first step.
      waits: whether it waits for episodes, such as those of external simulators, and there are
        none.
    """

    episodes: int
    num_episodes: int
    steps: int
    secs_left: float | None
    waits: bool = False

    def __str__(self) -> str:
        about = 'about' if self.episodes else 'at most'
        left = '' if self.secs_left is None else f', {about} {self.secs_left:.0f} s left'
        return f'{self.episodes} of {self.num_episodes} episodes, {self.steps:,} steps{left}'


def _t_975(dof: int) -> float:
    """Returns the 97.5% quantile of Student's t distribution with `dof` degrees of freedom,
    to about 1%.
    """
    if dof < 3:  # the expansion below is inaccurate there
        return (12.706, 4.303)[dof - 1]
    z = 1.959964
    # Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5: to order 1 / dof^3.
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / dof + second / dof**2 + third / dof**3


class Evaluator:
    """Plays complete episodes of a policy in a batch of environments.

    The number of episodes of each environment is fixed: num_episodes // B, and one more in the
    first num_episodes % B. (To take the first ones that end would favour short episodes.) An
    episode that a failure interrupts (FIRST after a time step that was not LAST) does not count,
    and another one is played.

    Each evaluation ends. An episode that does not end within `max_steps_per_episode` counts with
    these steps, and its environment plays no other one. After `max_secs` the complete episodes
    count; if there is none, those that run do.
    """

    @checked
    def __init__(
        self,
        environment: BatchedEnvironment,
        num_episodes: PositiveInt = 20,
        max_steps_per_episode: PositiveInt = MAX_STEPS_PER_EPISODE,
        max_secs: PositiveFloat = MAX_SECS,
        report: Callable[[Progress], None] = lambda progress: None,
        on_episode: OnEpisode | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Plays nothing yet.

        Args:
          num_episodes: the number of episodes of an evaluation; best a multiple of the number of
            environments.
          max_steps_per_episode: the longest episode.
          max_secs: the longest evaluation [s].
          report: called with the progress at the beginning, and twice a second unless a step takes
            longer.
          on_episode: called with each episode that ends.
          clock: returns the time [s].

        Raises:
          ValueError: if a number is below 1.
        """
        self._environment = environment
        self._max_steps, self._max_secs = max_steps_per_episode, max_secs
        self._report, self._on_episode, self._clock = report, on_episode, clock
        share, rest = divmod(num_episodes, environment.num_environments)
        self._quotas = np.full(environment.num_environments, share)
        self._quotas[:rest] += 1
        self._has_warned = False

    def run(self, policy: EvaluationPolicy, stop: threading.Event | None = None) -> EpisodeStatistics:
        """Resets the environments and plays new episodes.

        Raises:
          RuntimeError: if too many episodes in a row of one environment are interrupted.
          Stopped: when `stop` was set.
        """
        environment, size = self._environment, len(self._quotas)
        metrics = EpisodeMetrics(size, read_info=lambda: {**environment.info, **getattr(policy, 'info', {})})
        played = _Played(self._quotas, metrics)
        begun = self._clock()
        next_report, next_log = begun, begun + LOG_EVERY_SECS
        self._report(played.progress(0.0, self._max_secs))  # a reset may take long
        time_step = environment.reset()
        recorder = self._on_episode and EpisodeRecorder(metrics, size, 'evaluate', self._on_episode, lambda: time_step)
        policy_state = policy.initial_state(size)
        while played.missing.any():
            if stop is not None and stop.is_set():
                raise Stopped(f'stopped with {played.missing.sum()} of {self._quotas.sum()} episodes still to play')
            action, policy_state = policy.action(time_step, policy_state)
            before, time_step = time_step, environment.step(action)
            row = _row(before, action, time_step)
            metrics(row)
            # These count.
            metrics.ended = {i: episode for i, episode in metrics.ended.items() if played.missing[i]}
            if recorder:
                recorder(row)
            played.add(time_step.step_type, getattr(environment, 'newest_failure', ''))
            played.cut(played.running >= self._max_steps)
            now = self._clock()
            if now - begun >= self._max_secs and played.out_of_time():
                break
            if now >= next_report:
                next_report = now + _REPORT_EVERY_SECS
                secs = now - begun
                steps_left = self._max_steps - int(played.running.max())
                progress = played.progress(secs, min(self._max_secs - secs, steps_left * secs / played.num_steps))
                self._report(dataclasses.replace(progress, waits=waits_for_episodes(environment.info)))
                self._warn(played, secs)
                if now >= next_log:
                    next_log = now + LOG_EVERY_SECS
                    logging.info('evaluation: %s', progress)
        return self._statistics(played)

    def _warn(self, played: '_Played', secs: float) -> None:
        """Warns of an evaluation that may have no end."""
        longest = int(played.running.max())
        is_late = longest and not played.num_episodes and secs >= _WARN_SECS
        if self._has_warned or not (is_late or longest >= WARN_STEPS):
            return
        self._has_warned = True
        logging.warning(
            'an episode of the evaluation has not ended after %d steps (%.0f s); it is cut after '
            "max_steps_per_episode=%d steps, the evaluation after max_secs=%g; set the environment's max_episode_steps "
            'if it has no end of its own',
            longest, secs, self._max_steps, self._max_secs,
        )  # fmt: skip

    def _statistics(self, played: '_Played') -> EpisodeStatistics:
        wanted, num_cut = int(self._quotas.sum()), played.num_cut
        reasons = []
        if played.is_out_of_time:
            reasons.append(f'{self._max_secs:g} s (max_secs) were over')
        if num_cut:
            limit = '' if played.is_out_of_time else f' within {self._max_steps} steps (max_steps_per_episode)'
            reasons.append(f'{num_cut} of {wanted} episodes did not end{limit}')
        if played.num_unplayed:
            reasons.append(f'{played.num_unplayed} of {wanted} were not played to their end')
        if reasons:
            logging.warning("the evaluation is incomplete: %s; set the environment's max_episode_steps, or raise the "
                            'limits', ', '.join(reasons))  # fmt: skip
        return EpisodeStatistics(played.all(), played.dropped, ', '.join(reasons))


def check_dropped(in_a_row: np.ndarray, newest_failure: str) -> None:
    """Raises RuntimeError if too many episodes in a row of one environment were interrupted.

    Args:
      in_a_row: int [B].
      newest_failure: what made an environment fail last, in one line; '' if that is not known.
    """
    if in_a_row.max() > _MAX_DROPPED_IN_A_ROW:
        cause = f': {newest_failure}' if newest_failure else ' (which is in the log)'
        raise LoggedError(
            f'got {in_a_row.max()} interrupted episodes in a row of environment {in_a_row.argmax()}; need complete '
            f'ones; fix the cause{cause}'
        )


class _Played:
    """The episodes of an evaluation that goes on.

    Attributes:
      missing: int [B], the episodes that each environment still has to play.
      running: int [B], the steps of each episode that runs and counts; 0 where there is none.
      num_steps: the steps of all environments together.
      dropped: the number of interrupted episodes.
      num_episodes: the number of episodes that have ended.
      num_cut: the number of those that a limit has ended.
      num_unplayed: the number of episodes that a limit has left out.
      is_out_of_time: whether a limit of time has ended the evaluation.
    """

    def __init__(self, quotas: np.ndarray, metrics: EpisodeMetrics):
        self.missing, self.running = quotas.copy(), np.zeros(len(quotas), np.int64)
        self.num_steps = self.dropped = self.num_episodes = self.num_cut = self.num_unplayed = 0
        self.is_out_of_time = False
        self._metrics, self._wanted = metrics, int(quotas.sum())
        self._dropped_in_a_row = np.zeros(len(quotas), np.int64)
        self._episodes: list[list[Episode]] = [[] for _ in quotas]
        self._steps = 0  # of the episodes that have ended

    def add(self, step_type: np.ndarray, newest_failure: str) -> None:
        """Adds a step of all environments, which the metrics have got.

        Args:
          step_type: int [B].
          newest_failure: what made an environment fail last, in one line; '' if that is not known.

        Raises:
          RuntimeError: if too many episodes in a row are interrupted.
        """
        self.num_steps += 1
        for i, episode in self._metrics.ended.items():
            self._dropped_in_a_row[i] = 0
            self._take(i, episode)
        if self._metrics.interrupted.any():
            interrupted = self._metrics.interrupted & (self.missing > 0)
            self.dropped += int(np.count_nonzero(interrupted))
            self._dropped_in_a_row += interrupted
            check_dropped(self._dropped_in_a_row, newest_failure)
        self.running = np.where((step_type == ts.StepType.MID) & (self.missing > 0), self._metrics.lengths, 0)

    def cut(self, at: np.ndarray) -> None:
        """Ends the episodes that run in the environments `at`, bool [B],
        which play no other ones.
        """
        for i in np.flatnonzero(at):
            self._take(i, self._metrics.current(i))
            self.num_cut += 1
            self.num_unplayed += int(self.missing[i])
            self.missing[i] = self.running[i] = 0

    def out_of_time(self) -> bool:
        """Ends the evaluation. Returns False if there is no step to judge by: it then goes on."""
        if not self.num_episodes and not self.running.any():
            return False
        self.is_out_of_time = True
        if not self.num_episodes:
            self.cut(self.running > 0)
        self.num_unplayed += int(self.missing.sum())
        return True

    def progress(self, secs: float, limit_secs: float) -> Progress:
        """Returns the progress after so many seconds;
        the limits end the evaluation in `limit_secs`.
        """
        secs_left = max(0.0, limit_secs) if self.num_steps else None
        if self.num_episodes:
            mean_length = self._steps / self.num_episodes
            # An episode that is longer than the others goes on for an unknown time.
            left = np.maximum(self.missing * mean_length - self.running, self.missing > 0).max()
            secs_left = float(left) * secs / self.num_steps
        return Progress(self.num_episodes, self._wanted, self._metrics.env_steps, secs_left)

    def all(self) -> tuple[Episode, ...]:
        return tuple(episode for group in self._episodes for episode in group)

    def _take(self, i: int, episode: Episode) -> None:
        self._episodes[i].append(episode)
        self.missing[i] -= 1
        self.num_episodes += 1
        self._steps += int(episode['length'])
