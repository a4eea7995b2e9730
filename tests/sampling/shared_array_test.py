import mmap

import numpy as np
import pytest
import tensorflow as tf

from tflearn.sampling.ring_buffer import SharedArray


@pytest.mark.parametrize('num_rows', [3, 1000])
@pytest.mark.parametrize(
    'dtype', [tf.bool, tf.uint8, tf.int8, tf.int32, tf.int64, tf.bfloat16, tf.float16, tf.float32, tf.float64], ids=str
)
def test_compiled_program_reads_current_values(num_rows, dtype):
    array = SharedArray(num_rows, (2, 5), dtype)
    read = tf.function(lambda: array.gather(tf.range(num_rows)))
    assert not np.any(read().numpy().astype(bool))
    random = np.random.default_rng(0)
    for _ in range(2):
        written = random.integers(0, 2, (num_rows, 2, 5)).astype(dtype.as_numpy_dtype)
        array.rows[:] = written.view(np.uint8).reshape(num_rows, -1)
        assert read().dtype == dtype
        np.testing.assert_array_equal(read(), written)


def test_rows_without_dimensions():
    array = SharedArray(1, (), tf.int64)
    array.rows[:] = np.array([[7]], np.int64).view(np.uint8)
    assert array.gather(tf.constant([[0, 0]])).numpy().tolist() == [[7, 7]]


def test_works_without_huge_pages(monkeypatch):
    class Memory(mmap.mmap):
        def madvise(self, *_):
            raise OSError('Invalid argument')

    monkeypatch.setattr(mmap, 'mmap', Memory)
    array = SharedArray(200, (), tf.int32)
    array.rows[150] = np.array([7], np.int32).view(np.uint8)
    assert array.gather(tf.constant(150)).numpy() == 7
