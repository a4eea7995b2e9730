import itertools
import threading
import time

import pytest

from tflearn.core import waiting
from tflearn.core.waiting import Stopped, wait_until


def test_returns_the_value_that_ends_the_wait():
    polls = itertools.count()
    assert wait_until(lambda: 'there' if next(polls) == 3 else None, 'a thing', 5.0, poll_secs=0.001) == 'there'


def test_timeout_names_what_it_waited_for():
    with pytest.raises(TimeoutError, match=r'timed out after 0 s waiting for the moon \(poll'):
        wait_until(lambda: None, lambda: 'the moon (poll)', 0.05, poll_secs=0.01)


def test_true_condition_needs_no_time():
    assert wait_until(lambda: 1, 'a thing', 0.0) == 1


def test_stop_ends_the_wait():
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    start = time.monotonic()
    with pytest.raises(Stopped, match='a thing'):
        wait_until(lambda: None, 'a thing', 60.0, stop, poll_secs=30.0)
    assert time.monotonic() - start < 20.0


def test_logs_what_it_waits_for_at_intervals(monkeypatch):
    monkeypatch.setattr(waiting, 'LOG_EVERY_SECS', 0.05)
    lines = []
    monkeypatch.setattr(waiting.logging, 'info', lambda text, *values: lines.append(text % values))
    with pytest.raises(TimeoutError):
        wait_until(lambda: None, 'a thing', 0.3, poll_secs=0.01)
    lines = [line for line in lines if 'a thing' in line]  # a thread of another test may be waiting too
    assert len(lines) >= 2
    assert lines[0] == 'waiting for a thing (0 of 0 s)'


def test_may_exit_raises_if_stopped_before():
    stop = threading.Event()
    with waiting.may_exit(stop, lambda: None):
        stop.set()
    with pytest.raises(waiting.Stopped, match='before the start'), waiting.may_exit(stop, lambda: None):
        pytest.fail('it must not start')


def test_stop_right_after_the_check_may_end_the_process():
    class Looked(waiting.StopEvent):
        allowed = None

        def is_set(self):
            self.allowed = self.before_exit
            return super().is_set()

    stop, before_exit = Looked(), object()
    with waiting.may_exit(stop, before_exit):
        assert stop.allowed is before_exit
    assert stop.before_exit is None


@pytest.mark.parametrize('address', ['a..b:80', f'{"a" * 64}.b:80', 'localhost:99999', '[g]:1'])
def test_nothing_listens_where_nothing_can(address):
    assert not waiting.is_listening(address)


def test_jitter_follows_from_the_identity_and_keeps_the_mean():
    def pauses(name):
        jitter = waiting.Jitter(name)
        return [jitter.next(2.0) for _ in range(1000)]

    found = pauses('collect_7')
    assert found == pauses('collect_7') != pauses('collect_8')
    assert min(found) >= 1.0 and max(found) <= 3.0
    assert sum(found) / len(found) == pytest.approx(2.0, abs=0.1)


def test_processes_that_start_together_do_not_ask_together():
    """Soon 1,000 that ask every second ask about 100 times in 100 ms; in step they would ask 1,000 times."""
    asked = []
    for i in range(1000):
        jitter = waiting.Jitter(f'collect_{i}/weights')
        at = jitter.next(1.0)
        while at < 10.0:
            asked.append(int(10 * at))
            at += jitter.next(1.0)
    counts = [asked.count(i) for i in range(30, 100)]
    assert min(counts) > 50 and max(counts) < 200
