import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tflearn.core.layout import ColumnLayout

DTYPES = [
    tf.bool,
    tf.uint8,
    tf.int8,
    tf.int16,
    tf.uint16,
    tf.int32,
    tf.int64,
    tf.uint64,
    tf.float16,
    tf.float32,
    tf.float64,
]
SPEC = {
    'scalars': [tf.TensorSpec((), dtype, dtype.name) for dtype in DTYPES],
    'arrays': [tf.TensorSpec((2, 3), dtype, f'{dtype.name}s') for dtype in DTYPES],
    'empty': (),
}


def _random(outer_dims):
    rng = np.random.default_rng(1)

    def leaf(spec):
        if spec.dtype == tf.bool:
            return rng.random((*outer_dims, *spec.shape)) < 0.5
        if spec.dtype.is_floating:
            return rng.normal(size=(*outer_dims, *spec.shape)).astype(spec.dtype.as_numpy_dtype)
        info = np.iinfo(spec.dtype.as_numpy_dtype)
        return rng.integers(info.min, info.max, (*outer_dims, *spec.shape), spec.dtype.as_numpy_dtype)

    return tf.nest.map_structure(leaf, SPEC)


def test_every_dtype_survives_packing_bit_for_bit():
    layout, value = ColumnLayout(SPEC), _random((5,))
    rows = layout.pack(value)
    assert rows.shape == (5, layout.num_bytes)
    tf.nest.map_structure(np.testing.assert_array_equal, layout.unpack(tf.constant(rows)), value)


def test_unpacks_sequences_of_any_batch_size_in_a_graph():
    layout, value = ColumnLayout(SPEC), _random((6,))
    unpack = tf.function(layout.unpack, input_signature=[tf.TensorSpec((None, 3, layout.num_bytes), tf.uint8)])
    unpacked = unpack(layout.pack(value).reshape(2, 3, -1))
    for got, expected in zip(tf.nest.flatten(unpacked), tf.nest.flatten(value), strict=True):
        np.testing.assert_array_equal(got, expected.reshape(2, 3, *expected.shape[1:]))


def test_packs_columns_that_are_not_contiguous():
    layout = ColumnLayout(tensor_spec.TensorSpec((2,), tf.float32, 'x'))
    value = np.arange(12, dtype=np.float32).reshape(2, 6).T  # strided
    np.testing.assert_array_equal(layout.unpack(tf.constant(layout.pack(value))), value)


def test_text_distinguishes_layouts():
    a, b = (ColumnLayout({'x': tf.TensorSpec((size,), tf.float32, 'x')}) for size in (4, 5))
    assert a.text == 'x:float32[4]'
    assert a.text != b.text
    assert a.num_bytes == 16


@pytest.mark.parametrize(('shape', 'dtype'), [((3, 2), np.float64), ((3, 1), np.float32)])
def test_pack_names_the_column_that_does_not_match(shape, dtype):
    with pytest.raises(ValueError, match="got column 'x' with shape .* need"):
        ColumnLayout(tf.TensorSpec((2,), tf.float32, 'x')).pack(np.zeros(shape, dtype))


def test_rejects_specs_without_a_fixed_size():
    with pytest.raises(ValueError, match='need fixed dimensions'):
        _ = ColumnLayout(tf.TensorSpec((None,), tf.float32, 'x')).num_bytes
    with pytest.raises(TypeError, match='need numbers or booleans'):
        _ = ColumnLayout(tf.TensorSpec((), tf.string, 'x')).num_bytes
