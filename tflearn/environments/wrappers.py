"""Wrapper: the base of environments that change another one;
EpisodicLife: an episode for each life of a game.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tf_agents.trajectories import time_step as ts

from tflearn.core.types import BatchedEnvironment


class Wrapper:
    """A `BatchedEnvironment` that passes everything to another one;
    subclasses override what differs.
    """

    def __init__(self, environment: BatchedEnvironment):
        """Takes over `environment`: it is closed with this."""
        self.num_environments = environment.num_environments
        self.specs = environment.specs
        self._environment = environment

    @property
    def info(self) -> Mapping[str, np.ndarray]:
        """The environment's info."""
        return self._environment.info

    @property
    def num_rebuilt(self) -> int:
        """The number of environments rebuilt so far."""
        return self._environment.num_rebuilt

    @property
    def newest_failure(self) -> str:
        """What made an environment fail last, in one line; '' if none did, or it does not say."""
        return getattr(self._environment, 'newest_failure', '')

    @property
    def num_overruns(self) -> int | None:
        """The number of steps that came late; None where no environment runs in real time, see `pacing`."""
        return getattr(self._environment, 'num_overruns', None)

    def reset(self) -> ts.TimeStep:
        """Starts new episodes everywhere. Returns time steps [B]."""
        return self._changed(self._environment.reset())

    def step(self, action: Any) -> ts.TimeStep:
        """Applies `action`. Returns time steps [B]."""
        return self._changed(self._environment.step(action))

    def _changed(self, time_step: ts.TimeStep) -> ts.TimeStep:
        """Returns the time steps [B] of both as this environment has them."""
        return time_step

    def set_progress(self, train_step: int, env_steps: int) -> None:
        """Passes the run's progress to the environment, if it takes it."""
        if setter := getattr(self._environment, 'set_progress', None):
            setter(train_step, env_steps)

    def close(self) -> None:
        """Closes the environments. A second call does nothing."""
        self._environment.close()


_FIRST, _MID, _LAST = np.int32(ts.StepType.FIRST), np.int32(ts.StepType.MID), np.int32(ts.StepType.LAST)


class EpisodicLife(Wrapper):
    """Another environment whose episodes terminate when a life is lost, while its game continues.

    The next episode starts in the same game, one step later: that step takes action 0 (no
    operation), and its reward is dropped. Only a game that is over is reset. This is the setting of
    Mnih et al. 2015 ("Human-level control through deep reinforcement learning", Nature 518,
    methods); Baselines calls it EpisodicLifeEnv.

    If the game ends in that step, the new episode is interrupted: FIRST is followed by FIRST.
    """

    def __init__(self, environment: BatchedEnvironment):
        """Takes over `environment`: it is closed with this.

        Args:
          environment: an environment whose action is one integer, of which 0 is no operation, and
            whose `info` has 'lives' [B], the lives that are left. With 0 lives the game is about to
            end.
        """
        super().__init__(environment)
        self._lives = np.zeros(self.num_environments, np.int64)
        self._lost = np.zeros(self.num_environments, bool)

    def reset(self) -> ts.TimeStep:
        """Starts new games everywhere. Returns FIRST time steps [B]."""
        self._lives, self._lost = np.zeros_like(self._lives), np.zeros_like(self._lost)
        return self._environment.reset()

    def step(self, action: Any) -> ts.TimeStep:
        """Applies `action`; continues with the next life where one was lost.
        Returns time steps [B].
        """
        begins = self._lost
        time_step = self._environment.step(np.where(begins, 0, action) if begins.any() else action)
        # There are none if the environments were rebuilt before their first info.
        lives = self._environment.info.get('lives', np.zeros_like(self._lives))
        step_type = time_step.step_type
        self._lost = (lives < self._lives) & (lives > 0) & (step_type == _MID) & ~begins
        self._lives = lives
        if not (begins.any() or self._lost.any()):
            return time_step
        return time_step._replace(
            step_type=np.select([begins, self._lost], [_FIRST, _LAST], step_type),
            reward=np.where(begins, np.float32(0), time_step.reward),
            discount=np.select([begins, self._lost], [np.float32(1), np.float32(0)], time_step.discount),
        )
