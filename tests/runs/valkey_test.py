"""Runs of real programs whose replay is on a Valkey server, which the replay server starts or which runs already."""

import contextlib
import os
import re
import signal

import pytest

from tests.end_to_end.programs import Program, metric
from tests.replay.valkey_test import SECRET, Given
from tests.testing import forks
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_address
from tflearn.replay.valkey import library


@pytest.fixture
def launch(tmp_path):
    """Starts a launch of the run in 'run' in the test's folder."""
    with contextlib.ExitStack() as programs:

        def start(gin_file, num_train_steps, *flags, name=''):
            steps = f'--gin_bindings=train.StopConditions.num_train_steps={num_train_steps}'
            given = ('--root_dir=run', f'--gin_file={gin_file}', *flags, steps)
            return programs.enter_context(Program('launch', *given, folder=tmp_path, name=name, forked=True))

        yield start


@pytest.mark.parametrize(
    'gin_file, num_train_steps', [('dqn_cartpole', 300), pytest.param('ppo_cartpole', 200, marks=pytest.mark.slow)]
)
def test_a_run_goes_on_after_a_stop_and_ends(launch, tmp_path, gin_file, num_train_steps):
    """The mirror of a uniform replay, and a queue."""
    run_dir = RunDir(tmp_path / 'run')
    first = launch(gin_file, 10_000_000, '--replay_backend=valkey')
    first.wait_for(lambda: metric(run_dir, 'train', 'train_step') > 0, 'train steps')
    first.send(signal.SIGINT)
    assert first.end() == 128 + signal.SIGINT, first.output
    inserts = read_json(run_dir.status('replay_server'))['inserts']
    assert inserts > 0
    saved = metric(run_dir, 'train', 'train_step')
    again = launch(gin_file, saved + num_train_steps, '--replay_backend=valkey', name='again')
    assert again.end() == 0 and 'The run is done' in again.output, again.output
    log = run_dir.log('replay_server').read_text()
    assert re.search(r'started \S+ on port \d+', log) and 'restored the replay from' in log
    assert read_json(run_dir.status('replay_server'))['inserts'] > inserts


def test_a_scheduler_does_not_get_a_server_that_serves_one_machine(launch):
    program = launch('dqn_cartpole', 10, '--replay_backend=valkey', '--backend=slurm', '--render')
    assert program.end() == 2 and 'need the local backend' in program.last_line


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
        (
            ('--replay_backend=valkey', '--replay_address=other:1'),
            "got replay_address='other:1' for a Valkey server, which serves one machine; need localhost, or valkey://",
        ),
        (
            ('--replay_backend=valkey', '--gin_bindings=Uniform.sampling="server"'),
            "got Uniform(sampling='server', max_mirror_gb=4.0, max_times_sampled=0) and a mirror of ",
        ),
        (
            ('--replay_backend=valkey', '--gin_bindings=Uniform.max_mirror_gb=0.001'),
            "got Uniform(sampling='auto', max_mirror_gb=0.001, max_times_sampled=0) and a mirror of 0.00",
        ),
        (
            ('--replay_backend=valkey', '--gin_bindings=Uniform.max_times_sampled=64'),
            'max_times_sampled=64) and a mirror of ',
        ),
    ):
        done = forks.run('scripts.replay_server', *flags, *more, timeout=60.0)
        assert done.returncode == 2 and error in done.stderr.splitlines()[-1], done.stderr
        assert 'secret' not in done.stderr
