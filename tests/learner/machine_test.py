import os
import resource
import time

import pytest

from tflearn.learner import machine


def test_warns_of_more_memory_than_there_is(monkeypatch, caplog):
    monkeypatch.setattr(machine, '_available_memory', lambda: 4e9)
    machine.check_memory('the learner', 1e9, 'max_size')
    assert not caplog.records
    machine.check_memory('the learner', 5e9, 'max_size')
    line = 'got the learner of up to 5 GB of memory; need it within the 4 GB that is free now; stop other programs, or '
    assert [record.getMessage() for record in caplog.records] == [line + 'lower max_size']


def test_reads_the_memory_of_this_machine_and_its_limits(monkeypatch, tmp_path):
    free = machine._available_memory()
    assert 1e8 < free < float('inf')
    limit = tmp_path / 'memory.max'
    limit.write_text('100000000\n')
    monkeypatch.setattr(machine, '_CGROUP_LIMITS', (limit,))
    assert machine._available_memory() == 1e8
    limit.write_text('max\n')
    assert machine._available_memory() > 1e8


def test_a_disk_with_little_room(monkeypatch, tmp_path, caplog):
    usage = machine.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(machine.shutil, 'disk_usage', lambda path: usage._replace(free=10_000_000))
    machine.check_disk(tmp_path / 'run', 'the learner', 4_000_000, 'the networks')
    assert not caplog.records
    machine.check_disk(tmp_path / 'run', 'the learner', 40_000_000, 'the networks')
    assert 'need up to 0.04 GB to save the learner; make room, or lower the networks' in caplog.text
    monkeypatch.setattr(machine.shutil, 'disk_usage', lambda path: usage._replace(free=1_000))
    with pytest.raises(OSError, match=r'got 1e-06 GB free on the disk of .*; need room to save the learner; make room'):
        machine.check_disk(tmp_path / 'run', 'the learner', 40_000_000, 'the networks')


def test_raises_the_limit_of_open_files_as_far_as_it_may(monkeypatch, caplog):
    limits = {'now': (64, 4096)}
    monkeypatch.setattr(resource, 'getrlimit', lambda which: limits['now'])
    monkeypatch.setattr(resource, 'setrlimit', lambda which, new: limits.update(now=new))
    machine.check_file_handles(1024)
    assert limits['now'] == (1024, 4096) and not caplog.records
    limits['now'] = (64, 256)
    machine.check_file_handles(1024)
    assert limits['now'] == (256, 256)
    assert 'got at most 256 open files (ulimit -Hn); need 1024' in caplog.text


def test_a_server_raises_its_limit_of_open_files(monkeypatch, caplog):
    limits = {'now': (64, 5000)}
    monkeypatch.setattr(machine.resource, 'getrlimit', lambda _: limits['now'])
    monkeypatch.setattr(machine.resource, 'setrlimit', lambda _, new: limits.update(now=new))
    machine.raise_file_handles(1000)
    assert limits['now'] == (5000, 5000) and not caplog.records
    limits['now'] = (64, machine.resource.RLIM_INFINITY)
    machine.raise_file_handles(1000)
    assert limits['now'] == (1 << 20, machine.resource.RLIM_INFINITY) and not caplog.records
    limits['now'] = (64, 1024)
    machine.raise_file_handles(1000)
    assert limits['now'] == (1024, 1024)
    assert 'got at most 1024 open files (ulimit -Hn), enough for 480 collectors; need 2064 for 1000' in caplog.text


def test_a_clock_that_was_set_back(tmp_path, caplog):
    file = tmp_path / 'status' / 'train.json'
    file.parent.mkdir()
    file.write_text('{}')
    machine.check_clock(tmp_path)
    assert not caplog.records
    later = time.time() + 3600
    os.utime(file, (later, later))
    machine.check_clock(tmp_path)
    assert 'got a clock that is 3600 s behind the newest file' in caplog.text
