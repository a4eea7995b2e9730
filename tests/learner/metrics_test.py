import math

import pytest

from tflearn.learner.metrics import IntervalMetrics, Metrics, TrainResult


class Clock:
    now = 50.0

    def __call__(self):
        return self.now


def test_time_before_the_first_step_does_not_count():
    clock = Clock()
    metrics = IntervalMetrics(clock)
    metrics.leave_out(3.5)
    metrics.add(Metrics(waited_secs=100.0))
    clock.now += 100.0
    metrics.begin()
    metrics.add(Metrics(8, 0, 0.5, {'loss': 6.0}))
    clock.now += 4.0
    assert metrics.take()['steps_per_sec'] == 2.0


def test_interval_metrics_cover_all_steps_since_the_last_summary():
    clock = Clock()
    metrics = IntervalMetrics(clock)
    metrics.add(Metrics(waited_secs=100.0))  # before the first step, when there are no data yet
    clock.now += 100.0
    metrics.begin()
    metrics.add(Metrics(3, 0, 0.5, {'loss': 6.0, 'extra/td_error': 3.0, 'info/policy_version': 9.0}))
    metrics.add(Metrics(2, 1, 0.0, {'loss': 1.0, 'extra/td_error': 1.0, 'info/policy_version': 3.0}))
    metrics.add(Metrics(waited_secs=0.5))
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
    metrics.add(Metrics(1, 0, 0.0, {'loss': 5.0}))
    again = metrics.take()
    assert (again['loss'], again['steps_per_sec'], again['trigger_secs']) == (5.0, 0.5, 0.0)


def test_interval_without_a_finite_loss_has_no_means():
    metrics = IntervalMetrics()
    metrics.begin()
    metrics.add(Metrics(2, 2, 0.0, {'loss': 0.0, 'extra/td_error': 0.0}))
    taken = metrics.take()
    assert taken['nonfinite_steps'] == 2
    assert not {'loss', 'extra/td_error'} & taken.keys()


def test_metrics_of_several_programs_are_added():
    total = Metrics(3, 1, 0.5, {'loss': 2.0, 'info/a': 4.0}) + Metrics(2, 0, 0.25, {'loss': 1.0, 'extra/b': 8.0})
    assert total == Metrics(5, 1, 0.75, {'loss': 3.0, 'info/a': 4.0, 'extra/b': 8.0})
    result = TrainResult.of(total, secs=1.5)
    assert (result.num_steps, result.num_nonfinite, result.data_wait_share) == (5, 1, 0.5)
    assert (result.loss, result.extra, result.info) == (0.75, {'b': 2.0}, {'a': 1.0})


def test_result_without_a_step_has_no_loss():
    result = TrainResult.of(Metrics(waited_secs=9.0), secs=1.0, data_ended=True)
    assert math.isnan(result.loss)
    assert (result.num_steps, result.extra, result.data_wait_share, result.data_ended) == (0, {}, 1.0, True)
