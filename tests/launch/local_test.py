"""Complete runs of small real processes: how they end, and what they print and leave behind."""

import io
import json
import os
import pathlib
import pty
import signal
import socket
import subprocess
import sys
import threading

import pytest

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
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch import local


def test_run_ends_when_its_jobs_are_done(run, run_dir):
    others_run = ['await=status/replay_server.json', 'await=status/collect_0.json']
    code, out, err = run(replay_server=RUN, train=others_run, evaluate=['done'], collect_0=RUN, collect_1=[RUNNING])
    assert (code, err) == (0, '')
    assert stopped(run_dir) == ['collect_0', 'replay_server']
    assert read_json(run_dir.status('launch'))['state'] == 'finished'
    result, *where = out.splitlines()[-6:]
    assert result.endswith(
        'The run is done: num_train_steps 1000; train step 1,000, 4,321 env steps, 1 min 15 s; '
        'greedy mean return 487.2 over 20 episodes.'
    )
    for line, path in zip(where[:4], ['learning_curve.png', 'summaries', 'train/checkpoints', 'policies'], strict=True):
        assert str(run_dir.root / path) in line
    assert 'tensorboard.main --logdir=' in where[1]
    assert 'policies/greedy_policy/900' in where[3]
    commands = run_dir.commands
    assert str(commands) in where[4]
    assert [line.split()[3] for line in commands.read_text().splitlines()[1:]] == [
        'replay_server',
        'train',
        'evaluate',
        'collect_0',
        'collect_1',
    ]


def test_appends_to_logs(run, run_dir):
    jobs = {'replay_server': RUN, 'evaluate': ['done']}
    run(train=['say=first'], **jobs)
    run_dir.done.unlink()
    run(train=['say=second'], **jobs)
    lines = run_dir.log('train').read_text().splitlines()
    assert [line for line in lines if not line.startswith('=====')] == ['first', 'second']
    assert [line.startswith('=====') for line in lines] == [True, False, True, False]
    assert 'say=second' in lines[2]


def test_lines_are_objects_of_json_where_that_is_asked_for(run_dir, monkeypatch, capsys):
    monkeypatch.setenv('TFLEARN_LOG_FORMAT', 'json')
    error = json.dumps({'message': 'tflearn-train: error: got a; need b; do c'})
    monkeypatch.setattr(sys, 'stdout', io.StringIO())
    code = local.run(topology(run_dir, train=[f'say={error}', 'exit=2'], replay_server=RUN), run_dir)
    lines = [json.loads(line) for line in sys.stdout.getvalue().splitlines()]
    assert code == 2 and lines[0]['message'].startswith('Run in ') and lines[0]['job'] == 'launch'
    assert capsys.readouterr().err == 'tflearn-train: error: got a; need b; do c\n', (
        "that program's stderr is as it was"
    )
    for job in ('launch', 'train'):
        header = json.loads(run_dir.log(job).read_text().splitlines()[0])
        assert header['job'] == job and header['message'].startswith('===== ')


def test_a_full_disk_does_not_end_the_launch(run, run_dir):
    run_dir.logs.mkdir(parents=True)
    run_dir.log('launch').symlink_to('/dev/full')
    code, out, err = run(
        train=['await=second_life'],
        evaluate=['await=second_life', 'done'],
        collect_0=['once=exit=5', 'write=second_life', WAIT],
    )
    assert (code, err) == (0, '')
    assert 'collect_0 ended with exit code 5' in out


def test_fails_without_done_file(run, run_dir):
    code, _, err = run(train=[], evaluate=[])
    assert code == 1
    assert read_json(run_dir.status('launch'))['state'] == 'failed'
    assert err == f'tflearn-launch: error: all jobs ended, but none wrote {run_dir.done}\n'


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_jobs_and_servers_last(run_dir, number):
    run_dir.checkpoints.mkdir(parents=True)
    (run_dir.checkpoints / 'checkpoint').touch()
    jobs = topology(run_dir, replay_server=RUN, train=RUN, evaluate=RUN, collect_0=[RUNNING, 'child', WAIT])
    with launched(run_dir, jobs) as process:
        alive = pids(run_dir, 'replay_server', 'train', 'evaluate', 'collect_0')
        alive.append(int(wait_for(lambda: child_of(run_dir, 'collect_0'), 'the child')))
        process.send_signal(number)
        code, out, err = ended(process)
    assert (code, err) == (128 + number, '')
    *jobs, server = stopped(run_dir)
    assert (sorted(jobs), server) == (['collect_0', 'evaluate', 'train'], 'replay_server')
    assert read_json(run_dir.status('launch'))['state'] == 'stopped'
    assert [gone(pid) for pid in alive] == [True] * 5
    last = out.splitlines()[-1]
    assert last.startswith(f'The run was stopped by {number.name}; what it learned is in {run_dir.checkpoints}.')
    assert 'same command' in last


def child_of(run_dir: RunDir, job: str) -> str:
    path = run_dir.root / f'child_of_{job}'
    return path.read_text() if path.exists() else ''


