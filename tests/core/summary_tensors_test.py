"""Histograms as TensorBoard reads them."""

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from tests.testing import lanes
from tflearn.core import summary_tensors
from tflearn.learner.summaries import Summaries


@pytest.fixture
def written(tmp_path):
    """Returns a function that writes the histogram of a compiled step and returns it as TensorBoard reads it."""

    def write(values, jit_compile=False):
        @tf.function(autograph=False, jit_compile=jit_compile)
        def step(data):
            with summary_tensors.collecting() as found:
                summary_tensors.histogram('data/values', data)
                summary_tensors.histogram('data/values', 2 * tf.cast(data, tf.float32))
            return found

        summaries = Summaries(tmp_path)
        summaries.write_tags(7, {tag: found.numpy() for tag, found in step(tf.constant(values)).items()})
        summaries.close()
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


@pytest.mark.parametrize('jit_compile', [False, pytest.param(True, marks=lanes.compiles)])
def test_buckets_are_those_of_tensorflow(written, jit_compile):
    """They are within 10% of each value, on both sides of 0."""
    values = np.random.default_rng(0).standard_cauchy(1_000).astype(np.float32)
    buckets = written([0.0, *values], jit_compile)['data/values'][7]
    theirs = tf.compat.v1.Summary.FromString(tf.raw_ops.HistogramSummary(tag='a', values=[0.0, *values]).numpy())
    limits, counts = (np.array(part) for part in (theirs.value[0].histo.bucket_limit, theirs.value[0].histo.bucket))
    ours = buckets[buckets[:, 2] > 0]
    np.testing.assert_array_equal(ours[:, 2], counts[counts > 0])
    np.testing.assert_allclose(ours[:-1, 1], limits[counts > 0][:-1], rtol=1e-5)


def test_what_is_collected_elsewhere_is_left_out():
    """A branch's tensors cannot be returned, nor are there any without a summary."""

    @tf.function(autograph=False)
    def step(wanted):
        with summary_tensors.collecting(wanted) as found:
            summary_tensors.scalar('own', 2.0)
            tf.cond(tf.constant(1) > 0, lambda: summary_tensors.scalar('in_branch', 1.0), lambda: None)
        summary_tensors.scalar('after', 1.0)
        return found

    assert {tag: float(value[0]) for tag, value in step(True).items()} == {'own': 2.0}
    assert step(False) == {}
