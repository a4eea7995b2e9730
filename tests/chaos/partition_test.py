"""A network that delivers nothing between a job and the replay server, for half a minute or forever, or little."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import pytest

from tests.chaos.chaos_run import wait_for
from tests.chaos.hand_run import HandRun
from tests.replay.valkey_test import SECRET, Given
from tflearn.launch.local import free_port
from tflearn.replay.valkey import library

pytestmark = pytest.mark.chaos

PARTITION_SECS = 30.0
END_SECS = 120.0
BINDINGS = ('evaluate.evaluate.target_return=None', 'train.StopConditions.num_train_steps=1_000_000')
_PROXY = pathlib.Path(__file__).with_name('proxy.py')


class Proxied(HandRun):
    """A replay server, a learner and a collector by hand, with default timeouts; one reaches the server by a proxy.

    Or all of them reach a Valkey server by it, which was there before.
    """

    def __init__(self, directory: pathlib.Path, job: str, opened: contextlib.ExitStack, *settings: float):
        super().__init__(directory, opened, 'dqn_cartpole', BINDINGS)
        self._partition, proxy, target = directory / 'partition', free_port(), self.port
        if job == 'valkey':
            target = opened.enter_context(given(directory)).port
            self.replay_address = f'valkey://localhost:{proxy}'
        arguments = [proxy, target, self._partition, *settings]
        self.run([sys.executable, str(_PROXY), *map(str, arguments)], 'proxy')
        names = ('replay_server', 'train', 'collect')
        self.jobs = {name: self.start(name, address=f'localhost:{proxy}' if name == job else None) for name in names}

    def divide(self) -> None:
        self._partition.touch()

    def join(self) -> None:
        self._partition.unlink()


class Networked(HandRun):
    """The same with a network of its own between the learner and the rest: two interfaces, of which one goes down."""

    def __init__(self, directory: pathlib.Path, opened: contextlib.ExitStack, backend: str):
        super().__init__(directory, opened, 'dqn_cartpole', BINDINGS)
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


@pytest.mark.parametrize('job', ['train', 'collect', 'valkey'])
def test_a_partition_that_heals_is_survived(tmp_path, promise, job):
    with contextlib.ExitStack() as opened:
        secs = _divide_for_a_while(Proxied(tmp_path, job, opened))
    whom = 'all jobs and a given Valkey server' if job == 'valkey' else f'{job} and the replay server'
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


@pytest.mark.parametrize('job', ['train', 'collect', 'valkey'])
def test_a_network_with_delay_and_lost_connections_is_survived(tmp_path, promise, job):
    with contextlib.ExitStack() as opened:
        run = Proxied(tmp_path, job, opened, 0.05, 0.005)
        secs = run.progress(1_000) + run.progress(1_000)
        assert [process.poll() for process in run.jobs.values()] == [None] * 3
    whose = 'of a given Valkey server' if job == 'valkey' else f'of {job}'
    fault = f'50 ms of delay, and one connection {whose} cut for every 200 pieces of data'
    promise(fault, 'nothing', f'2,000 train steps within {secs:.0f} s')


def test_a_given_valkey_server_that_is_killed_comes_back_with_what_it_persisted(tmp_path, promise):
    with contextlib.ExitStack() as opened:
        run = HandRun(tmp_path, opened, 'dqn_cartpole', BINDINGS)
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
