import pytest
import tensorflow as tf

from tflearn.learner.triggers import EndTrigger, IntervalTrigger, StepsTrigger, TimeTrigger, TotalTrigger


class Clock:
    secs = 100.0

    def __call__(self):
        return self.secs


def _run(trigger, num_train_steps, steps_per_call):
    for step in range(0, num_train_steps, steps_per_call):
        trigger(step, step + steps_per_call)


def test_interval_fires_once_on_every_crossing():
    calls = []
    trigger = IntervalTrigger(1000, calls.append)
    fired = [trigger(step, step + 300) for step in range(0, 3000, 300)]
    assert calls == [1200, 2100, 3000]
    assert fired.count(True) == 3


def test_interval_fires_at_the_same_steps_after_a_restart():
    calls = []
    IntervalTrigger(10, calls.append)(8, 12)  # a new trigger, after a restore at step 8
    assert calls == [12]


def test_fires_at_given_steps():
    calls = []
    _run(StepsTrigger([60, 5, 6, 20], calls.append), 100, 10)
    assert calls == [10, 20, 60]


@pytest.mark.parametrize('steps_per_call', [1, 3, 25])
@pytest.mark.parametrize(('total', 'num_train_steps'), [(1, 75), (4, 75), (7, 75), (3, 300)])
def test_fires_a_total_number_of_times(total, num_train_steps, steps_per_call):
    calls = []
    _run(TotalTrigger(total, num_train_steps, calls.append), num_train_steps, steps_per_call)
    assert calls[-1] == num_train_steps
    assert len(calls) == min(total, num_train_steps // steps_per_call)
    for i, step in enumerate(calls, start=1):
        assert 0 <= step - i * num_train_steps / len(calls) < steps_per_call


def test_longer_run_does_not_exceed_the_total():
    calls = []
    _run(TotalTrigger(2, 50, calls.append), 100, 10)
    assert calls == [30, 50]


def test_fires_by_the_clock():
    calls, clock = [], Clock()
    trigger = TimeTrigger(10.0, calls.append, clock=clock)
    clock.secs += 1000.0  # time before the first call does not count
    for step in range(1, 30):
        trigger(step - 1, step)
        clock.secs += 4.0
    assert calls == [4, 7, 10, 13, 16, 19, 22, 25, 28]


def test_saves_the_seconds_since_it_fired(tmp_path):
    calls, clock = [], Clock()
    trigger = TimeTrigger(10.0, calls.append, clock=clock)
    trigger(0, 1)
    clock.secs += 7.0
    path = tf.train.Checkpoint(trigger=trigger).write(str(tmp_path / 'saved'))
    restored = TimeTrigger(10.0, calls.append, clock=clock)
    tf.train.Checkpoint(trigger=restored).read(path).assert_consumed()
    clock.secs += 1000.0
    assert not restored(1, 2)
    clock.secs += 3.0
    assert restored(2, 3)
    assert calls == [3]


def test_action_saves_the_state_after_it(tmp_path):
    clock = Clock()
    trigger = TimeTrigger(10.0, lambda _: tf.train.Checkpoint(trigger=trigger).write(str(tmp_path / 's')), clock=clock)
    trigger(0, 1)
    clock.secs += 12.0
    assert trigger(1, 2)
    restored = TimeTrigger(10.0, print, clock=clock)
    tf.train.Checkpoint(trigger=restored).read(str(tmp_path / 's')).assert_consumed()
    assert not restored(2, 3)


@pytest.mark.parametrize(
    'make',
    [
        lambda action: IntervalTrigger(10, action),
        lambda action: StepsTrigger([10], action),
        lambda action: TotalTrigger(1, 10, action),
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
    trigger = TimeTrigger(10.0, lambda step: _fail_once(attempts, step), clock=clock)
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
        lambda action, at_end: IntervalTrigger(10, action, at_end),
        lambda action, at_end: StepsTrigger([10, 20], action, at_end),
        lambda action, at_end: TotalTrigger(2, 20, action, at_end),
    ],
)
def test_fires_at_the_end(make):
    for at_end, last_step, expected in [(False, 25, [10, 20]), (True, 25, [10, 20, 25]), (True, 20, [10, 20])]:
        calls = []
        trigger = make(calls.append, at_end)
        _run(trigger, last_step, 5)
        trigger.end(last_step)
        assert calls == expected


def test_end_trigger_fires_only_at_the_end():
    calls = []
    trigger = EndTrigger(calls.append)
    _run(trigger, 20, 5)
    assert calls == []
    trigger.end(20)
    assert calls == [20]


def test_fires_by_the_clock_at_the_end():
    calls = []
    trigger = TimeTrigger(10.0, calls.append, at_end=True)
    trigger(0, 5)
    trigger.end(5)
    trigger.end(5)
    assert calls == [5]


def test_failed_action_is_tried_again_at_the_end():
    attempts = []
    trigger = IntervalTrigger(10, lambda step: _fail_once(attempts, step))
    with pytest.raises(OSError, match='disk full'):
        trigger(0, 10)
    trigger.end(10)
    assert attempts == [10, 10]


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: StepsTrigger([], print), r'steps=\[\]; need'),
        (lambda: StepsTrigger([5, 0], print), r'steps=\[5, 0\]; need'),
        (lambda: TotalTrigger(0, 10, print), 'total=0'),
        (lambda: TotalTrigger(11, 10, print), 'total=11, num_train_steps=10; need'),
    ],
)
def test_rejects_invalid_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
