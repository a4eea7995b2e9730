"""The simulator in C++ of the documents, compiled, plays episodes of the same physics as gymnasium's."""

import itertools
import shutil
import subprocess
import urllib.parse

import gymnasium
import numpy as np
import pytest

from tests.environments import playing
from tests.testing.docs_blocks import DOCS

COMPILER = shutil.which('g++') or shutil.which('clang++')
NUM_EPISODES = 2


@pytest.fixture(scope='module')
def program(tmp_path_factory):
    if COMPILER is None:
        pytest.skip('there is no C++ compiler')
    made = tmp_path_factory.mktemp('cpp') / 'external_simulator'
    command = [COMPILER, '-std=c++17', '-Wall', '-Wextra', '-Werror', '-o', made, DOCS / 'external_simulator.cpp']
    subprocess.run(command, check=True, timeout=playing.DEADLINE_SECS)
    return made


def balance(observation):
    """A policy that keeps the pole up for a while."""
    return (observation[:, 2] + 0.5 * observation[:, 3] > 0).astype(np.int64)


def test_it_plays_complete_episodes(program):
    environment = playing.make(1, observation={'shape': (4,)}, action={'choices': 2})
    with playing.Playing(environment, act=balance) as playing_policy:
        address = urllib.parse.urlsplit(environment.address)
        command = [program, address.hostname, str(address.port), str(NUM_EPISODES)]
        played = subprocess.run(command, capture_output=True, text=True, timeout=playing.DEADLINE_SECS)
    assert (played.returncode, played.stderr) == (0, '')
    returns = [float(line) for line in played.stdout.split()]
    assert len(returns) == NUM_EPISODES and min(returns) > 20
    assert physics_differ(playing_policy.time_steps) < 1e-5


def physics_differ(time_steps):
    """The greatest difference between observations and what gymnasium makes of the one before."""
    cart_pole, differences = gymnasium.make('CartPole-v1').unwrapped, []
    for before, after in itertools.pairwise(time_steps):
        if before.step_type[0] != 2 and after.step_type[0] != 0 and before.observation[0].any():
            cart_pole.reset()
            cart_pole.state = before.observation[0].astype(np.float64)
            wanted, *_ = cart_pole.step(int(balance(before.observation)[0]))
            differences.append(np.abs(wanted - after.observation[0]).max())
    assert len(differences) > 20 * NUM_EPISODES
    return max(differences)


def test_it_ends_with_the_run(program):
    environment = playing.make(1, observation={'shape': (4,)}, action={'choices': 2})
    with playing.Playing(environment, act=balance):
        address = urllib.parse.urlsplit(environment.address)
        process = subprocess.Popen(
            [program, address.hostname, str(address.port), '1000000'],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert float(process.stdout.readline()) > 20
    try:
        assert process.wait(playing.DEADLINE_SECS) == 0
        assert process.stderr.read() in ('the connection is closed\n', f'nobody listens at {address.hostname}\n')
    finally:
        process.kill()
        process.communicate()
