import numpy as np
import pytest
import tensorflow as tf

from tests.testing import small_tasks
from tflearn.agents import ppo
from tflearn.core.train_step import create_train_step
from tflearn.core.types import specs_of
from tflearn.networks import quantiles
from tflearn.networks.networks import NetworkOptions
from tflearn.networks.quantiles import QuantileFeatures

MAKE = small_tasks.make_sizes
PATHS = ['bytes', 'calls', 'depth']


@pytest.mark.parametrize('dtype', [tf.int64, tf.int32, tf.float32])
def test_shares_of_boundaries(dtype):
    layer = QuantileFeatures([0.0, 1.0, 1.0, 10.0])
    shares = np.array([0.0, 0.25, 0.75, 0.75, 1.0])
    got = layer(tf.constant([-1, 0, 1, 9, 10], dtype))
    np.testing.assert_allclose(got, np.stack([shares, np.sqrt(shares), shares**2], axis=1), rtol=1e-6)
    assert QuantileFeatures.from_config(layer.get_config())(tf.constant([[5]], dtype)).shape == (1, 1, 3)


def test_quantiles_of_an_environment_and_their_files(tmp_path):
    found = quantiles.boundaries(MAKE, num_steps=300, num_boundaries=20)
    assert found == quantiles.boundaries(MAKE, num_steps=300, num_boundaries=20), 'the seed decides'
    assert set(found) == set(PATHS)
    sizes = found['bytes']
    assert len(sizes) == 20 and sizes == sorted(sizes) and sizes[-1] > 3 * sizes[10]
    quantiles.write(str(tmp_path / 'vocabulary'), found)
    layers = quantiles.from_files(str(tmp_path / 'vocabulary'))
    computed = quantiles.from_environment(MAKE, num_steps=300, num_boundaries=20)
    values = tf.constant([0, 10, 50, 400], tf.int64)
    for path, layer in computed.items():
        np.testing.assert_array_equal(layers[path](values), layer(values))
    assert set(quantiles.from_environment(MAKE, 10, 5, ['calls'])) == {'calls'}


def test_ppo_takes_them():
    layers = quantiles.from_environment(MAKE, num_steps=50, num_boundaries=10)
    options = NetworkOptions(fc_layer_params=(8,), preprocessing_layers=layers)
    agent = ppo.make_agent(specs_of(MAKE), create_train_step(), ppo.EXPERIENCE, network=options)
    kernels = [variable.shape.as_list() for variable in agent.policy.variables()]
    assert [3 * len(PATHS), 8] in kernels


def test_rejects_what_is_no_boundaries(tmp_path):
    for boundaries in ([], [2.0, 1.0]):
        with pytest.raises(ValueError, match='need one or more numbers that ascend'):
            QuantileFeatures(boundaries)
    with pytest.raises(FileNotFoundError, match='need files <path of the leaf>.buckets in it'):
        quantiles.from_files(str(tmp_path))
    (tmp_path / 'size.buckets').write_text('1\nmany\n')
    with pytest.raises(ValueError, match=r'got the file .*size.buckets .*many.*; need a number a line'):
        quantiles.from_files(str(tmp_path))
    (tmp_path / 'age.buckets').symlink_to('age.buckets')
    with pytest.raises(ValueError, match=r'got the file .*age.buckets .*symbolic links.*; need a number a line'):
        quantiles.from_files(str(tmp_path))
    with pytest.raises(ValueError, match=r"got paths=\['sizes'\]; need one or more of bytes, calls, depth"):
        quantiles.boundaries(MAKE, paths=['sizes'])
