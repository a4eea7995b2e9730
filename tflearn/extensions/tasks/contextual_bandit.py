"""A contextual bandit whose best arm is known:
the mean reward of each arm is linear in the context.

The environments of all seeds have the same arms, so that a policy of one can be evaluated in
another. See Li et al. 2010 (arXiv 1003.0146), section 2.1, for the problem and the regret.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tflearn.core.settings import NonNegativeFloat, PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import vector_env


class ContextualBandit(gymnasium.Env):
    """Each episode is one step: a context, an arm, and its reward.

    Observation: the context, float32 [num_features], a random vector of length 1. Action: the arm.
      Reward: its mean,
    in [-1, 1], and normal noise. Info: `regret`, the highest mean of any arm less the chosen one's,
    which is 0 for the best arm; `is_best`, 1 for it, else 0.
    """

    def __init__(self, num_arms: int, num_features: int, noise: float):
        """Takes the sizes and the noise's standard deviation."""
        arms = np.random.default_rng(0).normal(size=(num_arms, num_features))
        self._arms, self._noise = arms / np.linalg.norm(arms, axis=1, keepdims=True), noise
        self.action_space = spaces.Discrete(num_arms)
        self.observation_space = spaces.Box(-1.0, 1.0, (num_features,), np.float32)
        self._context = np.zeros(num_features)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Draws a context."""
        super().reset(seed=seed)
        drawn = self.np_random.normal(size=self._context.shape)
        self._context = drawn / np.linalg.norm(drawn)
        return self._context.astype(np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Returns the reward of the arm; the episode ends."""
        means = self._arms @ self._context
        regret = float(means.max() - means[action])
        reward = float(means[action] + self._noise * self.np_random.normal())
        return self._context.astype(np.float32), reward, True, False, {'regret': regret, 'is_best': float(regret == 0)}


@checked
def make(
    num_environments: PositiveInt,
    seed: int | None,
    num_arms: PositiveInt = 10,
    num_features: PositiveInt = 8,
    noise: NonNegativeFloat = 0.1,
) -> BatchedEnvironment:
    """Makes a batch of bandits with the same arms.

    Args:
      num_arms: the number of arms.
      num_features: the numbers of a context.
      noise: the standard deviation of the rewards' noise.

    Raises:
      ValueError: if there is no environment, arm or feature, or the noise is negative.
    """
    return vector_env.in_process(lambda: ContextualBandit(num_arms, num_features, noise), num_environments, seed)
