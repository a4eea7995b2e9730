"""A run whose episodes come from simulators in processes without tflearn."""

import functools
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.testing import experiences
from tests.testing.docs_blocks import DOCS
from tflearn.agents import ppo
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing
from tflearn.core.waiting import wait_until
from tflearn.environments import external_client, external_env
from tflearn.environments.external_server import ExternalOptions
from tflearn.jobs.collect import collect
from tflearn.jobs.train import train
from tflearn.launch.local import free_port
from tflearn.networks.networks import NetworkOptions

EXPERIENCE = Experience(
    slicing=Slicing(sequence_length=9, stride=8, cross_episodes=True),
    replay=Queue(max_size=8, max_policy_lag=2, versions_ahead=1, training=Iteration(num_epochs=2, minibatch_steps=12)),
    batch=BatchItems(4),
)
WITHOUT_DROPS = experiences.changed(EXPERIENCE, max_policy_lag=None)
# tflearn cannot be imported in this process.
PROGRAM = """
import sys
sys.modules['tflearn'] = sys.modules['tensorflow'] = None
import external_simulator
external_simulator.main(sys.argv[1], int(sys.argv[2]))
"""


@pytest.fixture
def simulate(tmp_path):
    """Starts a simulator that plays episodes of CartPole; returns its process."""
    shutil.copy(external_client.__file__, tmp_path / 'client.py')
    shutil.copy(DOCS / 'external_simulator.py', tmp_path)
    started = []

    def start(address, num_episodes):
        command = [sys.executable, '-c', PROGRAM, address, str(num_episodes)]
        pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=tmp_path, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=60)


@pytest.fixture
def make_environment():
    """The factory of two slots at a free port."""
    options = ExternalOptions(ports=(free_port(),), step_timeout_secs=5.0, begin_wait_secs=0.2)
    return functools.partial(external_env.make, observation={'shape': (4,)}, action={'choices': 2}, options=options)


class ExternalRun:
    """The jobs of a run that two simulators play for."""

    def __init__(self, run, make_environment, simulate):
        self.run, self._make_environment, self._simulate = run, make_environment, simulate
        self.address = f'http://localhost:{make_environment.keywords["options"].ports[0]}'

    def train(self, **settings):
        """Trains to the end. Returns the output of both simulators, whose error output is empty."""
        run, factories = self.run, self.run.factories() | {'make_environment': self._make_environment}
        run.factories = lambda: factories
        run.start_replay()
        collector = run.start(collect, num_environments=2)
        trainer = run.start(train, export_interval_steps=10_000, **settings)
        wait_until(lambda: run.status('collect_0').get('state') == 'waiting for simulators', 'it', 90)
        simulators = [self._simulate(self.address, 1_000_000) for _ in range(2)]
        trainer.join(240)
        collector.join(60)
        ended = [process.communicate(timeout=60) for process in simulators]
        assert [error for _, error in ended] == ['', '']
        return [output for output, _ in ended]


@pytest.fixture
def external_run(small_run, make_environment, simulate):
    return ExternalRun(small_run, make_environment, simulate)


@pytest.mark.slow
def test_simulators_in_other_processes_train_a_run(external_run):
    outputs = external_run.train(num_train_steps=3000, publish_interval_steps=50)
    returns = [[float(line) for line in output.split()] for output in outputs]
    played, status = sum(map(sum, returns)), external_run.run.status('collect_0')
    assert min(map(len, returns)) > 5
    assert played <= status['env_steps'] <= played + 2 * 500, 'all steps that were played, but for the last episodes'
    assert status['episodes'] == pytest.approx(sum(map(len, returns)), abs=2)
    assert status['dropped_episodes'] == 0
    assert status['policy_version'] == 60, 'the weights were refreshed until the last ones'
    assert external_run.run.status('train')['train_step'] == 3000


@pytest.mark.slow
def test_what_the_policy_records_of_external_steps(external_run):
    """PPO, whose loss needs the distribution of the behaviour policy, on what the run stored."""
    external_run.run.factories = lambda: {
        'make_agent': functools.partial(ppo.make_agent, network=NetworkOptions(fc_layer_params=(8,))),
        'experience': WITHOUT_DROPS,
    }
    external_run.train(num_train_steps=60, publish_interval_steps=1)
    status = external_run.run.status('train')
    assert status['train_step'] == 60
    assert status['policy_version'] == 10, 'after each iteration'
    assert external_run.run.status('collect_0')['policy_version'] >= 9
    assert abs(status['kl_to_behaviour']) < 0.5 if 'kl_to_behaviour' in status else np.isfinite(status['loss'])
