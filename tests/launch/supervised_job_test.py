"""One job under a scheduler, as a real process of its own supervisor: restarts, addresses, how it and the run end."""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

import tflearn
from tests.launch.fake_run import (
    DEADLINE_SECS,
    RUN,
    RUNNING,
    WAIT,
    ended,
    gone,
    kill_all_but,
    launched,
    pids,
    stopped,
    topology,
    wait_for,
)
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.launch import local, reports, warm_parent
from tflearn.launch.topology import COORDINATOR_ADDRESS, OWN_ADDRESS
from tflearn.launch.warm_parent import WarmParent

_SUPERVISE = """
import sys
from tflearn.files.run_dir import RunDir
from tflearn.launch import supervised_job
sys.exit(supervised_job.run(RunDir(sys.argv[1]), sys.argv[2]))
"""
SAY_ADDRESS = f'say=the server is at {COORDINATOR_ADDRESS}'


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path / 'run')


@contextlib.contextmanager
def supervised(run_dir, name, **jobs):
    """A supervisor of one of these fake jobs."""
    run_dir.make()
    dataclasses.replace(topology(run_dir, **jobs), stop_timeout_secs=5.0).save(run_dir)
    environment = {**os.environ, 'PYTHONPATH': os.path.dirname(os.path.dirname(tflearn.__file__))}
    process = subprocess.Popen(
        [sys.executable, '-c', _SUPERVISE, str(run_dir.root), name],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def end(process):
    out, _ = process.communicate(timeout=DEADLINE_SECS)
    return process.returncode, out


def publish(run_dir, address):
    write_json(run_dir.address('coordinator'), {'address': address})


def text(path):
    return path.read_text() if path.exists() else ''


def test_a_job_is_restarted_and_ends(run_dir):
    with supervised(run_dir, 'train', train=[RUNNING, 'wait=1', 'once=exit=75', 'say=second life']) as process:
        publish(run_dir, 'there:1')
        code, out = end(process)
    assert code == 0, out
    assert 'train ended with exit code 75; restart 1 of 20' in out
    assert 'second life' in run_dir.log('train').read_text()
    assert not run_dir.failure.exists()


def test_a_server_publishes_its_address_and_stops_when_the_run_is_done(run_dir):
    with supervised(run_dir, 'replay_server', replay_server=[SAY_ADDRESS, *RUN], train=[]) as process:
        address = wait_for(lambda: read_json(run_dir.address('coordinator')), 'the address')['address']
        host, _, port = address.rpartition(':')
        assert host and 0 < int(port) < 1 << 16
        pids(run_dir, 'replay_server')
        write_json(run_dir.done, {'reason': 'enough'})
        code, out = end(process)
    assert code == 0, out
    assert f'the server is at {address}\n' in run_dir.log('replay_server').read_text()
    assert (run_dir.root / 'stopped').read_text() == 'replay_server\n'
    assert not run_dir.address('coordinator').exists()


def test_a_job_waits_for_the_address_and_follows_it(run_dir):
    log = run_dir.log('collect_0')
    with supervised(run_dir, 'collect_0', train=[], collect_0=[SAY_ADDRESS, *RUN]) as process:
        wait_for(lambda: 'waiting for the address of the coordinator' in process.stdout.readline(), 'a line')
        publish(run_dir, 'first:1')
        wait_for(lambda: '\nthe server is at first:1\n' in text(log), 'the first address')
        pids(run_dir, 'collect_0')
        run_dir.address('coordinator').unlink()  # it is away for a while: nothing follows
        publish(run_dir, 'second:2')
        wait_for(lambda: '\nthe server is at second:2\n' in text(log), 'the second address')
        process.send_signal(signal.SIGTERM)
        code, out = end(process)
    assert code == 128 + signal.SIGTERM, out
    assert (run_dir.root / 'stopped').read_text() == 'collect_0\n' * 2, 'stopped cleanly for the new address'
    assert 'restart' not in out, 'that is no death'


def test_a_shard_has_an_address_of_its_own_and_follows_a_coordinator_alone(run_dir):
    say = f'say=at {COORDINATOR_ADDRESS}, own {OWN_ADDRESS}'
    jobs = {'coordinator': [say, *RUN], 'replay_server': RUN, 'replay_server_1': [say, *RUN], 'train': []}
    with supervised(run_dir, 'replay_server_1', **jobs), supervised(run_dir, 'coordinator', **jobs):
        where = wait_for(lambda: read_json(run_dir.address('coordinator')), 'its address')['address']
        log = run_dir.log('replay_server_1')
        wait_for(lambda: f'\nat {where}, own ' in text(log), 'both addresses')
        own = text(log).partition(f'\nat {where}, own ')[2].split()[0]
        assert own != where and own.rpartition(':')[0] == where.rpartition(':')[0]
        pids(run_dir, 'replay_server_1')
        publish(run_dir, 'second:2')
        wait_for(lambda: f'\nat second:2, own {own}\n' in text(log), 'the new address, and the same own one')


def test_a_signal_ends_a_job_that_waits(run_dir):
    with supervised(run_dir, 'train', train=RUN) as process:
        wait_for(lambda: process.stdout.readline().endswith('waiting for the address of the coordinator\n'), 'a line')
        process.send_signal(signal.SIGTERM)
        assert end(process)[0] == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ('name', 'ends_the_run'), [('train', True), ('collect_0', False)], ids=['train fails', 'a collector fails']
)
def test_which_failure_ends_the_run(run_dir, name, ends_the_run):
    jobs = {'train': ['exit=1'], 'collect_0': ['exit=1'], 'replay_server': RUN}
    with supervised(run_dir, 'replay_server', **jobs) as server:
        wait_for(lambda: read_json(run_dir.address('coordinator')), 'the address')
        with supervised(run_dir, name, **jobs) as process:
            code, out = end(process)
        assert code == 1, out
        assert run_dir.failure.exists() == ends_the_run
        if ends_the_run:
            code, out = end(server)
            assert code == 1
            assert 'the run has failed: train ended with exit code 1' in out
        else:
            assert 'restart' in out or 'failed start 3 of 3' in out
            assert server.poll() is None


