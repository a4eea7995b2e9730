"""Jobs that are suspended for a minute, or forever; a disk that is full; a second learner."""

import contextlib
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from tests.chaos.chaos_run import JOBS, ROOT, ChaosRun, wait_for
from tests.chaos.hand_run import HandRun
from tests.replay.valkey_test import SECRET, Given
from tflearn.launch.local import free_port
from tflearn.replay.valkey import library

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
            fill(disk / 'filler')
            wait_for(lambda: run.ended() is not None, 'the end')
            text = run.output.read_text()
            # The log of the job, with its last line, is on that disk too.
            assert run.ended() == 2, text[-3000:]
            assert 'error: got a full disk' in text.splitlines()[-1], text[-3000:]
            (disk / 'filler').unlink()
            saved = run.newest_checkpoint()
            assert saved
            run.start()
            secs = wait_for(lambda: run.running and run.train_step >= saved, 'the learner')
            wait_for(lambda: run.newest_checkpoint() > saved, 'another checkpoint')
        promise(f'a full disk, replay in {backend}', 'what came after the newest checkpoint', secs)
    finally:
        subprocess.run(['umount', '-l', str(disk)], check=True)


def fill(path: pathlib.Path) -> None:
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


# Collectors that are lost for good, or that have another configuration.

COLLECTORS_BINDINGS = (
    'evaluate.evaluate.target_return=None',
    'train.StopConditions.num_train_steps=100_000_000',
    'train.Intervals.export_interval_steps=100_000_000',
    'collect.num_environments=2',  # of the 32 items of an iteration: each of the four has a share in all of them
)
MEASURED_SECS = 40.0


def _iterations_per_sec(run):
    """Returns the rate of policy versions, one for each iteration, from now on."""
    before = run.status('train')
    threading.Event().wait(MEASURED_SECS)
    after = run.status('train')
    return (after['policy_version'] - before['policy_version']) / (after['time'] - before['time'])


def test_ppo_goes_on_with_three_of_four_collectors(tmp_path, promise):
    with contextlib.ExitStack() as opened:
        run = HandRun(tmp_path, opened, 'ppo_cartpole', COLLECTORS_BINDINGS)
        for job in ('replay_server', 'train'):
            run.start(job)
        names = [f'collect_{i}' for i in range(4)]
        collectors = [run.start('collect', f'--collector_name={name}', name=name) for name in names]
        wait_for(lambda: all(run.status(name).get('env_steps', 0) > 500 for name in names), 'all collectors')
        before = _iterations_per_sec(run)
        collectors[3].kill()
        after = _iterations_per_sec(run)  # from the kill on, the end of its lease included
        assert [collector.poll() for collector in collectors[:3]] == [None] * 3
        assert after >= 0.7 * before, f'{before:.2f} and {after:.2f} iterations a second'
    promise(
        'one of four collectors of PPO is killed for good',
        'the steps that it had not sent',
        f'{after / before:.2f} of the iterations a second in the {MEASURED_SECS:.0f} s from the kill on',
    )


def test_a_collector_with_another_configuration_is_refused(tmp_path, promise):
    with contextlib.ExitStack() as opened:
        run = HandRun(tmp_path, opened, 'dqn_cartpole', COLLECTORS_BINDINGS[:2])
        for job in ('replay_server', 'train', 'collect'):
            run.start(job)
        run.progress()
        other = '--gin_bindings=networks.NetworkOptions.fc_layer_params=(7,)'
        stranger = run.start('collect', other, '--collector_name=collect_1', name='stranger')
        wait_for(lambda: stranger.poll() is not None, 'its end')
        assert stranger.poll() == 2
        line = run.text('stranger').splitlines()[-1]
        assert line.startswith('tflearn-collect: error: got ') and 'need' in line, line
        run.progress()
    promise('a collector with another configuration', 'nothing', 'refused')


# A network that delivers nothing between a job and the replay server, for half a minute or forever, or little.

PARTITION_SECS = 30.0
END_SECS = 120.0
ENDING = ('train', 'collect')
ENDING_FLAGS = ('--gin_bindings=train.Data.timeout_secs=60.0', '--connect_timeout_secs=60')
PARTITION_BINDINGS = ('evaluate.evaluate.target_return=None', 'train.StopConditions.num_train_steps=1_000_000')
_PROXY = pathlib.Path(__file__).with_name('proxy.py')


