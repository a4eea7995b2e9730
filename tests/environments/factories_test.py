"""Every environment factory conforms, or names in one line the packages to install."""

import functools
import importlib.util
import os
import sys

import pytest

from tests.environments import conformance
from tflearn.environments import atari, dm_control_env, envpool_env, gymnasium_env, pacing, partial_view
from tflearn.extensions.tasks import catch, dict_cartpole, inlining, jax_env, minatar_env, nim, t_maze

os.environ.setdefault('MUJOCO_GL', 'disable')  # there may be no display, and nothing is rendered
CARTPOLE = functools.partial(gymnasium_env.make, 'CartPole-v1', max_episode_steps=50)


def cartpole():
    from gymnasium.envs.phys2d.cartpole import CartPoleFunctional

    return CartPoleFunctional()


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
    # Few first observations, so some seeds have the same one; see their own tests.
    'catch': (None, '', catch.make, {'num_steps': 60, 'seeded': False}),
    'nim': (None, '', nim.make, {'num_steps': 60, 'seeded': False}),
    'cartpole as a dict': (None, '', dict_cartpole.make, {'num_steps': 120}),
    't-maze': (None, '', functools.partial(t_maze.make, length=3), {'num_steps': 60, 'seeded': False}),
    'inlining': (None, '', functools.partial(inlining.make, num_calls=5), {'num_steps': 40}),
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
    'minatar': (
        'minatar',
        'minatar',
        functools.partial(minatar_env.make, 'breakout'),
        {'num_steps': 60, 'seeded': False},  # a ball starts at one of two places
    ),
    'dm_control': ('dm_control', 'dm-control', CONTROL, {'num_steps': 1010}),
    'dm_control in workers': (
        'dm_control',
        'dm-control',
        functools.partial(CONTROL, vectorization='worker_processes', flatten_observations=False),
        {'num_steps': 1010},
    ),
    'envpool': ('envpool', 'envpool', functools.partial(envpool_env.make, 'CartPole-v1'), {}),
    'gymnax': ('gymnax', 'tasks', functools.partial(jax_env.make, 'gymnax/CartPole-v1'), {}),
    'functions in JAX': (
        'jax',
        'tasks',
        lambda **arguments: jax_env.from_functions(cartpole, max_episode_steps=50, **arguments),
        {},
    ),
    'envpool, continuous': (
        'envpool',
        'envpool',
        functools.partial(envpool_env.make, 'Pendulum-v1', max_episode_steps=30),
        {'num_steps': 70},
    ),
}
EXTRAS = {name: parts for name, parts in FACTORIES.items() if parts[0]}


@pytest.mark.filterwarnings('ignore::UserWarning')  # about bounds in float32, and the missing display
@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # by Box2D and its dependencies
@pytest.mark.parametrize('name', FACTORIES)
def test_conforms(name):
    package, extra, factory, arguments = FACTORIES[name]
    if package and not importlib.util.find_spec(package):
        pytest.skip(f'{package} is not installed; pip install ".[{extra}]"')
    conformance.check(factory, **arguments)


@pytest.mark.parametrize('name', EXTRAS)
def test_missing_package_error_names_the_install_command(name):
    package, extra, factory, _ = FACTORIES[name]
    if importlib.util.find_spec(package):
        pytest.skip(f'{package} is installed')
    with pytest.raises(ValueError) as raised:
        factory(num_environments=2, seed=0)
    remedy = 'run it with Python 3.12 or 3.13' if extra == 'tasks' and sys.version_info < (3, 12) else "pip install '"
    assert f'which needs {package}; need that installed; {remedy}' in str(raised.value)
    assert str(raised.value).endswith(f' (the extra {extra})')
    assert '\n' not in str(raised.value)
