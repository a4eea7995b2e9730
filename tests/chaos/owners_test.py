"""Two learners, or two replay servers, on one directory of a shared file system, on machines that differ."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time

import pytest

from tests.chaos.chaos_run import wait_for
from tests.chaos.hand_run import HandRun
from tflearn.files import lock
from tflearn.files.manifests import Manifests
from tflearn.launch.local import free_address

pytestmark = pytest.mark.chaos

BINDINGS = (
    'evaluate.evaluate.target_return=None',
    'train.StopConditions.num_train_steps=1_000_000',
    'train.LearnerOptions.checkpoint_interval_steps=500',
    'train.Intervals.export_interval_steps=1000',
    'replay_server.replay_server.checkpoint_interval_secs=5.0',
    'replay_server.replay_server.learner_timeout_secs=0',  # only locks end anything here
)
# Another machine: other process ids, so that nothing of the first one's processes is known.
OTHER_MACHINE = ('unshare', '--pid', '--fork', '--mount-proc', '--kill-child')
START_SECS = 180.0  # to load TensorFlow on a busy machine


@pytest.fixture
def mounted(tmp_path):
    """One directory at two mount points."""
    shared, first, second = (tmp_path / name for name in ('shared', 'first', 'second'))
    for path in (shared, first, second):
        path.mkdir()
    if os.geteuid() or subprocess.run(['unshare', '--pid', '--fork', '--mount-proc', 'true']).returncode:
        pytest.skip('mount points and process namespaces of its own need root')
    with contextlib.ExitStack() as mounts:
        for path in (first, second):
            subprocess.run(['mount', '--bind', str(shared), str(path)], check=True)
            mounts.callback(subprocess.run, ['umount', '-l', str(path)], check=True)
        yield first, second


@pytest.mark.parametrize('job', ['train', 'replay_server'])
def test_one_owner_at_a_time_over_two_mount_points(mounted, tmp_path, promise, job):
    first_root, second_root = (path / 'run' for path in mounted)
    with contextlib.ExitStack() as opened:
        run = HandRun(mounted[0], opened, 'dqn_cartpole', BINDINGS)
        jobs = {name: run.start(name, root=first_root) for name in ('replay_server', 'train', 'collect')}
        run.progress()

        def second(name):
            address = free_address() if job == 'replay_server' else None
            return run.start(job, name=name, root=second_root, prefix=OTHER_MACHINE, address=address)

        refused = second('refused')
        wait_for(lambda: refused.poll() is not None, 'the refusal')
        assert refused.poll() == 2
        assert f'in which another {job} job works (pid {jobs[job].pid} on ' in run.text('refused').splitlines()[-1]
        run.progress()

        # The first one stands still: another one takes over when its lock has ended.
        epoch = _epoch(run, job)
        jobs[job].send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        heir = second('heir')
        wait_for(lambda: _epoch(run, job) > epoch, 'a manifest of the new owner', START_SECS + lock.LOCK_SECS)
        assert 'did not renew its lock for 15 s; taking over' in run.text('heir')
        secs = time.monotonic() - stopped_at
        before = _saved(run, job)
        jobs[job].send_signal(signal.SIGCONT)
        wait_for(lambda: jobs[job].poll() is not None, 'the end of the one that came back', START_SECS)
        assert jobs[job].poll() == 2
        assert 'which took over' in run.text(job)
        assert _epoch(run, job) > epoch
        if job == 'train':
            assert _saved(run, job) >= before
            run.progress()
        newest = _manifests(run).newest_first()[0]
        assert newest.parts[job].epoch == _epoch(run, job) and not newest.parts[job].fault(run.run_dir.root)
        assert heir.poll() is None
    fault = f'a second {job} over another mount point; SIGSTOP of the first, which comes back'
    promise(fault, 'nothing: the first one adds no manifest', f'refused; taken over after {secs:.0f} s')


@pytest.mark.parametrize('job', ['train', 'replay_server'])
def test_the_next_owner_takes_over_after_a_kill_elsewhere(mounted, promise, job):
    first_root, second_root = (path / 'run' for path in mounted)
    with contextlib.ExitStack() as opened:
        run = HandRun(mounted[0], opened, 'dqn_cartpole', BINDINGS)
        jobs = {name: run.start(name, root=first_root) for name in ('replay_server', 'train', 'collect')}
        run.progress()
        wait_for(lambda: len(_manifests(run).newest_first()) > 2, 'checkpoints')
        epoch = _epoch(run, job)
        jobs[job].kill()
        jobs[job].wait(30.0)
        run.start(job, name='heir', root=second_root, prefix=OTHER_MACHINE)
        secs = wait_for(lambda: _epoch(run, job) > epoch, 'the new owner', START_SECS + lock.LOCK_SECS)
        secs += run.progress()
    promise(f'SIGKILL of {job}; another machine goes on', 'as by SIGKILL', secs)


def _manifests(run: HandRun) -> Manifests:
    root: pathlib.Path = run.run_dir.root
    return Manifests(root, run.run_dir.manifests, 'reader', 0, read_only=True)


def _epoch(run: HandRun, job: str) -> int:
    """Returns the epoch of the job's newest manifest."""
    found = _manifests(run).newest_first()
    return found[0].parts[job].epoch if found and job in found[0].parts else 0


def _saved(run: HandRun, job: str) -> int:
    return _manifests(run).newest_first()[0].train_step if job == 'train' else 0
