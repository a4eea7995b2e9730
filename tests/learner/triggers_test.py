import pytest
import tensorflow as tf

from tflearn.learner.triggers import PeriodicAction


class Clock:
    secs = 100.0

    def __call__(self):
        return self.secs


def _run(trigger, num_train_steps, steps_per_call):
    for step in range(0, num_train_steps, steps_per_call):
        trigger(step, step + steps_per_call)


def saved(trigger, path):
    return tf.train.Checkpoint(phase=trigger.phase).write(str(path))


def test_several_conditions_act_once():
    calls = []
    action = PeriodicAction(calls.append, every_steps=20, on_steps=[40, 50], at_end=True)
    _run(action, 60, 10)
    action.end(60)
    assert calls == [20, 40, 50, 60]


def test_interval_fires_once_on_every_crossing():
    calls = []
    trigger = PeriodicAction(calls.append, every_steps=1000)
    fired = [trigger(step, step + 300) for step in range(0, 3000, 300)]
    assert calls == [1200, 2100, 3000]
    assert fired.count(True) == 3


def test_interval_fires_at_the_same_steps_after_a_restart():
    calls = []
    PeriodicAction(calls.append, every_steps=10)(8, 12)  # a new trigger, after a restore at step 8
    assert calls == [12]


def test_fires_at_given_steps():
    calls = []
    _run(PeriodicAction(calls.append, on_steps=[60, 5, 6, 20]), 100, 10)
    assert calls == [10, 20, 60]


def test_fires_by_the_clock():
    calls, clock = [], Clock()
    trigger = PeriodicAction(calls.append, every_secs=10.0, clock=clock)
    clock.secs += 1000.0  # time before the first call does not count
    for step in range(1, 30):
        trigger(step - 1, step)
        clock.secs += 4.0
    assert calls == [4, 7, 10, 13, 16, 19, 22, 25, 28]


def test_saves_the_seconds_since_it_fired(tmp_path):
    calls, clock = [], Clock()
    trigger = PeriodicAction(calls.append, every_secs=10.0, clock=clock)
    trigger(0, 1)
    clock.secs += 7.0
    path = saved(trigger, tmp_path / 'saved')
    restored = PeriodicAction(calls.append, every_secs=10.0, clock=clock)
    tf.train.Checkpoint(phase=restored.phase).read(path).assert_consumed()
    clock.secs += 1000.0
    assert not restored(1, 2)
    clock.secs += 3.0
    assert restored(2, 3)
    assert calls == [3]


def test_action_saves_the_state_after_it(tmp_path):
    clock = Clock()
    trigger = PeriodicAction(lambda _: saved(trigger, tmp_path / 's'), every_secs=10.0, clock=clock)
    trigger(0, 1)
    clock.secs += 12.0
    assert trigger(1, 2)
    restored = PeriodicAction(print, every_secs=10.0, clock=clock)
    tf.train.Checkpoint(phase=restored.phase).read(str(tmp_path / 's')).assert_consumed()
    assert not restored(2, 3)


@pytest.mark.parametrize(
    'make',
    [
        lambda action: PeriodicAction(action, every_steps=10),
        lambda action: PeriodicAction(action, on_steps=[10]),
    ],
)
@pytest.mark.parametrize('again', [(0, 10), (10, 11)])
def test_failed_action_is_tried_again(make, again):
    attempts = []
    trigger = make(lambda step: _fail_once(attempts, step))
    with pytest.raises(OSError, match='disk full'):
        trigger(0, 10)
    assert trigger(*again)
    assert attempts == [10, again[1]]
    assert not trigger(11, 12)


def test_failed_action_by_the_clock_is_tried_again():
    attempts, clock = [], Clock()
    trigger = PeriodicAction(lambda step: _fail_once(attempts, step), every_secs=10.0, clock=clock)
    trigger(0, 1)
    clock.secs += 10.0
    with pytest.raises(OSError, match='disk full'):
        trigger(1, 2)
    assert trigger(2, 3)
    assert not trigger(3, 4)
    assert attempts == [2, 3]


def _fail_once(attempts, step):
    attempts.append(step)
    if len(attempts) == 1:
        raise OSError('disk full')


@pytest.mark.parametrize(
    'make',
    [
        lambda action, at_end: PeriodicAction(action, every_steps=10, at_end=at_end),
        lambda action, at_end: PeriodicAction(action, on_steps=[10, 20], at_end=at_end),
    ],
)
def test_fires_at_the_end(make):
    for at_end, last_step, expected in [(False, 25, [10, 20]), (True, 25, [10, 20, 25]), (True, 20, [10, 20])]:
        calls = []
        trigger = make(calls.append, at_end)
        _run(trigger, last_step, 5)
        trigger.end(last_step)
        assert calls == expected


def test_fires_only_at_the_end():
    calls = []
    trigger = PeriodicAction(calls.append, at_end=True)
    _run(trigger, 20, 5)
    assert calls == []
    trigger.end(20)
    assert calls == [20]


def test_fires_by_the_clock_at_the_end():
    calls = []
    trigger = PeriodicAction(calls.append, every_secs=10.0, at_end=True)
    trigger(0, 5)
    trigger.end(5)
    trigger.end(5)
    assert calls == [5]


def test_failed_action_is_tried_again_at_the_end():
    attempts = []
    trigger = PeriodicAction(lambda step: _fail_once(attempts, step), every_steps=10)
    with pytest.raises(OSError, match='disk full'):
        trigger(0, 10)
    trigger.end(10)
    assert attempts == [10, 10]


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: PeriodicAction(print), 'got no condition; need every_steps'),
        (lambda: PeriodicAction(print, on_steps=[5, 0]), r'on_steps=\[5, 0\]; need train steps from 1'),
        (lambda: PeriodicAction(print, every_steps=0), 'got PeriodicAction.every_steps=0; need an integer of at least'),
        (lambda: PeriodicAction(print, every_secs=0.0), 'got PeriodicAction.every_secs=0.0; need a number above 0'),
    ],
)
def test_rejects_invalid_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