class Proxied(HandRun):
    """A replay server, a learner and a collector by hand; one of them reaches the coordinator by a proxy.

    Or, if `job` is a backend, all of them reach the replay by it: Reverb, or a Valkey server that was there before.
    """

    def __init__(self, directory, job: str, opened: contextlib.ExitStack, *settings: float, flags: Sequence[str] = ()):
        super().__init__(directory, opened, 'dqn_cartpole', PARTITION_BINDINGS)
        self._partition, proxy, target = directory / 'partition', f'localhost:{free_port()}', self.port
        names = ['replay_server', 'train', 'collect']
        if job == 'valkey':
            target = opened.enter_context(given(directory)).port
            self.replay_address = f'valkey://{proxy}'
        self.jobs = {}
        if job == 'reverb':  # it listens at all addresses of this machine, of which the proxy takes one over
            target, self.replay_address = self.replay_port, f'127.0.0.2:{self.replay_port}'
            proxy = self.replay_address
            self.jobs['replay_server'] = self.start(names.pop(0))
            wait_for(lambda: 'replay server on port' in self.text('replay_server'), 'the replay server')
        arguments = [proxy, target, self._partition, *settings]
        self.run([sys.executable, str(_PROXY), *map(str, arguments)], 'proxy')
        self.jobs |= {name: self.start(name, *flags, address=proxy if name == job else None) for name in names}

    def divide(self) -> None:
        self._partition.touch()

    def join(self) -> None:
        self._partition.unlink()


class Networked(HandRun):
    """The same with a network of its own between the learner and the rest: two interfaces, of which one goes down."""

    def __init__(self, directory: pathlib.Path, opened: contextlib.ExitStack, backend: str):
        super().__init__(directory, opened, 'dqn_cartpole', PARTITION_BINDINGS)
        self._here, there, space = f'tfl{os.getpid()}a', f'tfl{os.getpid()}b', f'tflearn_{os.getpid()}'
        if os.geteuid() or not self._ip('netns', 'add', space):
            pytest.skip('a network of its own needs root')
        opened.callback(self._ip, 'netns', 'del', space)
        opened.callback(self._ip, 'link', 'del', self._here)  # the kernel takes its time to do so by itself
        inside = ('netns', 'exec', space, 'ip')
        for command in (
            ('link', 'add', self._here, 'type', 'veth', 'peer', 'name', there),
            ('link', 'set', there, 'netns', space),
            ('addr', 'add', '10.213.7.1/24', 'dev', self._here),
            ('link', 'set', self._here, 'up'),
            (*inside, 'addr', 'add', '10.213.7.2/24', 'dev', there),
            (*inside, 'link', 'set', there, 'up'),
        ):
            assert self._ip(*command), command
        if backend == 'valkey':
            server = opened.enter_context(given(directory, '127.0.0.1 10.213.7.1'))
            self.replay_address = f'valkey://10.213.7.1:{server.port}'
        address, prefix = f'10.213.7.1:{self.port}', ('ip', 'netns', 'exec', space)
        self.jobs = {name: self.start(name, address=address) for name in ('replay_server', 'collect')}
        self.jobs['train'] = self.start('train', address=address, prefix=prefix)

    def divide(self) -> None:
        assert self._ip('link', 'set', self._here, 'down')

    def join(self) -> None:
        assert self._ip('link', 'set', self._here, 'up')

    def _ip(self, *arguments: str) -> bool:
        return shutil.which('ip') is not None and subprocess.run(['ip', *arguments]).returncode == 0


