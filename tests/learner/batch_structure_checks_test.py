import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from tflearn.distribute import strategies
from tflearn.learner import batch_structure


def _trajectory(observation):
    ones = tf.TensorSpec((4, 2), tf.float32)
    return trajectory.Trajectory(ones, {'image': observation}, ones, (), ones, ones, ones)


def test_known_shapes():
    batch_structure.refuse_unknown_shapes((_trajectory(tf.TensorSpec((4, 2, 3))), {'version': tf.TensorSpec((4, 2))}))


@pytest.mark.parametrize('shape', [(None, 2, 3), (4, None, 3), None])
def test_an_unknown_dimension_is_named(shape):
    with pytest.raises(
        ValueError, match=r'got the shape .* of .*observation/image in the data; need all .*drop_remainder'
    ):
        batch_structure.refuse_unknown_shapes((_trajectory(tf.TensorSpec(shape)), ()))


def test_strings_are_named():
    with pytest.raises(ValueError, match='got strings in .*name of the data; need numbers'):
        batch_structure.refuse_unknown_shapes({'name': tf.TensorSpec((4,), tf.string)})


def _element_spec(dataset):
    strategy = strategies.make('mirrored:2')
    return strategy.distribute_datasets_from_function(lambda _: dataset).element_spec


def test_what_replicas_get():
    numbers = tf.data.Dataset.range(9).repeat()
    batch_structure.refuse_unknown_shapes(_element_spec(numbers.batch(4, drop_remainder=True)))
    with pytest.raises(ValueError, match=r'got the shape \(None,\)'):
        batch_structure.refuse_unknown_shapes(_element_spec(numbers.batch(4)))


def test_a_dataset_that_may_end():
    batch_structure.refuse_finite(tf.data.Dataset.range(8).repeat())
    with pytest.raises(ValueError, match='got a dataset of 8 elements; need an endless one'):
        batch_structure.refuse_finite(tf.data.Dataset.range(8))
    with pytest.raises(ValueError, match='got a dataset of unknown size; need an endless one'):
        batch_structure.refuse_finite(tf.data.Dataset.range(8).repeat().take_while(lambda i: i < 4))
