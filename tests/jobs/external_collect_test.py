"""A run whose episodes come from simulators in processes without tflearn."""

import functools
import shutil
import subprocess
import sys

import numpy as np
import pytest

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

ITERATION = Iteration(num_epochs=2, minibatch_steps=12)
EXPERIENCE = Experience(
    slicing=Slicing(sequence_length=9, stride=8, cross_episodes=True),
    replay=Queue(max_size=8, max_policy_lag=None, versions_ahead=1, training=ITERATION),
    batch=BatchItems(4),
)
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


# tests/learning_test.py counts the steps of simulators in a run of DQN.
@pytest.mark.slow
def test_what_the_policy_records_of_external_steps(small_run, simulate):
    """PPO, whose loss needs the distribution of the behaviour policy, on what two simulators play."""
    port = free_port()
    options = ExternalOptions(ports=(port,), step_timeout_secs=5.0, begin_wait_secs=0.2)
    spaces = {'observation': {'shape': (4,)}, 'action': {'choices': 2}}
    factories = {
        'make_environment': functools.partial(external_env.make, **spaces, options=options),
        'make_agent': functools.partial(ppo.make_agent, network=NetworkOptions(fc_layer_params=(8,))),
        'experience': EXPERIENCE,
    }
    small_run.factories = lambda: factories
    small_run.start_replay()
    collector = small_run.start(collect, num_environments=2)
    trainer = small_run.start(train, num_train_steps=60, publish_interval_steps=1, export_interval_steps=10_000)
    wait_until(lambda: small_run.status('collect_0').get('state') == 'waiting for simulators', 'it', 90)
    simulators = [simulate(f'http://localhost:{port}', 1_000_000) for _ in range(2)]
    trainer.join(240)
    collector.join(60)
    assert [process.communicate(timeout=60)[1] for process in simulators] == ['', '']
    status = small_run.status('train')
    assert status['train_step'] == 60
    assert status['policy_version'] == 10, 'after each iteration'
    assert small_run.status('collect_0')['policy_version'] >= 9
    assert abs(status['kl_to_behaviour']) < 0.5 if 'kl_to_behaviour' in status else np.isfinite(status['loss'])
