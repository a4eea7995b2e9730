"""Notices of maintenance, from a server that answers as Google Cloud's metadata server does."""

import os
import resource
import threading
import time

import numpy as np
import pytest

from tflearn.core.waiting import PeerStopped, Stopped
from tflearn.learner import machine
from tflearn.learner.metrics import rss_mb


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
    limits = {'now': (64, 5000)}
    monkeypatch.setattr(resource, 'getrlimit', lambda which: limits['now'])
    monkeypatch.setattr(resource, 'setrlimit', lambda which, new: limits.update(now=new))
    machine.check_file_handles(2064)
    assert limits['now'] == (5000, 5000) and not caplog.records
    limits['now'] = (64, resource.RLIM_INFINITY)
    machine.check_file_handles(2064)
    assert limits['now'] == (1 << 20, resource.RLIM_INFINITY) and not caplog.records
    limits['now'] = (64, 256)
    machine.check_file_handles(1024)
    assert limits['now'] == (256, 256)
    assert 'got at most 256 open files (ulimit -Hn); need 1024; raise it' in caplog.text


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


DEADLINE_SECS = 60


def test_no_notice(metadata):
    assert machine.notice() is None
    metadata.values['maintenance-event'] = 'MIGRATE_ON_HOST_MAINTENANCE'  # the machine goes on elsewhere
    assert machine.notice() is None


@pytest.mark.parametrize(
    ('name', 'value'), [('maintenance-event', 'TERMINATE_ON_HOST_MAINTENANCE'), ('preempted', 'TRUE')]
)
def test_notice_stops_the_job_which_asks_for_another_start(metadata, name, value):
    stop = threading.Event()
    message = f'this machine has the notice {name}={value}; start it again'
    with pytest.raises(PeerStopped, match=message), machine.notices_watched(True, stop, poll_secs=0.02):
        assert not stop.wait(0.1)
        metadata.values[name] = value
        assert stop.wait(DEADLINE_SECS)
        raise Stopped('as a wait of the job ends')


def test_without_a_notice_the_block_ends_as_it_would(metadata):
    stop = threading.Event()
    with machine.notices_watched(True, stop, poll_secs=0.02):
        pass
    with pytest.raises(Stopped), machine.notices_watched(True, stop, poll_secs=0.02):
        raise Stopped('asked by a user')
    assert not stop.is_set()
    with machine.notices_watched(False, stop):
        assert not [each for each in threading.enumerate() if each.name == 'preemption']


@pytest.mark.parametrize('what', ['other', 'none'])
def test_a_server_that_is_not_googles_is_no_notice(metadata, monkeypatch, caplog, what):
    metadata.flavor = None
    if what == 'none':
        monkeypatch.setenv('GCE_METADATA_HOST', 'localhost:1')
    with pytest.raises(OSError):
        machine.notice()
    stop = threading.Event()
    with machine.notices_watched(True, stop, poll_secs=0.01):
        assert not stop.wait(0.2)
    assert caplog.text.count('no notice of maintenance can be seen') == 1


def test_rss_grows_with_allocated_memory():
    before = rss_mb()
    held = np.ones(200_000_000, np.uint8)
    assert 190 < rss_mb() - before < 400
    assert held[-1] == 1


def test_rss_is_none_without_statm(tmp_path):
    assert rss_mb(tmp_path / 'absent') is None
