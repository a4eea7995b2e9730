"""Histograms as TensorBoard reads them."""

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from tflearn.core import histograms


@pytest.fixture
def written(tmp_path):
    """Returns a function that writes histograms in a compiled step and returns them as TensorBoard reads them."""

    def write(values, record=True):
        @tf.function
        def step(data):
            with tf.name_scope('data/'):
                histograms.write('values', data, tf.constant(7, tf.int64))

        writer = tf.summary.create_file_writer(str(tmp_path))
        with writer.as_default(), tf.summary.record_if(record):
            step(tf.constant(values))
        writer.close()
        accumulator = EventAccumulator(str(tmp_path), size_guidance={'tensors': 0}).Reload()
        tags = accumulator.Tags()['tensors']
        found = {tag: accumulator.Tensors(tag) for tag in tags}
        return {
            tag: {event.step: tf.make_ndarray(event.tensor_proto) for event in events} for tag, events in found.items()
        }

    return write


def test_tensorboard_reads_the_histogram(written):
    found = written([[0.5, -1.0], [2.0, 0.5]])
    assert list(found) == ['data/values']
    buckets = found['data/values'][7]
    assert (buckets[0, 0], buckets[-1, 1], buckets[:, 2].sum()) == (-1.0, 2.0, 4)
    around = (buckets[:, 0] <= 0.5) & (buckets[:, 1] > 0.5)
    assert buckets[around, 2] == 2


@pytest.mark.parametrize('values', [[1.0, np.nan, 3.0, -np.inf], [3, 1], [True, True]])
def test_counts_only_finite_values(written, values):
    numbers = np.array(values, float)
    buckets = written(values)['data/values'][7]
    assert buckets[:, 2].sum() == np.isfinite(numbers).sum()
    assert buckets[-1, 1] == numbers[np.isfinite(numbers)].max()


def test_writes_values_none_of_which_is_finite(written):
    assert list(written([np.nan, np.inf])) == ['data/values']


@pytest.mark.parametrize('record', [False, lambda: tf.constant(1) > 1])
def test_writes_nothing_without_recording(written, record):
    assert written([1.0], record) == {}


def test_record_condition_may_be_a_tensor(written):
    assert list(written([1.0], lambda: tf.constant(2) > 1)) == ['data/values']
