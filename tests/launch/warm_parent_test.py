"""Jobs as forks of a process that has loaded their libraries: like processes of their own, also when it dies."""

import os
import pathlib
import signal
import sys
import tempfile

import pytest

from tests.launch.fake_run import DEADLINE_SECS, RUN, RUNNING, WAIT, ended, gone, launched, pids, topology, wait_for
from tflearn.files.run_dir import read_json
from tflearn.launch.warm_parent import WarmParent

_SERVE = """
import os, pathlib, runpy, socket, sys
from tflearn.launch import warm_parent
pathlib.Path('{pid}').write_text(str(os.getpid()))
module, *sys.argv[1:] = warm_parent.serve(socket.socket(fileno=int(sys.argv[1])))
runpy.run_module(module, run_name='__main__', alter_sys=True)
"""


@pytest.fixture
def pid_file(tmp_path):
    return tmp_path / 'pid_of_the_warm_parent'


@pytest.fixture
def command(pid_file):
    """The program of a warm parent that loads nothing."""
    return (sys.executable, '-c', _SERVE.format(pid=pid_file))


def test_jobs_run_restart_and_fail_as_processes_of_their_own(run, run_dir, command, pid_file):
    code, out, err = run(
        warm_parent=command,
        replay_server=RUN,
        train=[RUNNING, 'await=second_life', 'env=PYTHONUNBUFFERED', 'say=trained'],
        evaluate=['await=second_life', 'done'],
        collect_0=['once=exit=5', 'write=second_life', RUNNING, WAIT],
    )
    assert (code, err) == (0, '')
    assert 'collect_0 ended with exit code 5; failed start 1 of 3' in out
    assert run_dir.log('train').read_text().splitlines()[1:] == ['PYTHONUNBUFFERED=1', 'trained']
    assert gone(int(pid_file.read_text()))
    assert read_json(run_dir.status('train'))['pid'] != read_json(run_dir.status('replay_server'))['pid']


def test_a_job_that_is_killed_is_named_with_its_signal(run_dir, command):
    jobs = topology(run_dir, warm_parent=command, train=[RUNNING, 'child', WAIT], evaluate=RUN)
    with launched(run_dir, jobs) as process:
        train, _ = pids(run_dir, 'train', 'evaluate')
        child = int(wait_for(lambda: _text(run_dir.root / 'child_of_train'), 'the child'))
        os.kill(train, signal.SIGKILL)
        wait_for(lambda: pids(run_dir, 'train') != [train], 'its second life')
        process.send_signal(signal.SIGTERM)
        _, out, _ = ended(process)
    assert 'train was ended by SIGKILL' in out
    assert gone(child)


def test_ctrl_c_stops_the_jobs_in_order(run_dir, command):
    jobs = topology(run_dir, warm_parent=command, replay_server=RUN, train=RUN, evaluate=RUN)
    with launched(run_dir, jobs) as process:
        alive = pids(run_dir, 'replay_server', 'train', 'evaluate')
        process.send_signal(signal.SIGINT)
        code, _, _ = ended(process)
    assert code == 130
    assert (run_dir.root / 'stopped').read_text().split() == ['train', 'evaluate', 'replay_server']
    assert all(gone(pid) for pid in alive)


@pytest.mark.parametrize('program', ['raise SystemExit(1)', 'import a_library_that_is_not_there'])
def test_jobs_start_by_themselves_if_it_cannot(run, program):
    code, _, err = run(warm_parent=(sys.executable, '-c', program), train=[], evaluate=['done'])
    assert (code, err) == (0, '')


def test_ctrl_c_while_it_loads_ends_the_run_at_once(run_dir):
    never_ready = (sys.executable, '-c', f'import threading; threading.Event().wait({DEADLINE_SECS})')
    with launched(run_dir, topology(run_dir, warm_parent=never_ready, train=RUN)) as process:
        wait_for(lambda: read_json(run_dir.status('launch')), 'the launch')
        process.send_signal(signal.SIGINT)
        code, _, _ = ended(process)
    assert code == 130
    assert not run_dir.log('train').exists()


