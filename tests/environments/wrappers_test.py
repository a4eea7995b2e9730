import functools

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.environments import conformance
from tflearn.environments import vector_env, wrappers

FIRST, MID, LAST = conformance.FIRST, conformance.MID, conformance.LAST


class Game(gymnasium.Env):
    """Three lives; action 1 loses one, and each reward is 1. The observation counts the steps of the game."""

    observation_space = spaces.Box(0.0, np.inf, (), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, max_steps=1000):
        self._max_steps = max_steps
        self._steps = self._lives = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps, self._lives = 0, 3
        return np.float32(0), {'lives': 3}

    def step(self, action):
        if not self.action_space.contains(action) or not self._lives:
            raise ValueError(f'got action {action!r} with {self._lives} lives; need one of {self.action_space}')
        self._steps += 1
        self._lives -= int(action)
        truncated = self._steps == self._max_steps
        return np.float32(self._steps), 1.0, self._lives == 0, truncated, {'lives': self._lives}


def _make(num_environments, seed, **kwargs):
    return wrappers.EpisodicLife(vector_env.in_process(functools.partial(Game, **kwargs), num_environments, seed))


def _rows(environment, actions):
    """Resets, and returns (step type, reward, discount, observation) of each time step of the first environment."""
    time_steps = [environment.reset()] + [environment.step(np.array(action)) for action in actions]
    environment.close()
    return [tuple(float(leaf[0]) for leaf in time_step) for time_step in time_steps]


def test_episodic_life_conforms():
    conformance.check(_make, num_steps=60, seeded=False)


def test_the_game_goes_on_after_a_lost_life():
    # Environment 1 never loses a life. An action at the start of an episode is replaced by action 0.
    actions = [[0, 0], [1, 0], [1, 0], [1, 0], [0, 0], [1, 0], [1, 0], [0, 0], [1, 0]]
    assert _rows(_make(2, seed=0), actions) == [
        (FIRST, 0, 1, 0),
        (MID, 1, 1, 1),
        (LAST, 1, 0, 2),
        (FIRST, 0, 1, 3),
        (LAST, 1, 0, 4),
        (FIRST, 0, 1, 5),
        (LAST, 1, 0, 6),  # the last life: the game is over
        (FIRST, 0, 1, 0),
        (MID, 1, 1, 1),
        (LAST, 1, 0, 2),
    ]


def test_environments_that_lose_no_life_continue():
    environment = _make(2, seed=0)
    environment.reset()
    time_steps = [environment.step(np.array(action)) for action in ([0, 0], [1, 0], [0, 0])]
    environment.close()
    assert [float(time_step.observation[1]) for time_step in time_steps] == [1, 2, 3]
    assert [int(time_step.step_type[1]) for time_step in time_steps] == [MID] * 3
    assert [float(time_step.reward[1]) for time_step in time_steps] == [1] * 3


def test_a_game_that_ends_where_an_episode_begins():
    assert _rows(_make(1, seed=0, max_steps=3), [[0], [1], [0], [0], [0]]) == [
        (FIRST, 0, 1, 0),
        (MID, 1, 1, 1),
        (LAST, 1, 0, 2),
        (FIRST, 0, 1, 3),  # interrupted
        (FIRST, 0, 1, 0),
        (MID, 1, 1, 1),
    ]


def test_a_reset_begins_another_game():
    environment = _make(1, seed=0)
    environment.reset()
    for action in ([0], [1]):
        assert environment.step(np.array(action)).step_type != FIRST
    assert environment.reset().step_type == FIRST
    time_step = environment.step(np.array([0]))
    environment.close()
    assert (time_step.step_type, time_step.observation) == (MID, 1)
