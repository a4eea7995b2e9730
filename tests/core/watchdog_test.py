import itertools
import threading

import pytest

from tflearn.core.background import Watchdog
from tflearn.core.waiting import wait_until

DEADLINE_SECS = 60


class Ends:
    def __init__(self):
        self.messages, self.called = [], threading.Event()

    def __call__(self, message):
        self.messages.append(message)
        self.called.set()


def test_ends_once_if_work_takes_too_long():
    end = Ends()
    watchdog = Watchdog(0.2, end)
    with watchdog.guard('4 train steps'):
        assert end.called.wait(DEADLINE_SECS)
    assert len(end.messages) == 1
    assert 'got no end of 4 train steps in 0 s; need it by then; check the other workers' in end.messages[0]


def test_work_in_time_and_idle_time_do_not_end():
    end = Ends()
    watchdog = Watchdog(DEADLINE_SECS, end)
    with watchdog.guard('this'):
        pass
    idle = Watchdog(0.1, end)
    assert not end.called.wait(1.0)
    idle.close()
    watchdog.close()


def test_a_count_that_grows_restarts_the_deadline():
    end, clock, counts = Ends(), itertools.count(0.0, 0.04).__next__, []

    def count():
        counts.append(min(len(counts), 9))
        return counts[-1]

    watchdog = Watchdog(0.1, end, clock)
    with watchdog.guard('training', count):
        assert end.called.wait(DEADLINE_SECS)
    assert counts[:10] == list(range(10)) and 11 <= len(counts) <= 14


def test_the_time_between_two_parts_is_watched_as_the_work_around_them():
    end = Ends()
    watchdog = Watchdog(0.2, end)
    with watchdog.guard('the session'):
        with watchdog.guard('a call'):
            pass
        assert end.called.wait(DEADLINE_SECS)
    assert 'got no end of the session' in end.messages[0]


def test_work_that_raises_is_no_longer_watched():
    end = Ends()
    watchdog = Watchdog(0.3, end)
    with pytest.raises(KeyError), watchdog.guard('this'):
        raise KeyError
    assert not end.called.wait(1.0)


def test_close_ends_the_thread():
    before = set(threading.enumerate())
    watchdog = Watchdog(1.0)
    (thread,) = set(threading.enumerate()) - before
    watchdog.close()
    thread.join(DEADLINE_SECS)
    assert not thread.is_alive()


def test_progress_restarts_the_deadline():
    end, now, looks = Ends(), [0.0], []

    def clock():
        looks.append(1)
        return now[0]

    watchdog = Watchdog(1.0, end, clock)
    with watchdog.guard('200 train steps'):
        now[0] = 0.9
        watchdog.progress()
        now[0] = 1.8
        looks.clear()
        wait_until(lambda: len(looks) > 2, 'some looks', DEADLINE_SECS)
        assert not end.messages
        now[0] = 2.0
        assert end.called.wait(DEADLINE_SECS)
