import pytest
import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from tflearn.core import strategies
from tflearn.files.run_dir import RunDir
from tflearn.learner import batches, datasets
from tflearn.learner.learner import Learner


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
    iterator = datasets.iterate(_distributed(autotune=True))
    assert [options.autotune.enabled for options in _options(iterator)] == [False, False]
    assert multi_device_iterator_ops._create_device_dataset is before
    assert [[int(value) for value in each.values] for each in iterator] == [[0, 1], [2, 3], [4, 5]]


def test_tensorflow_would_tune_it():
    """Without that, the function under test would not be needed."""
    assert not any(options.autotune.enabled is False for options in _options(iter(_distributed(autotune=False))))


def test_one_device_has_the_iterator_of_the_dataset():
    iterator = datasets.iterate(tf.distribute.get_strategy().distribute_datasets_from_function(lambda _: _numbers()))
    assert [int(value) for value in iterator] == [0, 1, 2]


def _numbers():
    return tf.data.Dataset.range(3)


def test_the_hosts_of_a_tpu_have_the_distributed_iterator(tmp_path, make_agent, make_dataset_fn, monkeypatch, caplog):
    """With two CPUs in place of a TPU, of which there is none here; five batches for them make two train steps."""
    strategy = strategies.make('mirrored:2')
    monkeypatch.setattr(batches, 'wrap', lambda data, strategy, *_: datasets.HostsBatches(data, strategy))
    dataset_fn = lambda context, consumed: make_dataset_fn()(context).skip(consumed).take(5)  # noqa: E731
    learner = Learner(make_agent(strategy), dataset_fn, RunDir(tmp_path), strategy=strategy)
    result = learner.run(10)
    assert (result.num_steps, result.data_ended) == (2, True)
    assert result.info == {'policy_version': pytest.approx(0.5)}, 'the mean over replicas and steps'
    assert sum('hosts of a TPU are in no checkpoint' in line for line in caplog.messages) == 1
