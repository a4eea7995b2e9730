"""Bit flipping: reach a state of n bits by flipping one in each step,
with a reward only at the goal.

Andrychowicz et al. 2017, "Hindsight Experience Replay" (arXiv 1707.01495), section 3.1. It is a
goal environment in gymnasium's sense: the observation is a dictionary of 'observation',
'achieved_goal' and 'desired_goal'.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import vector_env


class BitFlip(gymnasium.Env):
    """An action flips a bit. The reward is -1, and 0 for the step that reaches the goal,
    which ends the episode.

    An episode is truncated after as many steps as there are bits, with which every goal can be
    reached.
    """

    @checked
    def __init__(self, num_bits: PositiveInt):
        """
        Args:
          num_bits: the number of bits, at least 1.
        """
        self._num_bits, self._num_steps = num_bits, 0
        self.action_space = spaces.Discrete(num_bits)
        bits = spaces.MultiBinary(num_bits)
        self.observation_space = spaces.Dict(observation=bits, achieved_goal=bits, desired_goal=bits)
        self._bits = self._goal = np.zeros(num_bits, np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Draws a state and another one as the goal."""
        super().reset(seed=seed)
        self._num_steps = 0
        self._bits, change = self.np_random.integers(0, 2, (2, self._num_bits), np.int8)
        if not change.any():
            change[self.np_random.integers(self._num_bits)] = 1
        self._goal = self._bits ^ change
        return self._observe(), {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Flips the bit `action`."""
        self._bits = self._bits.copy()
        self._bits[action] ^= 1
        self._num_steps += 1
        is_reached = np.array_equal(self._bits, self._goal)
        truncated = not is_reached and self._num_steps == self._num_bits
        return self._observe(), float(is_reached) - 1.0, is_reached, truncated, {}

    def _observe(self) -> dict[str, np.ndarray]:
        return {'observation': self._bits, 'achieved_goal': self._bits, 'desired_goal': self._goal}


@checked
def make(num_environments: PositiveInt, seed: int | None, num_bits: PositiveInt = 15) -> BatchedEnvironment:
    """Makes a batch of bit flipping tasks, stepped one after the other.

    Args:
      num_bits: the number of bits, and of steps after which an episode is truncated.
    """
    return vector_env.in_process(lambda: BitFlip(num_bits), num_environments, seed)
