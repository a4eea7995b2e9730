import json
import os
import pathlib
import stat
import subprocess
import sys
import time

import pytest

from tflearn.files.lock import LOCAL
from tflearn.files.run_dir import RunDir, read_json, write_atomically, write_json
from tflearn.files.status import Status


def test_paths_are_stable(tmp_path):
    run_dir = RunDir(tmp_path)
    assert run_dir.done == tmp_path / 'DONE'
    assert run_dir.checkpoints == tmp_path / 'train' / 'checkpoints'
    assert run_dir.policy('greedy_policy') == tmp_path / 'policies' / 'greedy_policy'
    assert run_dir.evaluations == tmp_path / 'evaluations.jsonl'
    assert run_dir.learning_curve == tmp_path / 'learning_curve.png'
    assert run_dir.config == tmp_path / 'config.gin'
    assert run_dir.log('train') == tmp_path / 'logs' / 'train.log'


def test_a_replay_is_served_by_as_many_servers_as_saved_it(tmp_path):
    run_dir = RunDir(tmp_path)
    assert run_dir.shard_checkpoints(0) == run_dir.replay_checkpoints == tmp_path / 'replay' / 'checkpoints'
    run_dir.check_num_shards(1)
    run_dir.shard_checkpoints(2).mkdir(parents=True)
    assert run_dir.saved_shards() == [run_dir.replay_checkpoints, *map(run_dir.shard_checkpoints, (1, 2))]
    for num_shards in (3, 4):
        run_dir.check_num_shards(num_shards)
    with pytest.raises(ValueError, match=r'got 2 replay server\(s\) .*whose replay was saved by 3.*replay/2 away'):
        run_dir.check_num_shards(2)
    (run_dir.root / 'replay' / '²').touch()
    run_dir.check_num_shards(3)


def test_creates_nothing_before_it_is_needed(tmp_path):
    root = tmp_path / 'run'
    assert RunDir(root).done_line() is None
    assert not root.exists()
    RunDir(root).make()
    assert root.is_dir()


@pytest.mark.parametrize(('shared', 'mode'), [(False, 0o700), (True, 0o750)])
def test_a_new_root_is_the_users_alone_unless_it_is_shared(tmp_path, shared, mode):
    run_dir, existing = RunDir(tmp_path / 'runs' / 'new'), tmp_path / 'existing'
    for _ in range(2):
        run_dir.make(shared)
        assert stat.S_IMODE(run_dir.root.stat().st_mode) == mode
    existing.mkdir()
    existing.chmod(0o775)
    RunDir(existing).make(shared)
    assert stat.S_IMODE(existing.stat().st_mode) == 0o775


def test_rejects_root_that_is_not_writable(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(ValueError, match='root_dir=.*cannot be written to.*choose another'):
        RunDir(tmp_path / 'file').make()


@pytest.mark.parametrize('url', ['gs://bucket/run', 's3://b/run', 'hdfs://name:9000/run', 'file:///tmp/run'])
def test_refuses_a_url_as_root(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for root in (url, pathlib.Path(url)):
        with pytest.raises(ValueError, match=r"got root_dir='\w+:/.*run', which is a URL; need a path of a local"):
            RunDir(root)
    assert RunDir('a:b/run').root == tmp_path / 'a:b' / 'run'
    assert not list(tmp_path.iterdir())


def test_write_is_atomic(tmp_path):
    path = tmp_path / 'folder' / 'file'
    write_atomically(path, 'old')
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, 'half \ud800')
    assert path.read_text() == 'old'
    assert os.listdir(path.parent) == ['file']


@pytest.mark.parametrize(
    ('write', 'program'),
    [
        (lambda path: write_json(path, {}), 'os.replace = stop; run_dir.write_json(path, {})'),
        (lambda path: LOCAL.create(path, b'{}'), "os.link = stop; run_dir.LOCAL.create(path, b'{}')"),
    ],
    ids=['written', 'created'],
)
def test_files_of_killed_writers_are_removed(tmp_path, write, program):
    """Real processes, killed in the middle of a write; those of a process that runs are kept."""
    program = f"""
import os, pathlib, signal, sys
from tflearn.files import run_dir

path, stop = pathlib.Path(sys.argv[1]), lambda *paths: (print('written', flush=True), signal.pause())
{program}
"""
    command = [sys.executable, '-c', program, str(tmp_path / 'status.json')]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for writer in writers:
            assert writer.stdout.readline() == b'written\n'
        for writer in writers[1:]:
            writer.kill()
            writer.wait(30)
        assert len(os.listdir(tmp_path)) == 3
        write(tmp_path / 'status.json')
        left = set(os.listdir(tmp_path)) - {'status.json'}
        assert len(left) == 1 and left.pop().endswith(f'-{writers[0].pid}')
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


def test_written_files_have_the_usual_permissions(tmp_path):
    write_atomically(tmp_path / 'atomic', '')
    (tmp_path / 'usual').write_text('')
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ('atomic', 'usual')]
    assert modes[0] == modes[1]


