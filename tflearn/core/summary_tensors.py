"""Summary tensors: scalars and histograms that a train step returns for its summary.

They leave the program as tensors of fixed shapes, and are written outside of it: so they are the same on one replica
and on several, on TPUs, in XLA, and on several workers, of which each runs the same program.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

# TensorFlow's own buckets, each 10% wider than the one before it, on both sides of 0.
_POSITIVE = np.append(1e-12 * 1.1 ** np.arange(773), np.finfo(np.float32).max)
_LIMITS = np.concatenate([-_POSITIVE[::-1], [0.0], _POSITIVE])

_SCALAR = tf.compat.v1.SummaryMetadata(plugin_data={'plugin_name': 'scalars'}, data_class='DATA_CLASS_SCALAR')

_thread = threading.local()  # each replica is traced on a thread of its own


@contextlib.contextmanager
def collecting(wanted: bool = True) -> Iterator[dict[str, tf.Tensor]]:
    """Within it, what this thread traces or runs collects its summary tensors, if wanted: by tag."""
    found: dict[str, tf.Tensor] = {}
    _thread.found, _thread.graph = found if wanted else None, tf.compat.v1.get_default_graph()
    try:
        yield found
    finally:
        _thread.found = None


def is_collecting() -> bool:
    """Returns whether this train step, or the program being traced, is summarized."""
    return getattr(_thread, 'found', None) is not None


def scalar(tag: str, value: tf.Tensor) -> None:
    """Adds a number, if the step is summarized and has none of this tag."""
    _add(tag, lambda: tf.reshape(tf.cast(value, tf.float32), [1]))


def histogram(tag: str, values: tf.Tensor | tf.Variable) -> None:
    """Adds a histogram of the finite elements of `values`, if the step is summarized and has none of this tag."""
    _add(tag, lambda: _counted(tf.reshape(tf.cast(values, tf.float32), [-1])))


def _add(tag: str, make: Callable[[], tf.Tensor]) -> None:
    # Tensors of branches and loops, which are graphs of their own, cannot be returned.
    if is_collecting() and _thread.graph is tf.compat.v1.get_default_graph() and tag not in _thread.found:
        _thread.found[tag] = make()


def _counted(values: tf.Tensor) -> tf.Tensor:
    """Returns the least value, the greatest, and the counts of the buckets."""
    finite = tf.math.is_finite(values)
    buckets = tf.searchsorted(tf.constant(_LIMITS[:-1], tf.float32), tf.where(finite, values, 0.0), side='right')
    counts = tf.math.unsorted_segment_sum(tf.cast(finite, tf.float32), buckets, len(_LIMITS))
    least = tf.reduce_min(tf.where(finite, values, np.inf))
    greatest = tf.reduce_max(tf.where(finite, values, -np.inf))
    return tf.concat([tf.stack([least, greatest]), counts], axis=0)


def serialized(values: Mapping[str, float | np.ndarray]) -> bytes:
    """Returns scalars and histograms by tag, as `scalar` and `histogram` made them, for one event of an event file.

    One operation then writes them all. An operation for each costs more than a train step does.
    """
    summary = tf.compat.v1.Summary()
    for tag, value in values.items():
        if np.size(value) > 1:
            summary.value.add(tag=tag, histo=_histogram_proto(np.asarray(value)))
        else:
            summary.value.add(tag=tag, tensor=tf.make_tensor_proto(np.squeeze(value), tf.float32), metadata=_SCALAR)
    return summary.SerializeToString()


def _histogram_proto(numbers: np.ndarray) -> tf.compat.v1.HistogramProto:
    (least, greatest), counts = numbers[:2], numbers[2:]
    kept = counts > 0
    kept[:-1] |= kept[1:]  # an empty bucket before another one is its lower limit
    buckets = {'bucket_limit': _LIMITS[kept], 'bucket': counts[kept]}
    return tf.compat.v1.HistogramProto(min=least, max=greatest, num=counts.sum(), **buckets)