def test_jobs_survive_its_death_and_their_own_is_noticed(run_dir, command, pid_file):
    jobs = topology(run_dir, warm_parent=command, train=RUN, evaluate=RUN, collect_0=RUN)
    with launched(run_dir, jobs) as process:
        _, _, collector = pids(run_dir, 'train', 'evaluate', 'collect_0')
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        os.kill(collector, signal.SIGKILL)
        # The second collector is no fork: it loads its libraries by itself.
        wait_for(lambda: read_json(run_dir.status('collect_0'))['pid'] != collector, 'the restart')
        process.send_signal(signal.SIGTERM)
        code, out, _ = ended(process)
    assert code == 143
    assert 'collect_0 ended with exit code 75; ' in out, 'how it ended is not known any more'
    assert (run_dir.root / 'stopped').read_text().split() == ['train', 'evaluate', 'collect_0']


def test_it_ends_with_the_launcher(run_dir, command, pid_file):
    with launched(run_dir, topology(run_dir, warm_parent=command, train=RUN), stop_timeout_secs=0.5) as process:
        train, parent = *pids(run_dir, 'train'), int(pid_file.read_text())
        process.kill()
        process.wait(timeout=DEADLINE_SECS)
        wait_for(lambda: gone(parent) and gone(train), 'the end of both')


def test_forks_of_the_real_program_share_libraries_but_no_random_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([os.environ['PYTHONPATH'], str(tmp_path)]))
    (tmp_path / 'draws.py').write_text(
        'import os, random, sys\n'
        'assert "tensorflow" in sys.modules and "tflearn.jobs.train" in sys.modules\n'
        'import numpy, tensorflow\n'
        'numbers = numpy.random.rand(), random.random(), tensorflow.random.uniform([]).numpy()\n'
        'open(sys.argv[1], "w").write(" ".join(map(str, numbers)))\n'
    )
    with tempfile.TemporaryFile('w+') as log:
        parent = WarmParent((sys.executable, '-m', 'scripts.warm_parent'), log)
        try:
            parent.wait_until_ready(lambda: False)
            draws = []
            for name in ('first', 'second'):
                process = parent.start((sys.executable, '-m', 'draws', str(tmp_path / name)), log.fileno())
                assert process is not None
                wait_for(lambda process=process: process.poll() is not None, 'the end of the job')
                log.seek(0)
                assert process.returncode == 0, log.read()
                draws += (tmp_path / name).read_text().split()
        finally:
            parent.close()
    assert len(set(draws)) == 6


def _text(path: pathlib.Path) -> str:
    return path.read_text() if path.exists() else ''


_SAME_NUMBER = """
import json, os, socket, sys
connection = socket.socket(fileno=int(sys.argv[1]))
say = lambda **message: connection.send(json.dumps(message).encode())
say(ready=1)
connection.recv(10_000)
say(started=os.getpid())
say(ended=os.getpid(), exit_code=5)
connection.recv(10_000)
say(started=os.getpid())
connection.recv(10_000)
"""


def test_a_job_with_the_number_of_a_former_one_has_not_ended(tmp_path):
    """Linux gives process ids again once it has given them all, at 32,768 on small machines."""
    command = [sys.executable, '-m', 'any']
    with open(tmp_path / 'log', 'w', encoding='utf-8') as log:
        parent = WarmParent([sys.executable, '-c', _SAME_NUMBER], log)
        try:
            parent.wait_until_ready(lambda: False)
            former = parent.start(command, log.fileno())
            wait_for(lambda: former.poll() is not None, 'the end of the former job')
            job = parent.start(command, log.fileno())
            assert (former.pid, former.returncode) == (job.pid, 5)
            assert job.poll() is None
        finally:
            parent.close()