def test_a_second_signal_kills_at_once(run_dir):
    jobs = topology(run_dir, train=['stubborn', *RUN], evaluate=['stubborn', *RUN])
    with launched(run_dir, jobs) as process:
        alive = pids(run_dir, 'train', 'evaluate')
        process.send_signal(signal.SIGINT)
        wait_for(lambda: 'stopping train' in run_dir.log('launch').read_text(), 'the beginning of the stop')
        threading.Event().wait(1.0)  # Earlier it would be the same signal, sent twice.
        process.send_signal(signal.SIGINT)
        code, out, _ = ended(process)
    assert code == 130
    assert [gone(pid) for pid in alive] == [True, True]
    assert 'train killed' in out
    assert 'it had not learned anything yet' in out


def test_a_killed_launch_leaves_no_process(run_dir):
    jobs = topology(run_dir, train=['stubborn', *RUN], evaluate=[RUNNING, 'child', WAIT])
    with launched(run_dir, jobs, stop_timeout_secs=0.5) as process:
        alive = pids(run_dir, 'train', 'evaluate')
        alive.append(int(wait_for(lambda: child_of(run_dir, 'evaluate'), 'the child')))
        process.kill()
        process.wait(timeout=DEADLINE_SECS)
        wait_for(lambda: all(gone(pid) for pid in alive), 'the end of the jobs')
    assert stopped(run_dir) == ['evaluate']


def test_jobs_stop_cleanly_if_launch_is_killed_together_with_its_reaper(run_dir):
    with launched(run_dir, topology(run_dir, train=RUN, evaluate=RUN)) as process:
        alive = pids(run_dir, 'train', 'evaluate')
        kill_all_but(alive, process)
        wait_for(lambda: all(map(gone, alive)), 'the end of the jobs')
    assert sorted(stopped(run_dir)) == ['evaluate', 'train']


def test_signals_within_a_second_are_one(run_dir):
    """So a launch gets them that tflearn seeds started: from the system and from a reaper, if that was killed."""
    jobs = topology(run_dir, train=['stubborn', *RUN], evaluate=RUN)
    with launched(run_dir, jobs, stop_timeout_secs=0.5) as process:
        alive = pids(run_dir, 'train', 'evaluate')
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: 'stopping train' in run_dir.log('launch').read_text(), 'the beginning of the stop')
        process.send_signal(signal.SIGTERM)
        code, out, _ = ended(process)
    assert code == 143
    assert [gone(pid) for pid in alive] == [True, True]
    assert 'train did not stop within 0.5 s: killed' in out, 'it had its time'
    assert stopped(run_dir) == ['evaluate']


def test_refuses_a_second_launch(run_dir, run):
    with launched(run_dir, topology(run_dir, train=RUN, evaluate=RUN)) as process:
        pids(run_dir, 'train', 'evaluate')
        with pytest.raises(ValueError, match=f'which another launch .pid {process.pid}. uses'):
            run(train=[], evaluate=['done'])
        process.send_signal(signal.SIGTERM)
        ended(process)
    code, _, _ = run(train=[], evaluate=['done'])
    assert code == 0


def test_reports_a_finished_run(run, run_dir):
    run(train=[], evaluate=['done'])
    before = run_dir.log('launch').read_text()
    code, out, err = run(train=['exit=1'], evaluate=['exit=1'])
    assert (code, err) == (0, '')
    assert out.startswith('This run is already finished: num_train_steps 1000; train step 1,000, 4,321 env steps')
    assert str(run_dir.root / 'policies/greedy_policy/900') in out
    assert out.count('\n') == 1
    assert run_dir.log('launch').read_text() == before


@pytest.fixture
def small_disk(tmp_path):
    """A directory on a disk of 256 KiB."""
    disk = tmp_path / 'disk'
    disk.mkdir()
    if os.geteuid() or subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=256k', 'tmpfs', str(disk)]).returncode:
        pytest.skip('a file system of its own needs root')
    yield disk
    subprocess.run(['umount', '-l', str(disk)], check=True)


@pytest.mark.parametrize('code', [1, 2])
def test_a_run_whose_disk_is_full_ends_with_one_line_and_status(small_disk, capsys, code):
    """Whether a job met a file that it could not write, or knew the reason: its log is on that disk."""
    run_dir, out = RunDir(small_disk / 'run'), io.StringIO()
    jobs = topology(run_dir, train=[RUNNING, 'fill', f'exit={code}'])
    assert local.run(jobs, run_dir, out=out) == 2, out.getvalue()
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(
        f'tflearn-launch: error: got a full disk of {run_dir.root}, where train ended with exit code'
    )
    assert line.endswith('; need room; make room, and start the same command again')


def test_refuses_an_unwritable_root(tmp_path):
    (tmp_path / 'file').touch()
    run_dir = RunDir(tmp_path / 'file' / 'run')
    with pytest.raises(ValueError, match='cannot be written to'):
        local.run(topology(run_dir, train=[]), run_dir, out=io.StringIO())


