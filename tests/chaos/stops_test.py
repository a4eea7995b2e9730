"""Jobs that are suspended for a minute, or forever; a disk that is full; a second learner."""

import os
import pathlib
import shlex
import signal
import subprocess
import threading

import pytest

from tests.chaos.chaos_run import JOBS, ROOT, ChaosRun, wait_for

pytestmark = pytest.mark.chaos

STANDSTILL_SECS = 60.0
BINDINGS = (
    'train.LearnerOptions.checkpoint_interval_steps=500',
    'evaluate.evaluate.target_return=None',
    'train.StopConditions.num_train_steps=1_000_000',
)


@pytest.fixture
def run(tmp_path):
    return ChaosRun(tmp_path, 'dqn_cartpole', BINDINGS)


def _progress(run):
    """Waits until the learner has taken more train steps; returns the seconds."""
    step = run.train_step
    return wait_for(lambda: run.train_step > step + 100, 'more train steps')


@pytest.mark.parametrize('job, backend', [*((job, 'reverb') for job in JOBS), ('replay_server', 'valkey')])
def test_a_job_that_stands_still_for_a_minute_goes_on(tmp_path, promise, job, backend):
    run = ChaosRun(tmp_path, 'dqn_cartpole', BINDINGS, [f'--replay_backend={backend}'])
    with run.started():
        wait_for(lambda: run.running, 'the first train step')
        _progress(run)
        run.signal(job, signal.SIGSTOP)
        threading.Event().wait(STANDSTILL_SECS)
        run.signal(job, signal.SIGCONT)
        secs = _progress(run)
        assert 'restart 1' not in run.output.read_text()
        if job != 'evaluate':  # it may wait for a policy
            assert f'{job}: silent for' in run.output.read_text()
    promise(f'SIGSTOP of {job} for {STANDSTILL_SECS:.0f} s, replay in {backend}', 'nothing', secs)


@pytest.mark.parametrize('job', ['train', 'collect_0', 'replay_server'])
def test_a_job_that_stands_still_for_ever_is_started_again(tmp_path, promise, job):
    run = ChaosRun(tmp_path, 'dqn_cartpole', BINDINGS, ['--silent_timeout_secs=30'])
    with run.started():
        wait_for(lambda: run.running, 'the first train step')
        _progress(run)
        run.signal(job, signal.SIGSTOP)
        secs = wait_for(lambda: f'{job} has not reported for' in run.output.read_text(), 'its end')
        assert secs < 60.0
        wait_for(lambda: 'restart 1' in run.output.read_text(), 'its restart')
        secs += wait_for(lambda: run.running, 'the learner') + _progress(run)
    promise(f'SIGSTOP of {job} without an end, `--silent_timeout_secs=30`', 'as by SIGKILL', secs)


@pytest.mark.parametrize('backend', ['reverb', 'valkey'])
def test_a_full_disk_ends_training_and_the_same_command_goes_on(tmp_path, promise, backend):
    disk = tmp_path / 'disk'
    disk.mkdir()
    if os.geteuid() or subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=60m', 'tmpfs', str(disk)]).returncode:
        pytest.skip('a file system of its own needs root')
    run = ChaosRun(disk, 'dqn_cartpole', BINDINGS, [f'--replay_backend={backend}'])
    run.output = tmp_path / 'output.txt'
    try:
        with run.started():
            wait_for(lambda: run.running and run.newest_checkpoint(), 'the first checkpoint')
            _fill(disk / 'filler')
            wait_for(lambda: run.ended() is not None, 'the end')
            text = run.output.read_text()
            # The log of the job, with its last line, is on that disk too.
            assert run.ended() in (1, 2), text[-3000:]
            assert 'could not save' in text and 'is full; make room, and start the same command again' in text
            (disk / 'filler').unlink()
            saved = run.newest_checkpoint()
            assert saved
            run.start()
            secs = wait_for(lambda: run.running and run.train_step >= saved, 'the learner')
            wait_for(lambda: run.newest_checkpoint() > saved, 'another checkpoint')
        promise(f'a full disk, replay in {backend}', 'what came after the newest checkpoint', secs)
    finally:
        subprocess.run(['umount', '-l', str(disk)], check=True)


def _fill(path: pathlib.Path) -> None:
    try:
        with path.open('wb') as file:
            while True:
                file.write(b'\\0' * 65_536)
                file.flush()
    except OSError:
        pass


def test_a_second_learner_is_refused(run, promise):
    with run.started():
        wait_for(lambda: run.running, 'the first train step')
        command = next(line for line in run.run_dir.commands.read_text().splitlines() if 'scripts.train ' in line)
        second = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert second.returncode == 2
        assert 'in which another train job works (pid' in second.stderr.splitlines()[-1]
        _progress(run)
        assert 'restart 1' not in run.output.read_text()
    promise('a second learner on the directory', 'nothing', 'refused')
