import pytest

from tflearn.learner.interval_metrics import IntervalMetrics
from tflearn.learner.train_loop import Taken


class Clock:
    now = 50.0

    def __call__(self):
        return self.now


def test_what_is_left_out_before_the_first_step_counts_for_nothing():
    clock = Clock()
    metrics = IntervalMetrics(clock)
    metrics.leave_out(3.5)
    metrics.add_wait(100.0)
    clock.now += 100.0
    metrics.begin()
    metrics.add(Taken(8, 0, 0.5, 6.0, {}, {}))
    clock.now += 4.0
    assert metrics.take()['steps_per_sec'] == 2.0


def test_they_are_over_all_steps_since_the_last_time():
    clock = Clock()
    metrics = IntervalMetrics(clock)
    metrics.add_wait(100.0)  # before the first step, when there are no data yet
    clock.now += 100.0
    metrics.begin()
    metrics.add(Taken(3, 0, 0.5, 6.0, {'td_error': 3.0}, {'policy_version': 9.0}))
    metrics.add(Taken(2, 1, 0.0, 1.0, {'td_error': 1.0}, {'policy_version': 3.0}))
    metrics.add_wait(0.5)
    for secs in (0.1, 0.4, 0.2):
        metrics.add_trigger(secs)
    clock.now += 4.0
    metrics.begin()
    assert metrics.num_steps == 5
    assert metrics.take() == pytest.approx(
        {
            'loss': 7.0 / 4,
            'extra/td_error': 1.0,
            'info/policy_version': 3.0,
            'nonfinite_steps': 1,
            'steps_per_sec': 5 / 4.0,
            'data_wait_share': 0.25,
            'trigger_secs': 0.7,
            'longest_trigger_secs': 0.4,
        }
    )
    clock.now += 5.0
    metrics.leave_out(3.0)
    metrics.add(Taken(1, 0, 0.0, 5.0, {}, {}))
    again = metrics.take()
    assert (again['loss'], again['steps_per_sec'], again['trigger_secs']) == (5.0, 0.5, 0.0)


def test_without_a_finite_loss_there_is_no_mean():
    metrics = IntervalMetrics()
    metrics.begin()
    metrics.add(Taken(2, 2, 0.0, 0.0, {'td_error': 0.0}, {}))
    taken = metrics.take()
    assert taken['nonfinite_steps'] == 2
    assert not {'loss', 'extra/td_error'} & taken.keys()