def test_a_users_error_ends_the_run(run_dir):
    message = 'tflearn-evaluate: error: got a; need b; do c'
    with supervised(run_dir, 'evaluate', train=[], evaluate=[f'say={message}', 'exit=2']) as process:
        publish(run_dir, 'there:1')
        assert end(process)[0] == 2
    assert read_json(run_dir.failure) == {'job': 'evaluate', 'message': message}


def test_an_evaluation_that_cannot_start_is_tried_again_after_training(run_dir):
    steps = ['once=exit=1', f'await={run_dir.train_result.relative_to(run_dir.root)}', 'exit=1']
    with supervised(run_dir, 'evaluate', train=[], evaluate=steps) as process:
        publish(run_dir, 'there:1')
        wait_for(lambda: 'failed start 1 of 3' in process.stdout.readline(), 'its first failure')
        write_json(run_dir.train_result, {})
        code, out = end(process)
    assert code == 1, out
    assert run_dir.failure.exists(), 'the run cannot end without it'


def test_refuses_an_unknown_job(run_dir):
    with supervised(run_dir, 'trian', train=[RUNNING, WAIT]) as process:
        code, out = end(process)
    assert code == 1 and 'got --job=trian; need one of train' in out


# Jobs as forks of a process that has loaded their libraries: like processes of their own, also when it dies.

