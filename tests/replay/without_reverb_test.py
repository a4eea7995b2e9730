"""What needs no replay server works with the folder of Reverb's backend deleted: programs that cannot import it."""

import os
import signal

import numpy as np
import pytest

from tests.data import data_sets
from tests.testing import forks, without
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_address, free_port
from tflearn.policies import updates

DEADLINE_SECS = 120.0
ENVIRONMENT = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1'}
# By default no module outside of the folder may import it (tests/architecture_test.py), and the current lane, which has
# no Reverb, runs all jobs.
whole_runs = pytest.mark.slow
PROGRAM = ('tests.testing.without', without.REVERB)


def run(program, *arguments):
    return forks.run(*PROGRAM, program, *arguments, env=ENVIRONMENT, timeout=DEADLINE_SECS)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """The directory of a run that a synchronous job has finished."""
    folder = tmp_path_factory.mktemp('run')
    flags = (f'--root_dir={folder}', '--gin_file=dqn_cartpole')
    exports = ('ExportOptions.update_interval_steps=10', 'ExportOptions.policies=("greedy_policy",)')
    bindings = [f'--gin_bindings=train.{each}' for each in ('StopConditions.num_train_steps=20', *exports)]
    ended = run('scripts', 'synchronous', *flags, *bindings)
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.mark.extensions
def test_every_name_can_be_imported():
    ended = run('names')
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith(' names\n')


@whole_runs
def test_a_run_is_exported_and_evaluated(trained, tmp_path):
    step = updates.steps(RunDir(trained).greedy_policy)[0]  # after the call that passes train step 10
    ended = run('scripts', 'export', f'--root_dir={trained}', f'--train_step={step}', f'--output={tmp_path / "full"}')
    assert ended.returncode == 0, ended.stderr
    output = tmp_path / 'found.json'
    flags = (f'--root_dir={trained}', '--gin_file=dqn_cartpole', '--policy=greedy_policy', '--episodes=2')
    ended = run('scripts.evaluate', *flags, f'--output={output}')
    assert ended.returncode == 0, ended.stderr
    assert len(read_json(output)['returns']) == 2


@whole_runs
@pytest.mark.extensions
def test_a_run_is_served(trained, tmp_path):
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tflearn.extensions.serving.client import PolicyClient

    port, log = free_port(), tmp_path / 'log'
    flags = (f'--root_dir={trained}', f'--port={port}')
    process = forks.start(*PROGRAM, 'scripts.serve', *flags, log=log, env=ENVIRONMENT)
    client = PolicyClient(f'localhost:{port}')

    def answer():
        assert process.poll() is None, log.read_text()
        try:
            return client.predict({'observation': np.ones([1, 4], np.float32)})
        except Exception:  # it does not listen yet
            return None

    try:
        outputs, version = wait_until(answer, 'an answer', DEADLINE_SECS)
        assert version == 20 and outputs['action'].tolist()[0] in (0, 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM, log.read_text()
    finally:
        client.close()
        process.kill()


@whole_runs
def test_training_on_files(tmp_path):
    data_sets.write(tmp_path / 'data', 60)
    flags = (f'--root_dir={tmp_path / "run"}', '--gin_file=algorithms/bc', f'--data={tmp_path / "data"}')
    ended = run('scripts', 'train-offline', *flags, '--gin_bindings=train.StopConditions.num_train_steps=2')
    assert ended.returncode == 0, ended.stderr


def test_a_replay_server_is_refused_in_one_line(tmp_path):
    flags = (f'--root_dir={tmp_path}', '--gin_file=dqn_cartpole', f'--coordinator_address={free_address()}')
    ended = run('scripts.replay_server', *flags, '--replay_backend=reverb')
    assert ended.returncode == 2
    assert "got no backend 'reverb' of the replay" in ended.stderr.splitlines()[-1]
