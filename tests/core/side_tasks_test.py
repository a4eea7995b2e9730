import types

import pytest

from tflearn.core import side_tasks


def test_a_side_task_that_fails_is_counted_and_logged_with_pauses(monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(side_tasks, 'time', types.SimpleNamespace(monotonic=lambda: now[0]))
    what, lines = 'write to the moon', []
    for secs in (0.0, 1.0, 29.0, 30.0, 29.0, 1.0):  # failures after 0, 1, 30, 60, 89, 90 s
        now[0] += secs
        caplog.clear()
        with side_tasks.guarded(what):
            raise OSError(28, 'No space left on device')
        lines.append([record.getMessage() for record in caplog.records])
    assert side_tasks.failures[what] == 6
    logged = ['could not write to the moon; tries again: [Errno 28] No space left on device']
    assert lines == [logged, [], logged, [], [], logged]
    caplog.clear()
    with caplog.at_level('INFO'):
        for _ in range(2):
            with side_tasks.guarded(what):
                pass
    assert [record.getMessage() for record in caplog.records] == ['could write to the moon again']


def test_a_stopped_process_is_no_failure_of_a_side_task():
    with pytest.raises(KeyboardInterrupt), side_tasks.guarded('do anything'):
        raise KeyboardInterrupt