def test_json_round_trip_and_damage(tmp_path):
    path = tmp_path / 'value.json'
    assert read_json(path) is None
    write_json(path, {'a': 1.5, 'b': None})
    assert read_json(path) == {'a': 1.5, 'b': None}
    path.write_text('{')
    with pytest.raises(ValueError, match='damaged file'):
        read_json(path)


def test_a_file_that_cannot_be_read_now_is_not_called_damaged():
    """As without a free file handle; it is not to be removed for that."""
    with pytest.raises(OSError, match=r'got /proc/self/mem, which cannot be read \(Input/output error\); need to read'):
        read_json(pathlib.Path('/proc/self/mem'))


@pytest.mark.parametrize('content', [b'[]', b'3', b'null', b'\xff', b'[' * 100_000, b'1' * 5000])
def test_what_is_no_json_object_is_named(tmp_path, content):
    path = tmp_path / 'file.json'
    path.write_bytes(content)
    with pytest.raises(ValueError, match='got a damaged file .*file.json.*; need a JSON object; remove the file'):
        read_json(path)


@pytest.mark.parametrize('make', [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_not_opened(tmp_path, make):
    make(tmp_path / 'file.json')
    with pytest.raises(ValueError, match='got .*file.json, which is no regular file; need a JSON object; remove it'):
        read_json(tmp_path / 'file.json')


@pytest.mark.parametrize('path', ['[x]', 'run[1]/below', 'a\\b', 'all*', 'wh?t'])
def test_refuses_a_path_that_tensorflow_takes_as_a_pattern(tmp_path, monkeypatch, path):
    message = r"got root_dir='.*', which is '/.*', with '.+'; need a path without control characters, and without \*"
    with pytest.raises(ValueError, match=message):
        RunDir(tmp_path / path)
    (tmp_path / path).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / path)
    with pytest.raises(ValueError, match="got root_dir='run', which is " + message.partition(', which is ')[2]):
        RunDir('run')
    assert RunDir(tmp_path / '{run}, 2]').root == tmp_path / '{run}, 2]'


@pytest.mark.parametrize('path', ['~nobody_of_this_name/run', 'a\0b', 'a\ntouch x', 'a\x1b[2J', 'a\u2028b', 'a\udcff'])
def test_refuses_what_is_no_path(path):
    with pytest.raises(ValueError, match='got root_dir='):
        RunDir(path)


def test_done_line(tmp_path):
    write_json(RunDir(tmp_path).done, {'reason': 'num_train_steps 5 reached', 'train_step': 5})
    assert 'finished (num_train_steps 5 reached, train step 5)' in (RunDir(tmp_path).done_line() or '')
    write_json(RunDir(tmp_path).done, {'reason': 'num_train_steps 5 reached'})
    with pytest.raises(ValueError, match='got a damaged file .*DONE, with no train_step; need that; remove the file'):
        RunDir(tmp_path).done_line()


def test_status_keeps_metrics_and_writes_changes_of_state_immediately(tmp_path):
    path = RunDir(tmp_path).status('train')
    status = Status(path)
    status.update('waiting for data', train_step=1)
    status.update('waiting for data', train_step=2)
    assert json.loads(path.read_text())['train_step'] == 1
    status.update('running', loss=0.5)
    written = json.loads(path.read_text())
    assert (written['state'], written['train_step'], written['loss']) == ('running', 2, 0.5)
    assert written['pid'] == os.getpid()


def test_status_that_cannot_be_written_is_only_logged(tmp_path, caplog):
    (tmp_path / 'status').write_text('a file where a directory should be')
    status = Status(RunDir(tmp_path).status('train'))
    for state in ('waiting', 'running', 'finished'):
        status.update(state, loss=float('nan'))
    assert len(caplog.messages) == 1, 'each second would be too much'


def test_status_writes_values_that_are_not_finite_as_none(tmp_path):
    path = RunDir(tmp_path).status('train')
    Status(path).update('running', loss=float('nan'), rate=float('inf'), step=3)
    assert [json.loads(path.read_text())[name] for name in ('loss', 'rate', 'step')] == [None, None, 3]


def test_imports_no_tensorflow():
    code = 'import sys, tflearn.files.run_dir; sys.exit("tensorflow" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], timeout=60, check=False).returncode == 0


def test_status_is_written_after_the_clock_was_set_back(tmp_path, monkeypatch):
    now = {'time': 1e9, 'monotonic': 5.0}
    for name in now:
        monkeypatch.setattr(time, name, lambda name=name: now[name])
    status = Status(tmp_path / 'train.json')
    status.update('running', train_step=1)
    now.update(time=1e9 - 3600, monotonic=5.5)
    status.update('running', train_step=2)
    assert read_json(tmp_path / 'train.json')['train_step'] == 1
    now.update(monotonic=6.0)
    status.update('running', train_step=3)
    assert read_json(tmp_path / 'train.json')['train_step'] == 3


def test_status_keeps_counts_of_the_process_before(tmp_path):
    path = tmp_path / 'launch.json'
    Status(path).update('running', restarts={'train': 2}, other=1)
    again = Status(path, kept=('restarts',))
    assert again.newest['restarts'] == {'train': 2} and 'other' not in again.newest
    path.write_text('{')
    assert 'restarts' not in Status(path, kept=('restarts',)).newest
