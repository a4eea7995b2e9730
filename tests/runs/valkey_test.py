"""Runs of real programs whose replay is on a Valkey server, which the replay server starts or which runs already."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.replay.valkey_test import SECRET, Given
from tests.testing import forks
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_address
from tflearn.replay.valkey import library

DEADLINE_SECS = 240.0


def launch(folder, gin_file, num_train_steps, *flags):
    command = (
        *(sys.executable, '-m', 'scripts.launch', f'--root_dir={folder}', f'--gin_file={gin_file}', *flags),
        f'--gin_bindings=train.StopConditions.num_train_steps={num_train_steps}',
    )
    environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1'}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process):
    output, _ = process.communicate(timeout=DEADLINE_SECS)
    return process.returncode, output


@pytest.mark.parametrize(
    'gin_file, num_train_steps', [('dqn_cartpole', 300), pytest.param('ppo_cartpole', 200, marks=pytest.mark.slow)]
)
def test_a_run_goes_on_after_a_stop_and_ends(tmp_path, gin_file, num_train_steps):
    """The mirror of a uniform replay, and a queue."""
    run_dir = RunDir(tmp_path / 'run')
    first = launch(run_dir.root, gin_file, 10_000_000, '--replay_backend=valkey')
    try:
        status = run_dir.status('train')
        wait_until(lambda: (read_json(status) or {}).get('train_step', 0) > 0, 'train steps', DEADLINE_SECS)
        first.send_signal(signal.SIGINT)
        code, output = ended(first)
        assert code == 128 + signal.SIGINT, output
    finally:
        first.kill()
    inserts = read_json(run_dir.status('replay_server'))['inserts']
    assert inserts > 0
    saved = read_json(status)['train_step']
    code, output = ended(launch(run_dir.root, gin_file, saved + num_train_steps, '--replay_backend=valkey'))
    assert code == 0 and 'The run is done' in output, output
    log = (run_dir.root / 'logs' / 'replay_server.log').read_text()
    assert re.search(r'started \S+ on port \d+', log) and 'restored the replay from' in log
    assert read_json(run_dir.status('replay_server'))['inserts'] > inserts


def test_a_scheduler_does_not_get_a_server_that_serves_one_machine(tmp_path):
    flags = ('--replay_backend=valkey', '--backend=slurm', '--render')
    code, output = ended(launch(tmp_path / 'run', 'dqn_cartpole', 10, *flags))
    assert code == 2 and 'need the local backend' in output.splitlines()[-1]


@pytest.mark.parametrize('is_wrong', [False, True])
def test_the_replay_server_keeps_the_replay_on_a_server_that_runs(tmp_path, monkeypatch, is_wrong):
    monkeypatch.setenv('REPLAY_SECRET', SECRET)
    monkeypatch.setenv(library.PASSWORD_VARIABLE, 'env:REPLAY_SECRET')
    given = Given(tmp_path / 'given')
    given.start()
    flags = (
        *(f'--root_dir={tmp_path / "run"}', '--gin_file=dqn_cartpole', f'--coordinator_address={free_address()}'),
        f'--replay_address={given.address}',
    )
    environment = {**os.environ, 'REPLAY_SECRET': 'another-one-than-its' if is_wrong else SECRET}
    log = tmp_path / 'log'
    process = forks.start('scripts.replay_server', *flags, log=log, env=environment)
    try:
        if is_wrong:
            assert process.wait(60) == 2
            assert 'refuses this user or password' in log.read_text().splitlines()[-1]
            assert SECRET not in log.read_text() and 'another-one' not in log.read_text()
            return
        wait_until(lambda: 'replay server on port' in log.read_text(), 'the replay server', 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM, log.read_text()
        assert given.call('HGET', 'tflearn:state', 'tables')  # they stay
    finally:
        process.kill()
        given.process.kill()
        given.process.wait()


def test_refuses_a_wrong_address_and_an_experience_that_the_server_would_draw(tmp_path):
    flags = (f'--root_dir={tmp_path}', '--gin_file=dqn_cartpole', f'--coordinator_address={free_address()}')
    for more, error in (
        (('--replay_address=valkey://user:secret@host:1',), 'without a user or a password'),
        (('--replay_backend=valkey', '--gin_bindings=Uniform.sampling="server"'), 'need --replay_backend=reverb'),
    ):
        done = forks.run('scripts.replay_server', *flags, *more, timeout=60.0)
        assert done.returncode == 2 and error in done.stderr.splitlines()[-1], done.stderr
        assert 'secret' not in done.stderr
