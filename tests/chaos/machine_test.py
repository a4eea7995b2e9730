"""A machine that misbehaves under a run: its clock is set, its memory runs out."""

import contextlib
import os
import pathlib
import signal

import pytest

from tests.chaos.chaos_run import ChaosRun, wait_for

pytestmark = pytest.mark.chaos

BINDINGS = (
    'evaluate.evaluate.target_return=None',
    'train.StopConditions.num_train_steps=1_000_000',
    'train.LearnerOptions.checkpoint_interval_steps=500',
)
FAKETIME = pathlib.Path(os.environ.get('TFLEARN_LIBFAKETIME', '/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1'))
CGROUP = pathlib.Path('/sys/fs/cgroup/memory/tflearn_chaos')


def _progress(run):
    step = run.train_step
    return wait_for(lambda: run.train_step > step + 500, 'more train steps')


@pytest.mark.skipif(not FAKETIME.exists(), reason='needs libfaketime (TFLEARN_LIBFAKETIME=FILE)')
def test_a_clock_that_is_set_changes_nothing(tmp_path, promise):
    offset = tmp_path / 'offset'
    offset.write_text('+0')
    environment = {'LD_PRELOAD': str(FAKETIME), 'FAKETIME_TIMESTAMP_FILE': str(offset), 'DONT_FAKE_MONOTONIC': '1'}
    environment |= {'FAKETIME_CACHE_DURATION': '1'}
    run = ChaosRun(tmp_path, 'dqn_cartpole', BINDINGS, ['--silent_timeout_secs=30'], environment)
    with run.started():
        wait_for(lambda: run.train_step, 'the first train step')
        secs = _progress(run)
        for text in ('+3600', '-7200', '+0'):
            offset.write_text(text)
            secs = max(secs, _progress(run), _progress(run))
        assert 'silent' not in run.output.read_text() and 'restart' not in run.output.read_text()
        offset.write_text('-7200')
        _progress(run)
        saved = run.newest_checkpoint()
        pid = run.status('train')['pid']
        run.signal('train', signal.SIGKILL)
        wait_for(lambda: run.status('train').get('pid') != pid and run.train_step > saved, 'the learner')
        assert run.restored_step() >= saved
    promise(
        'the clock is set forward by an hour, then back by two hours', 'nothing', f'train steps within {secs:.0f} s'
    )


@pytest.fixture
def little_memory():
    """A function that gives a process no more memory than it has."""
    if os.geteuid() or not CGROUP.parent.is_dir():
        pytest.skip('a memory limit of a process needs root and cgroups of version 1')
    with contextlib.suppress(FileExistsError):
        CGROUP.mkdir()

    def limit(pid, num_bytes=4 << 20):
        (CGROUP / 'memory.limit_in_bytes').write_text(str(num_bytes))
        (CGROUP / 'cgroup.procs').write_text(str(pid))

    yield limit
    for pid in (CGROUP / 'cgroup.procs').read_text().split():
        (CGROUP.parent / 'cgroup.procs').write_text(pid)
    CGROUP.rmdir()


@pytest.mark.parametrize('job', ['train', 'collect_0', 'replay_server'])
def test_a_job_whose_memory_runs_out_is_started_again(tmp_path, promise, little_memory, job):
    run = ChaosRun(tmp_path, 'dqn_cartpole', BINDINGS)
    with run.started():
        wait_for(lambda: run.running, 'the first train step')
        _progress(run)
        wait_for(run.newest_checkpoint, 'a checkpoint')
        little_memory(run.status(job)['pid'])
        wait_for(lambda: f'{job} was ended by SIGKILL, as happens when memory runs out' in run.output.read_text(), 'it')
        secs = wait_for(lambda: 'restart 1' in run.output.read_text(), 'its restart')
        secs += wait_for(lambda: run.running, 'the learner') + _progress(run)
    promise(f'memory of {job} runs out', 'as by SIGKILL', secs)
