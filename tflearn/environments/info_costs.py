"""InfoCosts: a gymnasium environment whose rewards are its own and numbers of its info, such as costs."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from tflearn.core.errors import UserValueError


class InfoCosts(gymnasium.Wrapper):
    """Returns a vector of rewards: the environment's own, then those numbers of each step's info.

    With `transforms.costs.Limited` they are costs with limits.
    """

    def __init__(self, make_one: Callable[[], gymnasium.Env], keys: Sequence[str] = ('cost',)):
        """
        Args:
          make_one: makes the environment.
          keys: the numbers' keys in its info; safety-gymnasium's wrapper for gymnasium has 'cost'.
        """
        super().__init__(make_one())
        self._keys = tuple(keys)
        self.reward_space = gymnasium.spaces.Box(-np.inf, np.inf, (1 + len(self._keys),), np.float32)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes a step. Raises ValueError if the info lacks a key."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if missing := [key for key in self._keys if key not in info]:
            raise UserValueError(
                f'got the info of a step with {", ".join(map(repr, info)) or "nothing"}; need {missing[0]!r}; change '
                'the keys of InfoCosts'
            )
        rewards = np.array([reward, *(info[key] for key in self._keys)], np.float32)
        return observation, rewards, terminated, truncated, info  # type: ignore[return-value]
