"""Catch, the smallest task of images: a ball falls, and a paddle at the bottom has to be under it.

Mnih et al. 2014, "Recurrent Models of Visual Attention" (arXiv 1406.6247, section 4.2), with the
size, actions and rewards of bsuite's (Osband et al. 2020, "Behaviour Suite for Reinforcement
Learning", arXiv 1908.03568).
"""

from typing import Annotated, Any

import gymnasium
import numpy as np

from tflearn.core.settings import PositiveInt, Range, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import vector_env


@checked
def make(
    num_environments: PositiveInt, seed: int | None, rows: Annotated[int, Range(least=2)] = 10, columns: PositiveInt = 5
) -> BatchedEnvironment:
    """Makes a batch of games. An episode has rows - 1 steps.

    Args:
      rows: the image's height [pixels].
      columns: the image's width [pixels].

    Raises:
      ValueError: if a number is too small.
    """
    return vector_env.in_process(lambda: Catch(rows, columns), num_environments, seed)


class Catch(gymnasium.Env):
    """A ball that falls by a row with each step, from a random column of the first row.

    Observation: uint8 [rows, columns, 1], 255 where the ball and the paddle are, else 0. Action: 0
      moves the paddle to
    the left, 1 leaves it, 2 moves it to the right. Reward: at the end 1 if the ball is on the
    paddle, else -1.
    """

    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, rows: int, columns: int):
        """Takes the image's height and width [pixels]."""
        self.observation_space = gymnasium.spaces.Box(0, 255, (rows, columns, 1), np.uint8)
        self._rows, self._columns = rows, columns
        self._ball, self._paddle, self._row = 0, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """See `gymnasium.Env`. Draws the ball's column."""
        super().reset(seed=seed)
        self._ball, self._paddle, self._row = int(self.np_random.integers(self._columns)), self._columns // 2, 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """See `gymnasium.Env`."""
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self._columns - 1)
        self._row += 1
        ended = self._row == self._rows - 1
        caught = 1.0 if self._ball == self._paddle else -1.0
        return self._observation(), caught if ended else 0.0, ended, False, {}

    def _observation(self) -> np.ndarray:
        image = np.zeros((self._rows, self._columns, 1), np.uint8)
        image[self._row, self._ball] = image[-1, self._paddle] = 255
        return image
