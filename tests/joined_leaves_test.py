import numpy as np
import tensorflow as tf

from tflearn.joined_leaves import JoinedLeaves

SPEC = {
    'a': tf.TensorSpec((3,), tf.float32),
    'b': (tf.TensorSpec((1,), tf.float32), tf.TensorSpec((), tf.int64)),
    'c': tf.TensorSpec((), tf.int64),
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
    joined = JoinedLeaves(SPEC)
    assert joined.joins
    for outer in ((), (4,), (4, 5)):
        nest = values(*outer)
        for tensors in (joined.join(nest), joined.join_arrays(nest)):
            assert [tuple(tensor.shape) for tensor in tensors] == [(*outer, *spec.shape) for spec in joined.specs]
            assert [tensor.dtype for tensor in tensors] == [spec.dtype for spec in joined.specs]
            tf.nest.map_structure(np.testing.assert_array_equal, joined.divide(tensors), nest)
    assert [tuple(spec.shape) for spec in joined.specs] == [(4,), (2,), (2, 2, 1), (300,), (2,)]


def test_unknown_batch_sizes():
    joined = JoinedLeaves(SPEC)

    batch = tf.nest.map_structure(lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), SPEC)

    @tf.function(input_signature=[batch])
    def there_and_back(nest):
        return joined.divide(joined.join(nest))

    tf.nest.map_structure(np.testing.assert_array_equal, there_and_back(values(3)), values(3))


def test_nothing_to_join():
    for spec in (tf.TensorSpec((3,), tf.float32), (tf.TensorSpec((3,), tf.float32), tf.TensorSpec((), tf.float32))):
        joined = JoinedLeaves(spec)
        assert not joined.joins and joined.specs == tf.nest.flatten(spec)
