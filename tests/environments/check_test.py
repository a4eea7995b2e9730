"""Environments with one fault each, and the program."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import tflearn
from tests.environments.example_environments import Robot
from tests.testing import forks


class Walk(gymnasium.Env):
    """A random walk. Nothing is wrong with it."""

    observation_space = spaces.Dict({'at': spaces.Box(-5.0, 5.0, (1,)), 'goal': spaces.Discrete(3)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.goal, self.steps = self.np_random.uniform(-1.0, 1.0), int(self.np_random.integers(3)), 0
        return self.observation(), {}

    def step(self, action):
        self.at, self.steps = self.at + self.np_random.normal() + action - 0.5, self.steps + 1
        self.at = float(np.clip(self.at, -5.0, 5.0))
        return self.observation(), -abs(self.at), abs(self.at) == 5.0, self.steps == 50, {'place': self.at}

    def observation(self):
        return {'at': np.array([self.at], np.float32), 'goal': self.goal}


class Raising(Walk):
    def step(self, action):
        if self.steps == 7:
            raise ZeroDivisionError('no more')
        return super().step(action)


class SeedlessReset(Walk):
    def reset(self):
        return super().reset()


class WrongShape(Walk):
    def observation(self):
        return {**super().observation(), 'at': np.zeros(2, np.float32)}


class NotFinite(Walk):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float('nan'), *rest


class Unseeded(Walk):
    def step(self, action):
        self.at += np.random.default_rng().normal()
        return super().step(action)


class Large(Walk):
    observation_space = spaces.Dict({'at': spaces.Box(-5e3, 5e3, (1,)), 'goal': spaces.Discrete(3)})

    def observation(self):
        return {**super().observation(), 'at': np.array([1e3 * self.at], np.float32)}


class OutOfBounds(Walk):
    observation_space = spaces.Dict({'at': spaces.Box(-1.0, 1.0, (1,)), 'goal': spaces.Discrete(3)})


class Endless(Walk):
    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, False, info


class HiddenLimit(Walk):
    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, truncated, False, info


class Unrewarded(Walk):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, 0.0, *rest


class Unbounded(Walk):
    action_space = spaces.Box(-np.inf, np.inf, (2,))

    def step(self, action):
        return super().step(int(action[0] > 0))


class Image(Walk):
    observation_space = spaces.Box(0.0, 255.0, (32, 32, 3))

    def observation(self):
        return self.np_random.uniform(0, 255, (32, 32, 3)).astype(np.float32)


class ChannelsFirst(Walk):
    observation_space = spaces.Box(0, 255, (3, 32, 32), np.uint8)

    def observation(self):
        return self.np_random.integers(0, 255, (3, 32, 32)).astype(np.uint8)


def test_nothing_is_wrong():
    found = tflearn.check_environment(Walk, secs=0.05)
    assert {finding.state for finding in found} == {'ok'}
    texts = {finding.check: finding.text for finding in found}
    assert texts['observation/goal'] == 'int64 [], 0 to 2, seen 0 to 2'
    assert texts['metrics'] == 'numbers of info become metrics: place'
    assert 'of them by truncation' in texts['episodes']
    speeds = [finding.text for finding in found if finding.check == 'speed']
    assert len(speeds) == 4 and speeds[-1].startswith('the fastest here: vectorization=')


@pytest.mark.parametrize(
    ('environment', 'state', 'check', 'text'),
    [
        (Raising, 'error', 'exceptions', 'got ZeroDivisionError: no more from step() with random actions; need none'),
        (SeedlessReset, 'error', 'what it returns', 'got SeedlessReset.reset() of SeedlessReset, which takes no seed'),
        (WrongShape, 'error', 'what it returns', 'need'),
        (NotFinite, 'error', 'what it returns', 'got nan'),
        (Unseeded, 'LOOK', 'seed', 'the same seed and actions give other steps; draw from self.np_random'),
        (Large, 'LOOK', 'observation/at', 'normalize it'),
        (OutOfBounds, 'LOOK', 'observation/at', 'correct the bounds of the space'),
        (Endless, 'LOOK', 'episodes', 'none ended within 300 steps; take more, or set a time limit'),
        (HiddenLimit, 'LOOK', 'episodes', 'return truncated=True, not terminated'),
        (Unrewarded, 'LOOK', 'reward', 'always 0 with random actions'),
        (Unbounded, 'LOOK', 'action', 'without bounds: SAC, TD3 and others need bounds'),
        (Image, 'LOOK', 'observation', 'return uint8, a quarter of the memory'),
        (ChannelsFirst, 'LOOK', 'observation', 'move them to the end'),
    ],
)
def test_each_fault_is_found_and_nothing_else(environment, state, check, text):
    wrong = [each for each in tflearn.check_environment(environment, num_steps=300, secs=0) if each.state != 'ok']
    assert [(each.state, each.check) for each in wrong] == [(state, check)], wrong
    assert text in wrong[0].text


def test_a_constant_reward_is_fine_where_episodes_differ_in_length():
    found = tflearn.check_environment('CartPole-v1', num_steps=300, secs=0)
    assert {finding.state for finding in found} == {'ok'}


class Lights(gymnasium.Env):
    """An action of two numbers with three and two choices."""

    observation_space = gymnasium.spaces.MultiBinary(3)
    action_space = gymnasium.spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, 2, 3, np.int8), {}

    def step(self, action):
        on = self.np_random.integers(0, 2, 3, np.int8)
        return on, float(on[action[0]] == action[1]), bool(on.all()), False, {}


def test_each_number_has_its_own_bounds():
    found = {finding.check: finding.text for finding in tflearn.check_environment(Lights, secs=0)}
    assert found['action'] == 'int64 [2], 0 to [2, 1]'
    assert found['observation'] == 'int64 [3], 0 to 1, seen 0 to 1'


def test_a_robot_that_is_there_once_is_named_and_not_left_connected(tmp_path):
    log = tmp_path / 'log'
    (found,) = tflearn.check_environment(functools.partial(Robot, str(log)), num_steps=5, secs=0)
    assert (found.state, found.check) == ('error', 'exceptions')
    assert 'BlockingIOError' in found.text and 'of a robot, check a simulation' in found.text
    assert [line.split()[-1] for line in log.read_text().splitlines()] == ['connects', 'collides', 'closes']


def test_one_environment_for_two_copies_is_named():
    one = Walk()
    (found,) = tflearn.check_environment(lambda: one, num_steps=5, secs=0)
    assert found.state == 'error' and 'got the same environment (Walk) from two calls of its factory' in found.text


def test_what_is_no_environment():
    with pytest.raises(ValueError, match="got name='CartPole-v7'"):
        tflearn.check_environment('CartPole-v7')
    with pytest.raises(TypeError, match='got 3; need the name of an environment'):
        tflearn.check_environment(3)
    (found,) = tflearn.check_environment(functools.partial(int, 'x'))
    assert found.text.startswith('got ValueError: invalid literal') and 'from its factory; need copies' in found.text
    (found,) = tflearn.check_environment(dict)
    assert found.text == 'got an environment of type dict; need a gymnasium.Env'


@pytest.mark.parametrize(
    ('arguments', 'code', 'text'),
    [
        (['own_walk:Own'], 0, 'ok    reward'),
        (['own_walk:Own', '--strict'], 1, 'LOOK  observation'),
        (['own_walk:Broken'], 1, 'error exceptions'),
        (['no_walk:Own'], 2, "got name='no_walk:Own', whose module no_walk is not there"),
        ([], 2, 'got no argument; need ENVIRONMENT; see'),
    ],
)
def test_the_program_takes_a_class_of_the_working_directory(tmp_path, arguments, code, text):
    (tmp_path / 'own_walk.py').write_text(
        'import gymnasium\n'
        'class Own(gymnasium.ObservationWrapper):\n'
        '    def __init__(self):\n'
        "        super().__init__(gymnasium.make('CartPole-v1'))\n"
        '        self.observation_space = gymnasium.spaces.Box(-1e5, 1e5, (4,))\n'
        '    def observation(self, observation):\n'
        '        return 100 * observation\n'
        'class Broken(Own):\n'
        '    def step(self, action):\n'
        '        raise KeyError(action)\n'
    )
    ended = forks.run('scripts', 'check-env', *arguments, '--secs=0', '--steps=200', timeout=120, cwd=tmp_path)
    assert (ended.returncode, text in ended.stdout + ended.stderr) == (code, True), ended.stdout + ended.stderr
