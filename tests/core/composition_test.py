"""What environments are made of, as the synchronous job compares it with its checkpoint."""

import functools
import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from tests.environments.example_environments import Rover, TwoStates
from tflearn.core.composition import composition, difference
from tflearn.environments import gymnasium_env, vector_env


class Level(gymnasium.Env):
    """Environments that differ in what they keep of their arguments."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, level=1, speeds=(1.0, 2.0), places=None, **more):
        self.level, self.speeds, self.places, self.more = level, np.array(speeds), places, more


class Drawn(Level):
    """Draws its first state when it is made, as many do by a first reset."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.state = self.np_random.uniform(size=4)
        self.numbers = np.random.default_rng()


class Harder(gymnasium.Wrapper):
    def __init__(self, environment, by=1):
        super().__init__(environment)
        self.by = by


def made_of(make, seed=0):
    environment = make(num_environments=2, seed=seed)
    try:
        return environment.made_of()
    finally:
        environment.close()


def of_one(make_one):
    return functools.partial(vector_env.in_process, make_one)


def named(name='Pendulum-v1', **arguments):
    return functools.partial(gymnasium_env.make, name, **arguments)


class Halved(vector_env.VectorEnvironment):
    """A batch of a class of its own."""


@pytest.mark.parametrize(
    ('one', 'other'),
    [
        (of_one(Rover), of_one(lambda: Rover())),
        (of_one(Drawn), of_one(Drawn)),
        (of_one(lambda: Harder(Level(3))), of_one(lambda: Harder(Level(level=3), by=1))),
        (named('CartPole-v1'), named('CartPole-v1')),
        (named(max_episode_steps=200), named()),
    ],
    ids=['factory', 'drawn', 'wrapper', 'native', 'default'],
)
def test_environments_that_are_made_alike(one, other):
    assert difference(made_of(one, seed=1), made_of(other, seed=2)) is None


@pytest.mark.parametrize(
    ('one', 'other', 'text'),
    [
        (of_one(Level), of_one(lambda: Level(2)), '.level: 1 -> 2'),
        (of_one(Level), of_one(lambda: Level('hard')), ".level: 1 -> 'hard'"),
        (of_one(Level), of_one(lambda: Level(speeds=(1.0, 2.5))), '.speeds: float64[2] [1.0, 2.0] -> float64[2] [1.'),
        (of_one(Level), of_one(lambda: Level(speeds=range(99))), '.speeds: float64[2] '),
        (of_one(Level), of_one(lambda: Level(places={'a': [{1, 2}]})), '.places: None -> '),
        (of_one(Level), of_one(lambda: Level(wind=0.5)), ".more['wind']: none -> 0.5"),
        (of_one(Drawn), of_one(lambda: Drawn(level=2)), '.level: 1 -> 2'),
        (of_one(Level), of_one(Drawn), 'class: tests.core.composition_test.Level -> tests.core.composition_test.Drawn'),
        (of_one(Level), of_one(lambda: Harder(Level())), 'Level -> tests.core.composition_test.Harder'),
        (of_one(lambda: Harder(Level())), of_one(lambda: Harder(Level(), by=3)), '.by: 1 -> 3'),
        (of_one(lambda: Harder(Level())), of_one(lambda: Harder(Level(4))), '.env.level: 1 -> 4'),
        (of_one(TwoStates), of_one(Rover), 'example_environments.TwoStates -> '),
        (named(max_episode_steps=5), named(max_episode_steps=50), '_max_episode_steps: 5 -> 50'),
        (named(), named(kwargs={'g': 9.0}), '.g: 10.0 -> 9.0'),
        (named(action_repeat=2), named(action_repeat=3), '_num_repeats: 2 -> 3'),
        (named(), named(action_repeat=2), 'class: '),
        (named(reset_options={'x_init': 1.0}), named(reset_options={'x_init': 2.0}), "['x_init']: 1.0 -> 2.0"),
        (named(), named(vectorization='worker_processes'), 'vectorization: SyncVectorEnv -> WorkerVectorEnv'),
        (named('CartPole-v1'), named('CartPole-v1', max_episode_steps=9), 'vectorization: NativeVectorEnv -> Sync'),
        (
            of_one(Level),
            lambda num_environments, seed: Halved(of_one(Level)(num_environments, seed)._vector_env, seed),
            'batch: VectorEnvironment -> Halved',
        ),
    ],
)
def test_what_differs_is_named(one, other, text):
    assert text in difference(made_of(one), made_of(other))


def test_copies_of_several_classes():
    mixed, plain = [Level(), Harder(Level())], [Level(), Level()]
    assert 'Harder' in difference(composition(plain), composition(mixed))
    assert difference(composition(mixed), composition([Level(), Harder(Level())])) is None


def test_what_holds_itself_much_or_no_parts_at_all_has_an_end():
    first, second = Level(places=[[object()] * 5]), Level(places=(i for i in range(3)))
    first.more, second.more = {'self': first, 'many': [(i, [i]) for i in range(100_000)]}, {'file': sys.stdin}
    assert '.places: list -> generator' in difference(composition([first]), composition([second]))
    assert len(composition([first])) < 20_000


def test_is_the_same_in_every_process():
    program = """
import gymnasium
from tflearn.core import composition
made = gymnasium.make('CartPole-v1')
made.names, made.kinds = {'a', 'b', 'c', 'd'}, {int, str, float}
print(sorted(composition.composition([made]).items()))
"""
    answers = {
        subprocess.run(
            [sys.executable, '-c', program],
            env={**os.environ, 'PYTHONHASHSEED': str(seed)},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in (1, 2)
    }
    assert len(answers) == 1 and b'CartPoleEnv' in answers.pop()
