"""Every environment factory conforms, or names in one line the packages to install."""

import functools
import os

import pytest

from tests.environments import conformance
from tflearn.environments import atari, dm_control_env, envpool_env, gymnasium_env, pacing, partial_view

os.environ.setdefault('MUJOCO_GL', 'disable')  # there may be no display, and nothing is rendered
CARTPOLE = functools.partial(gymnasium_env.make, 'CartPole-v1', max_episode_steps=50)


CONTROL = functools.partial(dm_control_env.make, 'ball_in_cup', 'catch')

# Package (None: always installed), extra, factory, arguments of the check.
FACTORIES = {
    'gymnasium in process': (None, '', CARTPOLE, {'num_steps': 120}),
    'gymnasium native': (None, '', functools.partial(CARTPOLE, vectorization='native'), {'own_seeds': False}),
    'gymnasium in workers': (None, '', functools.partial(CARTPOLE, vectorization='worker_processes'), {}),
    'gymnasium, continuous': (
        None,
        '',
        functools.partial(gymnasium_env.make, 'Pendulum-v1', max_episode_steps=30),
        {'num_steps': 70},
    ),
    'paced': (None, '', functools.partial(pacing.make, make_environment=CARTPOLE, unroll_step_interval_secs=1e-4), {}),
    'in part': (None, '', functools.partial(partial_view.make, make_environment=CARTPOLE, visible=(0, 2)), {}),
    'mujoco': ('mujoco', 'mujoco', functools.partial(gymnasium_env.make, 'HalfCheetah-v5', max_episode_steps=40), {}),
    'lunar lander': ('Box2D', 'box2d', functools.partial(gymnasium_env.make, 'LunarLander-v3'), {}),
    'atari': (
        'ale_py',
        'atari',
        functools.partial(atari.make, 'breakout', max_episode_steps=60),
        {'num_steps': 150, 'seeded': False},  # games start with the same screen; see atari_test
    ),
    'atari by life': (
        'ale_py',
        'atari',
        functools.partial(atari.make, 'breakout', end_with_life=True),
        {'num_steps': 150, 'seeded': False},
    ),
    'dm_control': ('dm_control', 'dm-control', CONTROL, {'num_steps': 1010}),
    'dm_control in workers': (
        'dm_control',
        'dm-control',
        functools.partial(CONTROL, vectorization='worker_processes', flatten_observations=False),
        {'num_steps': 1010},
    ),
    'envpool': ('envpool', 'envpool', functools.partial(envpool_env.make, 'CartPole-v1'), {}),
    'envpool, continuous': (
        'envpool',
        'envpool',
        functools.partial(envpool_env.make, 'Pendulum-v1', max_episode_steps=30),
        {'num_steps': 70},
    ),
}


@pytest.mark.filterwarnings('ignore::UserWarning')  # about bounds in float32, and the missing display
@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # by Box2D and its dependencies
@pytest.mark.parametrize('name', FACTORIES)
def test_conforms(name):
    conformance.check_installed(*FACTORIES[name])


@pytest.mark.parametrize('name', [name for name, parts in FACTORIES.items() if parts[0]])
def test_missing_package_error_names_the_install_command(name):
    package, extra, factory, _ = FACTORIES[name]
    conformance.check_missing_package(package, extra, factory, remedy="pip install '")
