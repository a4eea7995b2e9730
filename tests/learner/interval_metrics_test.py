import pytest

from tflearn.learner.interval_metrics import IntervalFigures
from tflearn.learner.train_loop import Taken


class Clock:
    now = 50.0

    def __call__(self):
        return self.now


def test_what_is_left_out_before_the_first_step_counts_for_nothing():
    clock = Clock()
    figures = IntervalFigures(clock)
    figures.leave_out(3.5)
    figures.add_wait(100.0)
    clock.now += 100.0
    figures.begin()
    figures.add(Taken(8, 0, 0.5, 6.0, {}, {}))
    clock.now += 4.0
    assert figures.take()['steps_per_sec'] == 2.0


def test_they_are_over_all_steps_since_the_last_time():
    clock = Clock()
    figures = IntervalFigures(clock)
    figures.add_wait(100.0)  # before the first step, when there are no data yet
    clock.now += 100.0
    figures.begin()
    figures.add(Taken(3, 0, 0.5, 6.0, {'td_error': 3.0}, {'policy_version': 9.0}))
    figures.add(Taken(2, 1, 0.0, 1.0, {'td_error': 1.0}, {'policy_version': 3.0}))
    figures.add_wait(0.5)
    for secs in (0.1, 0.4, 0.2):
        figures.add_trigger(secs)
    clock.now += 4.0
    figures.begin()
    assert figures.num_steps == 5
    assert figures.take() == pytest.approx(
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
    figures.leave_out(3.0)
    figures.add(Taken(1, 0, 0.0, 5.0, {}, {}))
    again = figures.take()
    assert (again['loss'], again['steps_per_sec'], again['trigger_secs']) == (5.0, 0.5, 0.0)


def test_without_a_finite_loss_there_is_no_mean():
    figures = IntervalFigures()
    figures.begin()
    figures.add(Taken(2, 2, 0.0, 0.0, {'td_error': 0.0}, {}))
    taken = figures.take()
    assert taken['nonfinite_steps'] == 2
    assert not {'loss', 'extra/td_error'} & taken.keys()
