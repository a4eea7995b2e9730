"""Tasks for tests of the core: one that needs memory, one with goals, one whose observation is named numbers.

Worker processes import this file, and are not to import TensorFlow with it.
"""

import functools

import gymnasium
import numpy as np
from gymnasium import spaces


class Signal(gymnasium.Env):
    """The first observation says which of two actions is right in the last step; the others do not.

    Observation: float32 [3]: (the signal, later 1; whether it is the first; whether the last action follows).
    """

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, num_steps):
        self._num_steps = num_steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps, self._right = 0, int(self.np_random.integers(2))
        return self._observe(), {}

    def step(self, action):
        self._steps += 1
        is_last = self._steps == self._num_steps
        return self._observe(), float(is_last and action == self._right), is_last, False, {}

    def _observe(self):
        is_first = self._steps == 0
        return np.float32([self._right if is_first else 1, is_first, self._steps >= self._num_steps - 1])


class Flips(gymnasium.Env):
    """Bits of which an action flips one, until they are those of the goal, or as many steps are over as there are."""

    def __init__(self, num_bits):
        self._num_bits = num_bits
        self.action_space = spaces.Discrete(num_bits)
        bits = spaces.MultiBinary(num_bits)
        self.observation_space = spaces.Dict(observation=bits, achieved_goal=bits, desired_goal=bits)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        self._bits, self._goal = self.np_random.integers(0, 2, (2, self._num_bits), np.int8)
        return self._observe(), {}

    def step(self, action):
        self._bits = self._bits.copy()
        self._bits[action] ^= 1
        self._steps += 1
        is_reached = np.array_equal(self._bits, self._goal)
        truncated = not is_reached and self._steps == self._num_bits
        return self._observe(), float(is_reached) - 1.0, is_reached, truncated, {}

    def _observe(self):
        return {'observation': self._bits, 'achieved_goal': self._bits, 'desired_goal': self._goal}


class Sizes(gymnasium.Env):
    """Three counts, of which the first has a long tail, in each of twenty steps."""

    observation_space = spaces.Dict({name: spaces.Box(0, 10**6, (), np.int64) for name in ('bytes', 'calls', 'depth')})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action):
        self._steps += 1
        return self._observe(), 0.0, self._steps == 20, False, {}

    def _observe(self):
        found = {'bytes': self.np_random.pareto(1.0) * 10, 'calls': self.np_random.integers(9), 'depth': self._steps}
        return {name: np.array(min(value, 10**6), np.int64) for name, value in found.items()}


def _make(num_environments, seed, task, *arguments):
    from tflearn.environments import vector_env

    return vector_env.in_process(functools.partial(task, *arguments), num_environments, seed)


def make_signal(num_environments, seed, num_steps=4):
    """Makes environments that need memory."""
    return _make(num_environments, seed, Signal, num_steps)


def make_flips(num_environments, seed, num_bits):
    """Makes environments with goals."""
    return _make(num_environments, seed, Flips, num_bits)


def make_sizes(num_environments, seed):
    """Makes environments with named numbers."""
    return _make(num_environments, seed, Sizes)
