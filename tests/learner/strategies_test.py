import pytest
import tensorflow as tf

from tflearn.learner import strategies


def test_default_is_one_replica():
    assert strategies.make('default').num_replicas_in_sync == 1


@pytest.mark.parametrize('count', [1, 2])
def test_mirrored_on_logical_devices(count):
    strategy = strategies.make(f'mirrored:{count}')
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert strategy.num_replicas_in_sync == count


@pytest.mark.parametrize('name', ['mirrord', 'mirrored:0', 'mirrored:x', 'tpu', ''])
def test_unknown_names(name):
    with pytest.raises(ValueError, match='got strategy=.*mirrored:N'):
        strategies.make(name)


def test_more_replicas_than_devices():
    with pytest.raises(ValueError, match=r'this machine has 4 device\(s\)'):
        strategies.make('mirrored:64')
