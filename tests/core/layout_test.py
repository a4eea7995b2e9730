import numpy as np
import tensorflow as tf

from tflearn.core import layout
from tflearn.core.layout import ColumnLayout

SPEC = {
    'a': tf.TensorSpec((3,), tf.float32),
    'b': (tf.TensorSpec((1,), tf.float32), tf.TensorSpec((), tf.int64)),
    'c': (tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.int64)),
    'image': tf.TensorSpec((2, 2, 1), tf.float32),
    'large': tf.TensorSpec((300,), tf.float32),
    'z': tf.TensorSpec((2,), tf.float32),
}


def values(*outer):
    random = np.random.default_rng(1)
    return tf.nest.map_structure(
        lambda spec: random.integers(0, 9, (*outer, *spec.shape)).astype(spec.dtype.as_numpy_dtype), SPEC
    )


def test_divides_what_it_joined():
    joined = ColumnLayout(SPEC)
    assert joined.joins
    for outer in ((), (4,), (4, 5)):
        nest = values(*outer)
        for tensors in (joined.join(nest), joined.join_arrays(nest)):
            assert [tuple(tensor.shape) for tensor in tensors] == [(*outer, *spec.shape) for spec in joined.specs]
            assert [tensor.dtype for tensor in tensors] == [spec.dtype for spec in joined.specs]
            tf.nest.map_structure(np.testing.assert_array_equal, joined.divide(tensors), nest)
    assert [tuple(spec.shape) for spec in joined.specs] == [(4,), (3,), (2, 2, 1), (300,), (2,)]


def test_unknown_batch_sizes():
    joined = ColumnLayout(SPEC)

    batch = tf.nest.map_structure(lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), SPEC)

    @tf.function(input_signature=[batch])
    def there_and_back(nest):
        return joined.divide(joined.join(nest))

    tf.nest.map_structure(np.testing.assert_array_equal, there_and_back(values(3)), values(3))


def test_nothing_to_join():
    vector, number = tf.TensorSpec((3,), tf.float32), tf.TensorSpec((), tf.float32)
    for spec in (vector, (vector, number), (number, number)):
        joined = ColumnLayout(spec)
        assert not joined.joins and joined.specs == tf.nest.flatten(spec)


def operations(function, *shapes):
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    graph = tf.function(function, autograph=False).get_concrete_function(*specs).graph
    return {operation.type for operation in graph.get_operations()}


def test_what_was_divided_is_joined_without_an_operation():
    joined = ColumnLayout((tf.TensorSpec((1,), tf.float32), tf.TensorSpec((2,), tf.float32)))
    numbers = ColumnLayout([tf.TensorSpec((), tf.float32)] * 3)
    assert 'ConcatV2' not in operations(lambda x: joined.join(joined.divide([x])), (None, 3))
    assert 'Pack' not in operations(lambda x: numbers.join(numbers.divide([x])), (None, 3))
    cases = {
        'reversed': lambda x: layout.concat(tf.split(x, [1, 3], axis=-1)[::-1]),
        'a part': lambda x: layout.concat(tf.split(x, [1, 1, 2], axis=-1)[:2]),
        'another axis': lambda x: layout.concat(tf.split(x, [2, 2], axis=0)),
        'two': lambda x: layout.concat([tf.split(x, [1, 3], axis=-1)[0], tf.split(2 * x, [1, 3], axis=-1)[1]]),
        'numbers of another axis': lambda x: layout.stack(tf.unstack(x, 4, axis=0)),
    }
    random = tf.random.stateless_uniform((4, 4), (1, 2))
    for name, function in cases.items():
        assert operations(function, (4, 4)) & {'ConcatV2', 'Pack'}, name
        np.testing.assert_array_equal(tf.function(function, autograph=False)(random), function(random), name)
