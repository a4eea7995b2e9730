"""A task with two rewards: in each of four steps, 1 of the first for the action 0, or 1 of the second for 1.

Worker processes import this file, and are not to import TensorFlow with it.
"""

import gymnasium
import numpy as np
from gymnasium import spaces


class TwoRewards(gymnasium.Env):
    observation_space = spaces.Box(0.0, 4.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    reward_space = spaces.Box(0.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._steps += 1
        reward = np.array([action == 0, action == 1], np.float64)
        return np.float32([self._steps]), reward, self._steps == 4, False, {}


def make(num_environments, seed, worker_processes=False):
    """Makes the environments."""
    from tflearn.environments import vector_env

    make_all = vector_env.in_worker_processes if worker_processes else vector_env.in_process
    return make_all(TwoRewards, num_environments, seed)
