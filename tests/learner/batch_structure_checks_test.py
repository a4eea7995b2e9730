"""What a strategy needs of a dataset."""

import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from tflearn.core import strategies
from tflearn.files.run_dir import RunDir
from tflearn.learner import batch_structure
from tflearn.learner.learner import Learner


@pytest.fixture
def tpu():
    """There is no TPU here: a strategy that only has its type."""
    return object.__new__(tf.distribute.TPUStrategy)


def _endless(spec):
    return tf.data.Dataset.from_generator(lambda: iter(()), output_signature=spec).repeat()


def _trajectory(observation):
    ones = tf.TensorSpec((4, 2), tf.float32)
    return trajectory.Trajectory(ones, {'image': observation}, ones, (), ones, ones, ones)


def test_tpu_accepts_known_shapes(tpu):
    spec = (_trajectory(tf.TensorSpec((4, 2, 3))), {'version': tf.TensorSpec((4, 2))})
    batch_structure.check_dataset(_endless(spec), tpu)


@pytest.mark.parametrize('shape', [(None, 2, 3), (4, None, 3), None])
def test_tpu_rejects_an_unknown_dimension(tpu, shape):
    with pytest.raises(
        ValueError, match=r'got the shape .* of .*observation/image in the data; need all .*drop_remainder'
    ):
        batch_structure.check_dataset(_endless((_trajectory(tf.TensorSpec(shape)), ())), tpu)


def test_tpu_rejects_an_incomplete_last_batch(tpu):
    numbers = tf.data.Dataset.range(9).repeat()
    batch_structure.check_dataset(numbers.batch(4, drop_remainder=True), tpu)
    with pytest.raises(ValueError, match=r'got the shape \(None,\)'):
        batch_structure.check_dataset(numbers.batch(4), tpu)


def test_tpu_rejects_strings(tpu):
    with pytest.raises(ValueError, match='got strings in .*name of the data; need numbers'):
        batch_structure.check_dataset(_endless({'name': tf.TensorSpec((4,), tf.string)}), tpu)


def test_tpu_rejects_a_dataset_that_may_end(tpu):
    with pytest.raises(ValueError, match='got a dataset of 8 elements; need an endless one'):
        batch_structure.check_dataset(tf.data.Dataset.range(8), tpu)
    with pytest.raises(ValueError, match='got a dataset of unknown size; need an endless one'):
        batch_structure.check_dataset(tf.data.Dataset.range(8).repeat().take_while(lambda i: i < 4), tpu)


def test_several_workers_need_an_endless_dataset(tmp_path, make_agent, make_dataset_fn, monkeypatch):
    learn = lambda: Learner(make_agent(), make_dataset_fn(0, 7), RunDir(tmp_path))  # noqa: E731
    learn()
    two_workers = strategies.ReplicaLayout(2, 2, 0, 2, True)
    monkeypatch.setattr(strategies, 'layout', lambda strategy: two_workers)
    with pytest.raises(ValueError, match='got a dataset of 7 elements; need an endless one for several workers'):
        learn()
