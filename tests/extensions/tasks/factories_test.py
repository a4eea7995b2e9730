"""Every packaged task conforms, or names in one line the packages to install."""

import functools
import sys

import pytest

from tests.environments import conformance
from tflearn.extensions.tasks import catch, dict_cartpole, inlining, jax_env, minatar_env, nim, t_maze


def cartpole():
    from gymnasium.envs.phys2d.cartpole import CartPoleFunctional

    return CartPoleFunctional()


# Package (None: always installed), extra, factory, arguments of the check.
FACTORIES = {
    # Few first observations, so some seeds have the same one; see their own tests.
    'catch': (None, '', catch.make, {'num_steps': 60, 'seeded': False}),
    'nim': (None, '', nim.make, {'num_steps': 60, 'seeded': False}),
    'cartpole as a dict': (None, '', dict_cartpole.make, {'num_steps': 120}),
    't-maze': (None, '', functools.partial(t_maze.make, length=3), {'num_steps': 60, 'seeded': False}),
    'inlining': (None, '', functools.partial(inlining.make, num_calls=5), {'num_steps': 40}),
    'minatar': (
        'minatar',
        'minatar',
        functools.partial(minatar_env.make, 'breakout'),
        {'num_steps': 60, 'seeded': False},  # a ball starts at one of two places
    ),
    'gymnax': ('gymnax', 'tasks', functools.partial(jax_env.make, 'gymnax/CartPole-v1'), {}),
    'functions in JAX': (
        'jax',
        'tasks',
        lambda **arguments: jax_env.from_functions(cartpole, max_episode_steps=50, **arguments),
        {},
    ),
}


@pytest.mark.parametrize('name', FACTORIES)
def test_conforms(name):
    conformance.check_installed(*FACTORIES[name])


@pytest.mark.parametrize('name', [name for name, parts in FACTORIES.items() if parts[0]])
def test_missing_package_error_names_the_install_command(name):
    package, extra, factory, _ = FACTORIES[name]
    is_too_old = extra == 'tasks' and sys.version_info < (3, 12)
    remedy = 'run it with Python 3.12 or 3.13' if is_too_old else "pip install '"
    conformance.check_missing_package(package, extra, factory, remedy)
