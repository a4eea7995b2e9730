import pytest
import tensorflow as tf

from tflearn.agents import schedules


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
def test_values_that_cannot_be(make):
    with pytest.raises(ValueError, match='got .*need'):
        make()


def test_an_optimizer_follows_it():
    optimizer = tf.keras.optimizers.SGD(schedules.LearningRate(schedules.linear(1.0, 0.0, 4)))
    variable = tf.Variable(0.0)
    for _ in range(6):
        optimizer.apply_gradients([(tf.constant(1.0), variable)])
    assert float(variable) == pytest.approx(-(1.0 + 0.75 + 0.5 + 0.25))
