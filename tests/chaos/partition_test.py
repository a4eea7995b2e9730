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
from tflearn.launch.local import free_port

pytestmark = pytest.mark.chaos

PARTITION_SECS = 30.0
END_SECS = 120.0
BINDINGS = ('evaluate.evaluate.target_return=None', 'train.StopConditions.num_train_steps=1_000_000')
_PROXY = pathlib.Path(__file__).with_name('proxy.py')


class Proxied(HandRun):
    """A replay server, a learner and a collector by hand, with default timeouts; one reaches the server by a proxy."""

    def __init__(self, directory: pathlib.Path, job: str, opened: contextlib.ExitStack, *settings: float):
        super().__init__(directory, opened, 'dqn_cartpole', BINDINGS)
        self._partition, proxy = directory / 'partition', free_port()
        arguments = [proxy, self.port, self._partition, *settings]
        self.run([sys.executable, str(_PROXY), *map(str, arguments)], 'proxy')
        names = ('replay_server', 'train', 'collect')
        self.jobs = {name: self.start(name, address=f'localhost:{proxy}' if name == job else None) for name in names}

    def divide(self) -> None:
        self._partition.touch()

    def join(self) -> None:
        self._partition.unlink()


class Networked(HandRun):
    """The same with a network of its own between the learner and the rest: two interfaces, of which one goes down."""

    def __init__(self, directory: pathlib.Path, opened: contextlib.ExitStack):
        super().__init__(directory, opened, 'dqn_cartpole', BINDINGS)
        self._here, there, space = f'tfl{os.getpid()}a', f'tfl{os.getpid()}b', f'tflearn_{os.getpid()}'
        if os.geteuid() or not self._ip('netns', 'add', space):
            pytest.skip('a network of its own needs root')
        opened.callback(self._ip, 'netns', 'del', space)
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
        address, prefix = f'10.213.7.1:{self.port}', ('ip', 'netns', 'exec', space)
        self.jobs = {name: self.start(name, address=address) for name in ('replay_server', 'collect')}
        self.jobs['train'] = self.start('train', address=address, prefix=prefix)

    def divide(self) -> None:
        assert self._ip('link', 'set', self._here, 'down')

    def join(self) -> None:
        assert self._ip('link', 'set', self._here, 'up')

    def _ip(self, *arguments: str) -> bool:
        return shutil.which('ip') is not None and subprocess.run(['ip', *arguments]).returncode == 0


@pytest.mark.parametrize('job', ['train', 'collect'])
def test_a_partition_that_heals_is_survived(tmp_path, promise, job):
    with contextlib.ExitStack() as opened:
        secs = _divide_for_a_while(Proxied(tmp_path, job, opened))
    promise(f'no network between {job} and the replay server for {PARTITION_SECS:.0f} s', 'nothing', secs)


def test_a_network_that_was_down_is_survived(tmp_path, promise):
    with contextlib.ExitStack() as opened:
        secs = _divide_for_a_while(Networked(tmp_path, opened))
    promise(f'the network interface of train is down for {PARTITION_SECS:.0f} s', 'nothing', secs)


def test_an_endless_partition_ends_learner_and_replay_server(tmp_path, promise):
    with contextlib.ExitStack() as opened:
        secs = _divide_for_ever(Proxied(tmp_path, 'train', opened))
    fault = 'no network between train and the replay server, without end; default settings'
    promise(fault, 'nothing', f'both end within {secs:.0f} s, with exit status 75')


def test_a_network_that_stays_down_ends_learner_and_replay_server(tmp_path, promise):
    with contextlib.ExitStack() as opened:
        secs = _divide_for_ever(Networked(tmp_path, opened))
    fault = 'the network interface of train is down, without end; default settings'
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


@pytest.mark.parametrize('job', ['train', 'collect'])
def test_a_network_with_delay_and_lost_connections_is_survived(tmp_path, promise, job):
    with contextlib.ExitStack() as opened:
        run = Proxied(tmp_path, job, opened, 0.05, 0.005)
        secs = run.progress(1_000) + run.progress(1_000)
        assert [process.poll() for process in run.jobs.values()] == [None] * 3
    fault = f'50 ms of delay, and one connection of {job} cut for every 200 pieces of data'
    promise(fault, 'nothing', f'2,000 train steps within {secs:.0f} s')


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