@contextlib.contextmanager
def given(directory, hosts='127.0.0.1', more=''):
    """A Valkey server that the run has not started, and that keeps what it has on its disk."""
    running = Given(directory / 'given', f'bind {hosts}\nappendonly yes\n{more}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('REPLAY_SECRET', SECRET)
        patch.setenv(library.PASSWORD_VARIABLE, 'env:REPLAY_SECRET')
        running.start()
        try:
            yield running
        finally:
            running.process.kill()
            running.process.wait(30)


BACKENDS = pytest.mark.parametrize('backend', ['reverb', 'valkey'])


REPLAYS = {'reverb': 'Reverb', 'valkey': 'a given Valkey server'}


@pytest.mark.parametrize('job', ['train', 'collect', *REPLAYS])
def test_a_partition_that_heals_is_survived(tmp_path, promise, job):
    with contextlib.ExitStack() as opened:
        secs = _divide_for_a_while(Proxied(tmp_path, job, opened))
    whom = f'all jobs and {REPLAYS[job]}' if job in REPLAYS else f'{job} and the replay server'
    promise(f'no network between {whom} for {PARTITION_SECS:.0f} s', 'nothing', secs)


@BACKENDS
def test_a_network_that_was_down_is_survived(tmp_path, promise, backend):
    with contextlib.ExitStack() as opened:
        secs = _divide_for_a_while(Networked(tmp_path, opened, backend))
    fault = f'the network interface of train is down for {PARTITION_SECS:.0f} s, replay in {backend}'
    promise(fault, 'nothing', secs)


def test_an_endless_partition_ends_learner_and_replay_server(tmp_path, promise):
    with contextlib.ExitStack() as opened:
        secs = _divide_for_ever(Proxied(tmp_path, 'train', opened))
    fault = 'no network between train and the replay server, without end; default settings'
    promise(fault, 'nothing', f'both end within {secs:.0f} s, with exit status 75')


@BACKENDS
def test_a_network_that_stays_down_ends_learner_and_replay_server(tmp_path, promise, backend):
    with contextlib.ExitStack() as opened:
        secs = _divide_for_ever(Networked(tmp_path, opened, backend))
    fault = f'the network interface of train is down, without end; default settings, replay in {backend}'
    promise(fault, 'nothing', f'both end within {secs:.0f} s, with exit status 75')


def test_an_endless_partition_ends_the_collector(tmp_path, promise):
    with contextlib.ExitStack() as opened:
        run = Proxied(tmp_path, 'collect', opened)
        run.progress()
        run.divide()
        secs = wait_for(lambda: run.jobs['collect'].poll() is not None, 'its end', END_SECS)
        assert run.jobs['collect'].poll() == 75
        assert 'got no answer from the coordinator at localhost' in run.text('collect')
    fault = 'no network between collect and the replay server, without end; default settings'
    promise(fault, 'the steps that it had not sent', f'it ends after {secs:.0f} s, with exit status 75')


@BACKENDS
def test_an_endless_partition_of_the_replay_ends_learner_and_collector(tmp_path, promise, backend):
    with contextlib.ExitStack() as opened:
        run = Proxied(tmp_path, backend, opened, flags=ENDING_FLAGS)
        run.progress()
        run.divide()
        ends = [wait_for(lambda job=job: run.jobs[job].poll() is not None, 'its end', END_SECS) for job in ENDING]
        for job in ENDING:
            assert run.jobs[job].poll() == 69, run.text(job)[-2000:]
            assert 'timed out after ' in (line := run.text(job).splitlines()[-1]) and run.replay_address in line, line
        assert (run.run_dir.checkpoints / f'ckpt-{run.train_step}.index').exists()
    fault = f'no network between all jobs and {REPLAYS[backend]}, without end, with both timeouts for data at 60 s'
    promise(fault, 'the steps that were not sent', f'learner and collector end within {sum(ends):.0f} s')


@pytest.mark.parametrize('job', ['train', 'collect', *REPLAYS])
def test_a_network_with_delay_and_lost_connections_is_survived(tmp_path, promise, job):
    with contextlib.ExitStack() as opened:
        run = Proxied(tmp_path, job, opened, 0.05, 0.005)
        secs = run.progress(1_000) + run.progress(1_000)
        assert [process.poll() for process in run.jobs.values()] == [None] * 3
    whose = f'of {REPLAYS.get(job, job)}'
    fault = f'50 ms of delay, and one connection {whose} cut for every 200 pieces of data'
    promise(fault, 'nothing', f'2,000 train steps within {secs:.0f} s')


def test_a_given_valkey_server_that_is_killed_comes_back_with_what_it_persisted(tmp_path, promise):
    with contextlib.ExitStack() as opened:
        run = HandRun(tmp_path, opened, 'dqn_cartpole', PARTITION_BINDINGS)
        server = opened.enter_context(given(tmp_path, more='appendfsync always'))
        run.replay_address = server.address
        jobs = [run.start(name) for name in ('replay_server', 'train', 'collect')]
        secs = run.progress()
        inserts = run.status('replay_server')['inserts']
        server.process.kill()
        server.process.wait(30)
        threading.Event().wait(PARTITION_SECS)
        server.start()
        wait_for(lambda: run.status('replay_server')['inserts'] > inserts, 'more chunks', 60.0)
        secs = run.progress()
        assert [process.poll() for process in jobs] == [None] * 3
    fault = f'SIGKILL of a given Valkey server (`appendfsync always`), which is down for {PARTITION_SECS:.0f} s'
    promise(fault, 'nothing', secs)


def _divide_for_a_while(run):
    """Returns how long after the partition the learner has made progress."""
    run.progress()
    run.divide()
    threading.Event().wait(PARTITION_SECS)
    run.join()
    secs = run.progress()
    assert [process.poll() for process in run.jobs.values()] == [None] * 3
    return secs


def _divide_for_ever(run):
    """Returns how long after the beginning of the partition learner and replay server have ended."""
    run.progress()
    run.divide()
    secs = wait_for(lambda: run.jobs['train'].poll() is not None, 'its end', END_SECS)
    secs += wait_for(lambda: run.jobs['replay_server'].poll() is not None, 'the end of the server', END_SECS - secs)
    assert run.jobs['train'].poll() == run.jobs['replay_server'].poll() == 75
    _check_diagnosis(run, 'train', 'got no answer from the coordinator at ')
    _check_diagnosis(run, 'replay_server', 'got no heartbeat of the learner for')
    assert 'saved the replay in' in run.text('replay_server')
    assert (run.run_dir.checkpoints / f'ckpt-{run.train_step}.index').exists()
    return secs


def _check_diagnosis(run, job, begin):
    """Checks the line that says why a job ended."""
    line = next(line for line in run.text(job).splitlines() if begin in line)
    parts = ('table replay: ', ' inserts, ', ' samples (', 'limiter at ', 'last insert ', 'last sample ')
    assert all(part in line for part in parts), line
