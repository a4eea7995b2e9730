"""The T-maze, the smallest task that needs memory:
a signal at the start says where to turn at the corridor's end.

Bakker 2002, "Reinforcement Learning with Long Short-Term Memory" (NIPS 14), section 4.1.
Observations, actions and rewards are the paper's, without noise. Differs from the paper: an episode
is truncated after `max_episode_steps`.

A policy without memory gets at most half of the best return: at the junction it sees the same after
either signal, so if it turns north with the probability p, it is right with p after one signal and
with 1 - p after the other.
"""

from typing import Any

import gymnasium
import numpy as np

from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import vector_env

BEST_RETURN = 4.0
NORTH, EAST, SOUTH, WEST = range(4)

_SIGNALS = {NORTH: (0.0, 1.0, 1.0), SOUTH: (1.0, 1.0, 0.0)}
_CORRIDOR, _JUNCTION = (1.0, 0.0, 1.0), (0.0, 1.0, 0.0)
_PENALTY = -0.1


@checked
def make(
    num_environments: PositiveInt,
    seed: int | None,
    length: PositiveInt = 8,
    max_episode_steps: PositiveInt | None = None,
) -> BatchedEnvironment:
    """Makes a batch of T-mazes.

    Args:
      length: steps from the start to the junction [environment steps].
      max_episode_steps: steps after which an episode is truncated; None is 5 (length + 1).

    Raises:
      ValueError: if a number is below 1.
    """
    limit = 5 * (length + 1) if max_episode_steps is None else max_episode_steps
    return vector_env.in_process(
        lambda: gymnasium.wrappers.TimeLimit(TMaze(length), max_episode_steps=limit), num_environments, seed
    )


class TMaze(gymnasium.Env):
    """A corridor from west to east with a junction at its end.

    Observation: float32 [3]: at the start (0, 1, 1) if north is right and (1, 1, 0) if south is, in
      the corridor
    (1, 0, 1), at the junction (0, 1, 0). Action: 0 north, 1 east, 2 south, 3 west. Reward: 4 for
    the right turn at the junction, -0.1 for the wrong one and for a step into a wall, else 0. A
    turn terminates the episode.
    """

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, length: int):
        """Takes the number of steps from the start to the junction."""
        self._length, self._place, self._right = length, 0, NORTH

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """See `gymnasium.Env`. Draws the right turn."""
        super().reset(seed=seed)
        self._place, self._right = 0, (NORTH, SOUTH)[self.np_random.integers(2)]
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """See `gymnasium.Env`."""
        before = self._place
        if before == self._length and action in (NORTH, SOUTH):
            return self._observation(), BEST_RETURN if action == self._right else _PENALTY, True, False, {}
        move = {EAST: 1, WEST: -1}.get(int(action), 0)
        self._place = min(max(before + move, 0), self._length)
        return self._observation(), 0.0 if self._place != before else _PENALTY, False, False, {}

    def _observation(self) -> np.ndarray:
        at_start, at_junction = self._place == 0, self._place == self._length
        kind = _SIGNALS[self._right] if at_start else _JUNCTION if at_junction else _CORRIDOR
        return np.array(kind, np.float32)