_SERVE = """
import os, pathlib, runpy, socket, sys
from tflearn.launch import local, reports, warm_parent
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
    assert sorted(stopped(run_dir)[:2]) == ['evaluate', 'train'] and stopped(run_dir)[2:] == ['replay_server']
    assert all(gone(pid) for pid in alive)


@pytest.mark.parametrize('program', ['raise SystemExit(1)', 'import a_library_that_is_not_there'])
def test_jobs_start_by_themselves_if_it_cannot(run, program):
    code, _, err = run(warm_parent=(sys.executable, '-c', program), train=[], evaluate=['done'])
    assert (code, err) == (0, '')


def test_one_that_was_stopped_while_it_loads_is_named_before_jobs_start_by_themselves(run, monkeypatch):
    monkeypatch.setattr(warm_parent, '_REPLY_TIMEOUT_SECS', 0.3)
    monkeypatch.setattr(warm_parent, '_READY_TIMEOUT_SECS', 1.0)
    program = (sys.executable, '-c', 'import os, signal; os.kill(os.getpid(), signal.SIGSTOP)')
    code, _, err = run(warm_parent=program, train=[], evaluate=['done'])
    first, second = err.splitlines()
    assert code == 0 and re.search(r'\(pid \d+\) for 0.3\d* s; it loads .* or was stopped; jobs wait', first), err
    assert second.endswith('for 1 s; jobs load their libraries by themselves from now on')


def test_jobs_end_with_it_and_start_again_by_themselves(run_dir, command, pid_file):
    names = ['train', 'evaluate', 'collect_0']
    jobs = topology(run_dir, warm_parent=command, **dict.fromkeys(names, RUN))
    with launched(run_dir, jobs) as process:
        first = pids(run_dir, *names)
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        # The second ones are no forks: they load their libraries by themselves.
        wait_for(lambda: not set(pids(run_dir, *names)) & set(first), 'the restarts')
        assert sorted(stopped(run_dir)) == sorted(names), 'each had time to save'
        process.send_signal(signal.SIGTERM)
        code, out, _ = ended(process)
    assert code == 143
    for name in names:
        assert f'{name} ended with exit code 75; ' in out, 'how it ended is not known any more'
    assert sorted(stopped(run_dir)[3:]) == sorted(names)


def test_a_silent_job_whose_end_it_does_not_say_is_named_once(run_dir, command, pid_file, monkeypatch):
    monkeypatch.setattr(reports, 'SILENT_SECS', 0.2)
    named = 'train has not reported for'
    jobs = topology(run_dir, warm_parent=command, train=[RUNNING, 'once=await=never', 'done'])
    counts = []

    def stop_it() -> None:
        pids(run_dir, 'train')
        parent = int(pid_file.read_text())
        os.kill(parent, signal.SIGSTOP)
        wait_for(lambda: named in run_dir.log('launch').read_text(), 'the end of its patience')
        threading.Event().wait(3.0)  # It would be named every second and a half.
        counts.append(run_dir.log('launch').read_text().count(named))
        os.kill(parent, signal.SIGCONT)

    stopping = threading.Thread(target=stop_it)
    stopping.start()
    jobs = dataclasses.replace(jobs, silent_timeout_secs=1.0)
    with local.ready_warm_parent(jobs) as parent:
        code = local.run(jobs, run_dir, out=io.StringIO(), warm_parent=parent)
    stopping.join(DEADLINE_SECS)
    assert (code, counts) == (0, [1])


def test_jobs_go_on_without_one_that_was_stopped(run_dir, command, pid_file, monkeypatch, capsys):
    """It says nothing of the end of a job, and starts none: the run would wait forever."""
    monkeypatch.setattr(warm_parent, '_REPLY_TIMEOUT_SECS', 0.5)
    jobs = topology(run_dir, warm_parent=command, train=[RUNNING, 'once=await=never', 'done'])

    def stop_it() -> None:
        (train,) = pids(run_dir, 'train')
        os.kill(int(pid_file.read_text()), signal.SIGSTOP)
        os.kill(train, signal.SIGKILL)

    stopping = threading.Thread(target=stop_it)
    stopping.start()
    with local.ready_warm_parent(jobs) as parent:
        assert local.run(jobs, run_dir, out=io.StringIO(), warm_parent=parent) == 0
    stopping.join(DEADLINE_SECS)
    said = capsys.readouterr().err
    assert said.count('by themselves from now on') == 1  # a busy machine may be warned of before, once


def test_jobs_stop_cleanly_if_it_is_killed_together_with_launch_and_its_reaper(run_dir, command):
    jobs = topology(run_dir, warm_parent=command, replay_server=RUN, train=RUN, evaluate=RUN)
    with launched(run_dir, jobs) as process:
        alive = pids(run_dir, 'replay_server', 'train', 'evaluate')
        kill_all_but(alive, process)
        wait_for(lambda: all(map(gone, alive)), 'the end of the jobs')
    assert sorted(stopped(run_dir)) == ['evaluate', 'replay_server', 'train']


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


def test_a_slow_warm_parent_does_not_begin_a_job_too_late(tmp_path, command, pid_file, monkeypatch):
    begun, registered = tmp_path / 'begun', []
    (tmp_path / 'begins.py').write_text(f'open({str(begun)!r}, "a").write("x")')
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([os.environ['PYTHONPATH'], str(tmp_path)]))
    begins = [sys.executable, '-m', 'begins']
    with open(tmp_path / 'log', 'w', encoding='utf-8') as log:
        parent = WarmParent(command, log)
        try:
            parent.wait_until_ready(lambda: False)
            job = parent.start(begins, log.fileno(), registered.append)
            wait_for(lambda: job.poll() is not None, 'the end of the job')
            assert (job.returncode, begun.read_text(), registered) == (0, 'x', [job.pid])
            pid = int(pid_file.read_text())
            os.kill(pid, signal.SIGSTOP)
            monkeypatch.setattr(warm_parent, '_REPLY_TIMEOUT_SECS', 0.2)
            assert parent.start(begins, log.fileno(), registered.append) is None
            os.kill(pid, signal.SIGCONT)
            children = pathlib.Path(f'/proc/{pid}/task/{pid}/children')
            messages = parent._connection
            messages.settimeout(DEADLINE_SECS)
            late = [json.loads(messages.recv(10_000)) for _ in range(2)]
            assert [set(each) for each in late] == [{'started'}, {'ended', 'exit_code'}] and not children.read_text()
            assert (begun.read_text(), registered) == ('x', [job.pid]), 'the fork ended without beginning the job'
        finally:
            parent.close()


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