def test_plain_view_without_a_terminal(run_dir):
    metrics = {'state': 'running', 'train_step': 500, 'num_train_steps': 1000, 'train_steps_per_sec': 12.5}
    old = {'state': 'running', 'replay_size': 77777, 'time': 1.0}
    run_dir.status('replay_server').parent.mkdir(parents=True)
    run_dir.status('replay_server').write_text(json.dumps(old))
    jobs = topology(
        run_dir,
        replay_server=[WAIT],
        train=[
            'status={"state": "waiting for a first item"}',
            'await=waited',
            f'status={json.dumps(metrics)}',
            'await=shown',
        ],
        evaluate=['await=shown', 'done'],
    )
    with launched(run_dir, jobs, line_interval_secs=0.5) as process:
        shown = [process.stdout.readline()]
        assert shown[0].startswith('Run in ')
        show_until('train: waiting for a first item', process, shown)
        (run_dir.root / 'waited').touch()
        show_until('train: running', process, shown)
        for _ in range(2):  # The second comes after the interval.
            show_until('train steps 500 of 1,000 at 12.5/s', process, shown)
            assert 'replay_server, evaluate: starting (loads its libraries)' in shown[-1]
        (run_dir.root / 'shown').touch()
        shown += process.stdout
        assert process.wait(timeout=DEADLINE_SECS) == 0
    assert '77,777' not in ''.join(shown)


def show_until(text: str, launch: subprocess.Popen, shown: list[str]) -> None:
    """Adds lines to `shown` up to one with `text`. The deadlines of the jobs end the wait."""
    for line in iter(launch.stdout.readline, ''):
        shown.append(line)
        if text in line:
            return
    pytest.fail(f'no {text!r} in {shown}')


def test_jobs_inherit_the_environment_and_write_at_once(run, run_dir, monkeypatch):
    monkeypatch.setenv('OF_THE_USER', '7')
    run(train=['env=OF_THE_USER', 'env=PYTHONUNBUFFERED'], evaluate=['done'])
    assert run_dir.log('train').read_text().splitlines()[1:] == ['OF_THE_USER=7', 'PYTHONUNBUFFERED=1']


def test_live_view_in_a_terminal(run_dir, monkeypatch):
    monkeypatch.setenv('TERM', 'xterm-256color')
    metrics = {'state': 'running', 'train_step': 500, 'num_train_steps': 1000}
    jobs = topology(run_dir, train=[f'status={json.dumps(metrics)}', 'await=shown'], evaluate=['await=shown', 'done'])
    ours, theirs = pty.openpty()
    with launched(run_dir, jobs, stdout=theirs) as process:
        os.close(theirs)
        shown = b''
        while chunk := read(ours):
            shown += chunk
            if b'500 of 1,000' in shown:
                (run_dir.root / 'shown').touch()
        assert process.wait(timeout=DEADLINE_SECS) == 0
    os.close(ours)
    text = shown.decode()
    assert '━' in text
    assert '500 of 1,000' in text
    assert '● \x1b[0mrunning' in text
    assert 'The run is done' in text.splitlines()[-6]


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # So Linux reports the end of a terminal.
        return b''


def test_closed_output_does_not_end_the_run(run_dir):
    reader, writer = os.pipe()
    jobs = topology(run_dir, train=[RUNNING, 'await=gone', 'wait=0.5'], evaluate=['await=gone', 'wait=0.5', 'done'])
    with launched(run_dir, jobs, stdout=writer) as process:
        os.close(writer)
        pids(run_dir, 'train')
        os.close(reader)
        (run_dir.root / 'gone').touch()
        process.wait(timeout=DEADLINE_SECS)
        assert process.returncode == 0
    assert read_json(run_dir.done)


def test_free_ports_are_not_for_outgoing_connections():
    first = int(pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range').read_text().split()[0])
    ports = {local.free_port() for _ in range(20)}
    assert len(ports) > 1
    assert all(1024 < port < first for port in ports)


def test_a_port_that_is_listened_on_is_not_free(monkeypatch):
    with socket.socket() as taken:
        taken.bind(('', 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(local, '_FIRST_PORT', port)
        monkeypatch.setattr(local, '_first_outgoing_port', lambda: port + 2)
        assert {local.free_port() for _ in range(5)} == {port + 1}


def test_jobs_of_a_launch_that_was_killed_with_its_reaper_are_named(tmp_path, capsys):
    """Nobody ends them, and the next launch's own would wait for them, or be refused."""
    run_dir = RunDir(tmp_path)
    status = f'Status(RunDir({str(tmp_path)!r}).status("train")).update("running")'
    imports = 'from tflearn.files.run_dir import RunDir; from tflearn.files.status import Status'
    code = f'{imports}; {status}; print(flush=True); input()'
    command = [sys.executable, '-c', code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        job.stdout.readline()
        local._warn_of_jobs(run_dir)
        assert f'already: train (pid {job.pid}); if they are of a launch that was killed, end them: kill {job.pid}' in (
            capsys.readouterr().err
        )
        job.communicate(b'\n', timeout=20)
    local._warn_of_jobs(run_dir)
    assert capsys.readouterr().err == ''
