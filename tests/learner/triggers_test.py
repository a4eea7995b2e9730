import pytest

from tflearn.learner.triggers import IntervalTrigger


def test_it_fires_on_every_crossing_once():
    calls = []
    trigger = IntervalTrigger(1000, calls.append)
    fired = [trigger(step, step + 300) for step in range(0, 3000, 300)]
    assert calls == [1200, 2100, 3000]
    assert fired.count(True) == 3


def test_a_failed_action_does_not_count_as_done():
    attempts = []

    def action(step):
        attempts.append(step)
        if len(attempts) == 1:
            raise OSError('disk full')

    trigger = IntervalTrigger(10, action)
    with pytest.raises(OSError, match='disk full'):
        trigger(0, 10)
    assert trigger(0, 10)
    assert attempts == [10, 10]


def test_a_restart_keeps_the_phase():
    calls = []
    IntervalTrigger(10, calls.append)(8, 12)  # a new trigger, after a restore at step 8
    assert calls == [12]


def test_an_interval_is_positive():
    with pytest.raises(ValueError, match='interval=0'):
        IntervalTrigger(0, print)
