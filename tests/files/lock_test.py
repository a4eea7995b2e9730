"""One owner of a run directory at a time: real processes that hold a lock, die, stop and come back."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from tflearn.files import lock
from tflearn.files.run_dir import RunDir

DEADLINE_SECS = 20.0
# A process that says `owner`, then checks its lock until a file named `end` is there, or the check fails.
OWNER = """
import pathlib, sys, threading, time
from tflearn.files import lock
lock.RENEW_SECS, lock.LOCK_SECS, lock._CHECK_SECS = 0.1, 1.0, 0.05
directory, machine = pathlib.Path(sys.argv[1]), sys.argv[2]
if machine:
    lock.machine = lambda: machine
end, pause = time.monotonic() + 30, threading.Event()
with lock.hold(directory / 'owners', 'train', threading.Event()) as held:
    print('owner', held.epoch, flush=True)
    while not (directory / 'end').exists() and time.monotonic() < end:
        try:
            held.check()
        except RuntimeError as error:
            print(error, flush=True)
            break
        pause.wait(0.02)
print('ended', flush=True)
"""


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    """A lock of a second."""
    monkeypatch.setattr(lock, 'RENEW_SECS', 0.1)
    monkeypatch.setattr(lock, 'LOCK_SECS', 1.0)
    monkeypatch.setattr(lock, '_CHECK_SECS', 0.05)
    monkeypatch.setattr(lock, '_POLL_SECS', 0.02)


@contextlib.contextmanager
def owner(directory, machine=''):
    """A process that owns the lock."""
    command = [sys.executable, '-c', OWNER, str(directory), machine]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith('owner')
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_SECS)


def hold(directory):
    return lock.hold(directory / 'owners', 'train', threading.Event())


@pytest.mark.parametrize('machine', ['', 'another one'])
def test_a_second_owner_is_refused_with_the_name_of_the_first(tmp_path, machine):
    with owner(tmp_path, machine) as first:
        message = rf'another train job works \(pid {first.pid} on .+, for \d+ s\); need one at a time'
        with pytest.raises(RuntimeError, match=message), hold(tmp_path):
            pass


def test_a_lock_that_was_released_is_free(tmp_path):
    for epoch in range(1, 8):
        start = time.monotonic()
        with hold(tmp_path) as held:
            assert held.epoch == epoch
            assert time.monotonic() - start < lock.LOCK_SECS
    assert len(list((tmp_path / 'owners').iterdir())) == 3, 'old files are removed'


def test_a_killed_owner_of_this_machine_is_replaced_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, 'LOCK_SECS', DEADLINE_SECS)
    with owner(tmp_path) as first:
        first.kill()
        first.wait(DEADLINE_SECS)
        start = time.monotonic()
        with hold(tmp_path) as held:
            assert held.epoch == 2
        assert time.monotonic() - start < DEADLINE_SECS / 2


def test_a_killed_owner_of_another_machine_is_replaced_after_the_lock(tmp_path):
    with owner(tmp_path, 'another one') as first:
        first.kill()
        first.wait(DEADLINE_SECS)
        start = time.monotonic()
        with hold(tmp_path) as held:
            assert held.epoch == 2
        assert time.monotonic() - start >= lock.LOCK_SECS


def test_an_owner_that_stood_still_finds_its_successor_and_writes_nothing_more(tmp_path):
    with owner(tmp_path) as first:
        first.send_signal(signal.SIGSTOP)
        with hold(tmp_path) as held:
            assert held.epoch == 2
            first.send_signal(signal.SIGCONT)
            assert 'got another train job (pid' in first.stdout.readline()
            assert first.stdout.readline() == 'ended\n'
            assert json.loads((tmp_path / 'owners' / 'train-000001.json').read_text()).get('released') is None
            held.check()


def test_another_process_with_the_number_of_the_owner_is_not_the_owner(tmp_path):
    with hold(tmp_path):
        pass
    path = tmp_path / 'owners' / 'train-000001.json'
    facts = json.loads(path.read_text())
    facts.pop('released')
    path.write_text(json.dumps(facts | {'started': '1', 'pid': os.getpid()}))
    with hold(tmp_path) as held:
        assert held.epoch == 2


def test_one_of_two_that_begin_together_is_refused(tmp_path):
    begin, held, errors = threading.Barrier(4), threading.Semaphore(0), []
    end = threading.Event()

    def work():
        begin.wait(DEADLINE_SECS)
        try:
            with hold(tmp_path):
                held.release()
                end.wait(DEADLINE_SECS)
        except RuntimeError as error:
            errors.append(error)
            if len(errors) == 3:
                end.set()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECS)
    assert len(errors) == 3
    assert held.acquire(timeout=0) and not held.acquire(timeout=0)


def test_a_wait_for_a_lock_ends_when_it_is_stopped(tmp_path):
    stop = threading.Event()
    with owner(tmp_path, 'another one') as first:
        first.kill()
        first.wait(DEADLINE_SECS)
        threading.Timer(0.1, stop.set).start()
        with lock.hold(tmp_path / 'owners', 'train', stop) as held:
            assert held is None


@pytest.mark.parametrize('content', ['', '[]', '\0'])
def test_a_file_that_cannot_be_read_is_no_proof_of_an_end(tmp_path, content):
    """A full disk may have emptied it while its owner works; no kill leaves such a file."""
    (tmp_path / 'owners').mkdir()
    path = tmp_path / 'owners' / 'train-000001.json'
    path.write_text(content)
    with pytest.raises(RuntimeError, match=f'got the lock {path}, which cannot be read; .* remove the file'):
        hold(tmp_path).__enter__()


class _Blocking(lock.Store):
    """Renewals wait in `write`, as on a disk or a store that does not answer."""

    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()

    def write(self, path, content):
        if not json.loads(content).get('released'):
            self.begun.set()
            assert self.go.wait(DEADLINE_SECS)
        super().write(path, content)


def test_a_renewal_that_is_late_does_not_undo_the_release(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, 'LOCK_SECS', DEADLINE_SECS)
    store = _Blocking()
    with lock.hold(tmp_path, 'train', threading.Event(), store):
        assert store.begun.wait(DEADLINE_SECS)
        threading.Timer(0.2, store.go.set).start()
    assert json.loads((tmp_path / 'train-000001.json').read_text())['released']


def test_renewals_need_no_room_on_the_disk(tmp_path, monkeypatch):
    with hold(tmp_path) as held:
        path = tmp_path / 'owners' / 'train-000001.json'
        first = path.stat()
        for _ in range(20):
            held.write()
            assert (path.stat().st_ino, path.stat().st_size) == (first.st_ino, first.st_size)
            assert json.loads(path.read_text())['epoch'] == 1
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_an_owner_looks_again_after_its_machine_was_suspended(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, '_CHECK_SECS', 3600.0)
    monkeypatch.setattr(lock, 'RENEW_SECS', 3600.0)
    boot = time.clock_gettime
    with hold(tmp_path) as held:
        (tmp_path / 'owners' / 'train-000002.json').write_text('{}')
        held.check()
        monkeypatch.setattr(time, 'clock_gettime', lambda clock: boot(clock) + 7200 * (clock == time.CLOCK_BOOTTIME))
        with pytest.raises(RuntimeError, match='which took over'):
            held.check()


def test_clones_of_a_machine_are_other_machines(tmp_path, monkeypatch):
    """They have the same boot id: a process that is not there may run on the other one."""
    (tmp_path / 'eth0' / 'device').mkdir(parents=True)
    (tmp_path / 'veth1').mkdir()
    monkeypatch.setattr(lock, '_CARDS', tmp_path)
    (tmp_path / 'eth0' / 'address').write_text('02:00:00:00:00:01\n')
    owner_there = {'machine': lock.machine(), 'pid': 2**22 + 1, 'started': '1'}
    assert lock._has_died(owner_there)
    (tmp_path / 'eth0' / 'address').write_text('02:00:00:00:00:02\n')
    assert not lock._has_died(owner_there)


@pytest.mark.parametrize('content', ['{"pid": "x"}', '{"machine": 1, "since": []}'])
def test_a_damaged_file_is_taken_over(tmp_path, monkeypatch, content):
    monkeypatch.setattr(lock, 'LOCK_SECS', 0.3)
    with lock.hold(tmp_path, 'train', threading.Event()):
        pass
    (tmp_path / 'train-000001.json').write_text(content)
    with lock.hold(tmp_path, 'train', threading.Event()) as held:
        assert held.epoch == 2


def test_a_run_directory_has_an_owner_for_each_job(tmp_path):
    run_dir, stop = RunDir(tmp_path), threading.Event()
    run_dir.check_owner()  # a program's own learner has none
    with run_dir.own('train', stop), RunDir(tmp_path).own('replay_server', stop):
        run_dir.check_owner()
        pathlib.Path(tmp_path, 'owners', 'train-000002.json').write_text('{}')
        threading.Event().wait(2 * lock._CHECK_SECS)
        with pytest.raises(RuntimeError, match='which took over'):
            run_dir.check_owner()
