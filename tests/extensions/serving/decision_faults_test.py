"""Faults of the disk and of the process that writes cost no decision that is counted as logged."""

import collections
import contextlib
import multiprocessing
import resource
import threading

import numpy as np
import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')

from tests.extensions.serving.decision_log_test import (
    DEADLINE_SECS,
    OBSERVATION,
    lines_of,
    serving,
)
from tflearn.core.waiting import wait_until
from tflearn.extensions.serving.decision_files import DecisionFiles, DecisionLogOptions
from tflearn.extensions.serving.decision_log import DecisionLog


def writer():
    """The process that writes the log of this process."""
    children = multiprocessing.active_children()
    (found,) = [child for child in children if child.name == 'decision_log']
    return found


@contextlib.contextmanager
def full_disk():
    """Lets the files of the process that writes have no room: it stands for a disk that is full."""
    pid = writer().pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def removed(directory):
    for path in directory.glob('.*.jsonl'):
        path.unlink()
    yield


@contextlib.contextmanager
def renamed(directory):
    directory.rename(directory.with_name('moved'))
    yield


@contextlib.contextmanager
def blocked(directory):
    """Puts a file in the directory's place for a while: no file can be begun or completed there."""
    directory.rename(directory.with_name('moved'))
    directory.write_text('')
    try:
        yield
    finally:
        directory.unlink()


FAULTS = {
    'full': lambda directory: full_disk(),
    'removed': removed,
    'renamed': renamed,
    'blocked': blocked,
}


@pytest.mark.parametrize('fault', FAULTS)
def test_a_fault_of_the_disk_loses_no_decision_that_is_counted(root, tmp_path, fault):
    directory = tmp_path / 'log'
    with serving(root, directory, file_secs=0.7) as (ask, counts):

        def decide(begin, end):
            for i in range(begin, end):
                ask(OBSERVATION[:1], event_id=f'{i}')

        decide(0, 5)
        wait_until(lambda: counts['logged'] == 5, 'the first decisions', DEADLINE_SECS)
        with FAULTS[fault](directory):
            decide(5, 40)
            if fault in ('full', 'blocked'):
                threading.Event().wait(1.5)  # also for a rotation, which must fail
                assert counts == {'logged': 5}
            else:
                wait_until(lambda: counts['logged'] == 40, 'the decisions', DEADLINE_SECS)
        decide(40, 45)
        wait_until(lambda: counts['logged'] == 45, 'the last decisions', DEADLINE_SECS)
    assert counts == {'logged': 45}
    moved = tmp_path / 'moved'
    texts = [path.read_text() for path in moved.glob('.*.jsonl')] if moved.exists() else []
    found = [line['id'] for line in lines_of(directory) + lines_of(moved)]
    assert sorted(found, key=int) == [f'{i}' for i in range(45)] and set(texts) <= {''}


def test_a_killed_process_costs_no_decision_and_none_is_written_twice(root, tmp_path):
    with serving(root, tmp_path) as (ask, counts):
        for number in range(80):
            if number in (20, 60):
                is_logged = lambda number=number: counts['logged'] == number  # noqa: E731
                wait_until(is_logged, 'the log', DEADLINE_SECS)
                writer().kill()
            ask(OBSERVATION[:1], event_id=f'{number}')
        wait_until(lambda: counts['logged'] == 80, 'all decisions', DEADLINE_SECS)
    assert counts == {'logged': 80}
    assert [line['id'] for line in lines_of(tmp_path)] == [f'{i}' for i in range(80)]


def test_lines_of_a_killed_process_that_are_not_known_are_written_again(tmp_path):
    """A process that was killed between writing and saying so has left lines that come again."""
    options = DecisionLogOptions(str(tmp_path))
    killed = DecisionFiles(options, tmp_path / 'spool', 'decisions', 'token')
    name, size = killed.write(b'{"id": "0"}\n')
    killed.write(b'{"id": "1"}\n')
    killed._file.close()  # with its lock, as when the process is killed
    files = DecisionFiles(options, tmp_path / 'spool', 'decisions', 'token', {name: size})
    files.write(b'{"id": "1"}\n')
    files.close()
    assert [line['id'] for line in lines_of(tmp_path)] == ['0', '1']


def test_lines_that_cannot_be_made_are_dropped(tmp_path):
    counts = collections.Counter()
    count = lambda kind, result, number: counts.update({result: number})  # noqa: E731
    log = DecisionLog(DecisionLogOptions(str(tmp_path)), tmp_path / 'spool', count)
    no_json = np.array([np.datetime64('2025-01-01')])
    for i, action in enumerate((np.zeros(1, np.int64), no_json, np.ones(1))):
        log.record('greedy_policy', 7, {}, {'action': action}, '', f'{i}')
        wait_until(lambda i=i: sum(counts.values()) == i + 1, 'the decision', DEADLINE_SECS)
    log.close()
    assert counts == {'logged': 2, 'dropped': 1}
    assert [line['id'] for line in lines_of(tmp_path)] == ['0', '2']
