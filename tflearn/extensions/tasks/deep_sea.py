"""Deep sea, the smallest task that needs exploration over many steps:
only one of 2^n ways leads to the treasure.

Osband et al. 2020, "Behaviour Suite for Reinforcement Learning" (arXiv 1908.03568), appendix A; the
deterministic one. A diver starts at the top left of n x n cells and sinks a row per step, to the
left or to the right. Which action moves to the right is drawn for each cell, once for the task, so
a policy that repeats an action comes nowhere. Each step to the right costs a little, so what is
learned before the treasure was found leads away from it.

Differs from the paper: the mapping of actions is the same for each environment and seed,
`MAPPING_SEED`.
"""

from typing import Any

import gymnasium
import numpy as np

from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import vector_env

BEST_RETURN = 0.99
MAPPING_SEED = 42

_COST = 0.01  # of n steps to the right


@checked
def make(num_environments: PositiveInt, seed: int | None, size: PositiveInt = 15) -> BatchedEnvironment:
    """Makes a batch of deep seas, stepped one after the other.

    Args:
      seed: environment i is seeded with seed + i; nothing in the task is random.
      size: the numbers of rows and columns, and of steps of an episode [environment steps].

    Raises:
      ValueError: if a number is below 1.
    """
    return vector_env.in_process(lambda: DeepSea(size), num_environments, seed)


class DeepSea(gymnasium.Env):
    """A square of cells with a treasure at the bottom right.

    Observation: float32 [n^2], 1 at the diver's cell, row by row; all 0 at the end. Action: 0 or 1.
      Reward: 1 for a
    step to the right from the last row's last cell, minus 0.01 / n for each step to the right.
    Terminates after n steps.
    """

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size: int):
        """Takes the number of rows and columns."""
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (size**2,), np.float32)
        # The action to the right, [n, n].
        self.right = np.random.default_rng(MAPPING_SEED).integers(0, 2, (size, size))
        self._size, self._row, self._column = size, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """See `gymnasium.Env`."""
        super().reset(seed=seed)
        self._row = self._column = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """See `gymnasium.Env`."""
        last, reward = self._size - 1, 0.0
        if action == self.right[self._row, self._column]:
            reward = float(self._row == self._column == last) - _COST / self._size
            self._column = min(self._column + 1, last)
        else:
            self._column = max(self._column - 1, 0)
        self._row += 1
        return self._observation(), reward, self._row == self._size, False, {}

    def _observation(self) -> np.ndarray:
        cells = np.zeros((self._size, self._size), np.float32)
        cells[self._row : self._row + 1, self._column] = 1.0
        return cells.ravel()
