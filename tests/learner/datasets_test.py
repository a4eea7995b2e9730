import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from tflearn.core import strategies
from tflearn.learner import batches


def _distributed(autotune):
    options = tf.data.Options()
    options.autotune.enabled = autotune
    dataset = tf.data.Dataset.range(6).with_options(options)
    return strategies.make('mirrored:2').distribute_datasets_from_function(lambda _: dataset)


def _options(iterator):
    """Options of the dataset of each device; of TensorFlow 2.15."""
    (worker,) = iterator._iterators
    return [each._dataset.options() for each in worker._iterator._device_iterators]


def test_what_fetches_elements_to_devices_is_not_tuned():
    before = multi_device_iterator_ops._create_device_dataset
    iterator = batches.iterate(_distributed(autotune=True))
    assert [options.autotune.enabled for options in _options(iterator)] == [False, False]
    assert multi_device_iterator_ops._create_device_dataset is before
    assert [[int(value) for value in each.values] for each in iterator] == [[0, 1], [2, 3], [4, 5]]


def test_tensorflow_would_tune_it():
    """Without that, the function under test would not be needed."""
    assert not any(options.autotune.enabled is False for options in _options(iter(_distributed(autotune=False))))


def test_one_device_has_the_iterator_of_the_dataset():
    iterator = batches.iterate(tf.distribute.get_strategy().distribute_datasets_from_function(lambda _: _numbers()))
    assert [int(value) for value in iterator] == [0, 1, 2]


def _numbers():
    return tf.data.Dataset.range(3)
