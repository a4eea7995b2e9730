import numpy as np
import tensorflow as tf

from tflearn.core.layout import ColumnLayout
from tflearn.sampling.ring_buffer import RingColumns

SPEC = {
    'image': tf.TensorSpec((12, 12, 3), tf.uint8, 'image'),
    'state': (tf.TensorSpec((3,), tf.float32, 'velocity'), tf.TensorSpec((100, 2), tf.float32, 'map')),
    'done': tf.TensorSpec((), tf.bool, 'done'),
    'count': tf.TensorSpec((), tf.int64, 'count'),
}


def _values(num_rows):
    random = np.random.default_rng(0)
    return tf.nest.map_structure(
        lambda spec: random.integers(0, 2, (num_rows, *spec.shape)).astype(spec.dtype.as_numpy_dtype), SPEC
    )


def test_returns_narrow_and_wide_columns_together():
    layout, values = ColumnLayout(SPEC), _values(20)
    columns = RingColumns(layout, 30)
    columns.write(5, layout.pack(values))
    indices = np.random.default_rng(1).integers(0, 20, (4, 6, 2))  # batches, sequences, steps
    drawn = tf.function(columns.draw)(tf.constant(5 + indices))
    for i in range(4):
        batch = tf.function(columns.batch)(drawn, tf.constant(i))
        tf.nest.map_structure(
            lambda got, column, i=i: np.testing.assert_array_equal(got, column[indices[i]]), batch, values
        )


def test_draw_does_not_copy_images():
    layout = ColumnLayout(SPEC)
    columns = RingColumns(layout, 30)
    assert columns.drawn_bytes == 3 * 4 + 1 + 8
    drawn = columns.draw(tf.zeros((4, 6, 2), tf.int64))
    assert sum(part.shape.num_elements() * part.dtype.size for part in drawn[0]) == 4 * 6 * 2 * columns.drawn_bytes
