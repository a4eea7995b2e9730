"""Environments of structured observations and actions, by name. One that is given an illegal action is rebuilt.

Worker processes import this file, and are not to import TensorFlow with it.
"""

import gymnasium
import numpy as np
from gymnasium import spaces

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
MATRIX = spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
IMAGE = spaces.Box(0, 255, (8, 8, 1), np.uint8)
FLOAT_IMAGE = spaces.Box(0.0, 1.0, (5, 4, 2), np.float32)
NODES = spaces.Box(-1.0, 1.0, (4, 2), np.float32)
CATEGORY, CATEGORIES = spaces.Discrete(5, start=2), spaces.MultiDiscrete([2, 3])
CHOICE, CONTINUOUS = spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,), np.float32)

EPISODE_STEPS = 4

# Observation, and action where that is not one choice or one vector.
TASKS = {
    'dict of vectors': (spaces.Dict(a=VECTOR, b=MATRIX), None),
    'picture and vector': (spaces.Dict(camera=IMAGE, depth=FLOAT_IMAGE, joints=VECTOR), None),
    'categories': (spaces.Dict(kind=CATEGORY, parts=CATEGORIES, flags=spaces.MultiBinary(4)), None),
    'tuple': (spaces.Tuple((VECTOR, CATEGORY)), None),
    'nested dict': (spaces.Dict(robot=spaces.Dict(arm=VECTOR, tools=spaces.Tuple((CATEGORY, IMAGE)))), None),
    'set of nodes': (spaces.Dict(graph=spaces.Dict(nodes=NODES, present=spaces.MultiBinary(4)), a=VECTOR), None),
    'multi-discrete': (spaces.Dict(a=VECTOR), CATEGORIES),
    'masked discrete': (spaces.Dict(a=VECTOR, mask=spaces.MultiBinary(3)), CHOICE),
    'masked multi-discrete': (spaces.Dict(a=VECTOR, mask=spaces.MultiBinary(5)), CATEGORIES),
    'nested action': (VECTOR, spaces.Tuple((CHOICE, spaces.Dict(move=CONTINUOUS, kinds=CATEGORIES)))),
}


class Random(gymnasium.Env):
    """Episodes of four random observations, and a reward of 1 for a legal action; any other is an error.

    In the last observation of an episode no action is legal.
    """

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        first_choices = [0] if isinstance(self.action_space, spaces.Discrete) else [0, 2]
        assert self._mask is None or self._mask[np.add(action, first_choices)].all(), (self._mask, action)
        self._steps += 1
        return self._observe(), 1.0, self._steps == EPISODE_STEPS, False, {}

    def _observe(self):
        """Returns an observation; each number of the action has a legal choice, unless the episode has ended."""
        observation, self._mask = self.observation_space.sample(), None
        if isinstance(observation, dict) and 'mask' in observation:
            self._mask = observation['mask']
            self._mask[[1, -1]] = 1
            self._mask *= self._steps < EPISODE_STEPS
        return observation


def make_environment(task, num_environments=2, seed=0, continuous=False):
    """Makes environments of a task; `continuous` has a vector as the action where the task has none of its own."""
    from tflearn.environments import vector_env

    observation, action = TASKS[task]
    action = action or (CONTINUOUS if continuous else CHOICE)
    return vector_env.in_process(lambda: Random(observation, action), num_environments, seed)
