"""Iterators of distributed datasets, which end without delay."""

import threading
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

_patched = threading.Lock()


def iterate(dataset: tf.distribute.DistributedDataset) -> Any:
    """Returns `iter(dataset)`, without the autotuning of what fetches its elements to several devices.

    There is nothing to tune in that part, whose buffers are fixed. But the thread that tunes it may miss that it is
    cancelled (TensorFlow 2.15 calls the callbacks of a cancellation before it says that it is cancelled). Then whoever
    drops the iterator waits for up to a minute for each device, and so does every other thread of Python. The dataset's
    own options decide about the rest of it.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    with _patched:
        create = multi_device_iterator_ops._create_device_dataset
        multi_device_iterator_ops._create_device_dataset = lambda *args: create(*args).with_options(options)
        try:
            return iter(dataset)
        finally:
            multi_device_iterator_ops._create_device_dataset = create
