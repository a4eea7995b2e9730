import pytest
import tensorflow as tf

from tflearn.core import train_step
from tflearn.optimization import schedules


@pytest.mark.parametrize(('step', 'value'), [(0, 1.0), (25, 0.775), (100, 0.1), (500, 0.1)])
def test_linear(step, value):
    got = schedules.linear(1.0, 0.1, 100)(tf.constant(step, tf.int64))
    assert got.dtype == tf.float32
    assert float(got) == pytest.approx(value)


@pytest.mark.parametrize(('step', 'value'), [(0, 1.0), (50, 0.1), (100, 0.01), (500, 0.01)])
def test_exponential(step, value):
    assert float(schedules.exponential(1.0, 0.01, 100)(tf.constant(step, tf.int64))) == pytest.approx(value)


@pytest.mark.parametrize(
    'make',
    [
        lambda: schedules.linear(1.0, 0.0, 0),
        lambda: schedules.exponential(1.0, 0.0, 10),
        lambda: schedules.exponential(1.0, 0.5, 0),
    ],
)
def test_rejects_invalid_values(make):
    with pytest.raises(ValueError, match='got .*need'):
        make()


def test_an_optimizer_follows_it():
    optimizer = tf.keras.optimizers.SGD(schedules.LearningRate(schedules.linear(1.0, 0.0, 4)))
    variable = tf.Variable(0.0)
    for _ in range(6):
        optimizer.apply_gradients([(tf.constant(1.0), variable)])
    assert float(variable) == pytest.approx(-(1.0 + 0.75 + 0.5 + 0.25))


def test_a_piecewise_schedule_goes_through_its_points():
    schedule = schedules.piecewise([(10, 1.0), (20, 3.0), (40, 0.0)])
    values = {0: 1.0, 10: 1.0, 15: 2.0, 20: 3.0, 30: 1.5, 40: 0.0, 99: 0.0}
    assert {step: float(schedule(tf.constant(step, tf.int64))) for step in values} == pytest.approx(values)
    for points in ([], [(5, 1.0), (5, 2.0)]):
        with pytest.raises(ValueError, match='with increasing train steps'):
            schedules.piecewise(points)


def test_a_schedule_by_env_steps_ignores_train_steps():
    """Also inside a compiled program."""
    schedule = schedules.by_env_steps(schedules.linear(1.0, 0.0, 100))
    assert train_step.env_steps_are_used()
    compiled = tf.function(schedule)
    values = []
    for env_steps in (0, 50, 200):
        train_step.set_env_steps(env_steps)
        values.append(float(compiled(tf.constant(7, tf.int64))))
    assert values == [1.0, 0.5, 0.0]
    del schedule, compiled
