"""What a TPU refuses, by name."""

import pytest
import tensorflow as tf

from tflearn.learner import tpu_rules


def test_accepts_numbers_of_known_shapes():
    spec = {'image': tf.TensorSpec((4, 2, 8), tf.uint8), 'step': tf.TensorSpec((4,), tf.int64), 'x': tf.TensorSpec(())}
    assert tpu_rules.of_data(spec) == []
    tpu_rules.check(spec)


@pytest.mark.parametrize(
    ('leaf', 'line'),
    [
        (tf.TensorSpec((4, None)), 'got the shape (4, None) of x in the data; need all dimensions known on a TPU; pad'),
        (tf.TensorSpec(None), 'got the shape <unknown> of x in the data; need all dimensions known on a TPU; pad'),
        (tf.TensorSpec((4,), tf.string), 'got strings in x of the data; need numbers on a TPU; leave them out'),
        (tf.TensorSpec((4,), tf.float64), 'got float64 in x of the data; need float32 on a TPU; cast it'),
    ],
)
def test_names_data(leaf, line):
    (found,) = tpu_rules.of_data({'fits': tf.TensorSpec((4,)), 'x': leaf})
    assert found.startswith(line) and '\n' not in found
    with pytest.raises(ValueError, match='need'):
        tpu_rules.check({'x': leaf})


def _graph(function):
    return tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec((3,))).graph


def test_names_operations_of_the_host_in_functions_too():
    def step(x):
        inner = tf.function(lambda y: tf.numpy_function(lambda z: z, [y], tf.float32))
        tf.print(x)
        return tf.cond(tf.reduce_sum(x) > 0, lambda: inner(x), lambda: x)

    lines = tpu_rules.of_graph(_graph(step))
    assert len(lines) == 2
    assert any('got the host operation PyFunc in the train step' in line for line in lines)
    assert any('got the host operation PrintV2 in the train step' in line for line in lines)


def test_names_summaries(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))

    def step(x):
        with writer.as_default(step=0):
            tf.summary.scalar('x', tf.reduce_sum(x))
        return x

    (line,) = tpu_rules.of_graph(_graph(step))
    assert 'got the host operation WriteSummary in the train step' in line


def test_names_float64():
    (line,) = tpu_rules.of_graph(_graph(lambda x: tf.cast(tf.cast(x, tf.float64) * 2, tf.float32)))
    assert line.startswith('got float64 in the train step (') and 'need float32 on a TPU' in line
    assert tpu_rules.of_graph(_graph(lambda x: 2 * x)) == []
