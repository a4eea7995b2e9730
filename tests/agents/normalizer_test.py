import numpy as np
import tensorflow as tf

from tflearn.agents.normalizer import Normalizer

SPEC = {'big': tf.TensorSpec((2,), tf.float32), 'flag': tf.TensorSpec((), tf.float32)}


def _values(generator, size):
    return {
        'big': np.float32(generator.normal((1e4, -3.0), (1.0, 5.0), (size, 3, 2))),
        'flag': np.float32(generator.uniform(size=(size, 3))),
    }


def test_updates_in_parts_equal_one_update():
    """Mean and variance of all valid values, also far from 0; invalid ones and those not finite change nothing."""
    normalizer, generator = Normalizer(SPEC, clipping=3.0), np.random.default_rng(1)
    kept = {name: [] for name in SPEC}
    for size in (1, 7, 200):
        values, counts = _values(generator, size), np.float32(generator.random((size, 3)) < 0.7)
        for name, value in values.items():
            kept[name].append(value[counts > 0])
            value[counts == 0] = np.inf
        values['flag'][0, 0] = np.nan
        for parts in kept.values():
            parts[-1] = parts[-1][int(counts[0, 0]) :]
        normalizer.update(tf.nest.map_structure(tf.constant, values), tf.constant(counts))
    full = {name: np.concatenate(parts).astype(np.float64) for name, parts in kept.items()}
    assert normalizer.count.numpy() == len(full['flag'])
    for mean, variance, value in zip(normalizer.means, normalizer.variances, tf.nest.flatten(full), strict=True):
        np.testing.assert_allclose(mean, value.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(variance, value.var(axis=0), rtol=1e-3)
    normal = normalizer({name: tf.constant(np.float32(value)) for name, value in full.items()})
    for name, value in full.items():
        expected = np.clip((value - value.mean(axis=0)) / value.std(axis=0), -3, 3)
        np.testing.assert_allclose(normal[name], expected, atol=3e-3)


def test_without_data_and_without_a_center():
    values = tf.constant([[2.0, -4.0]])
    normalizer = Normalizer(tf.TensorSpec((), tf.float32), clipping=10.0, center=False)
    np.testing.assert_allclose(normalizer(values), values, rtol=1e-6)
    normalizer.update(values, tf.zeros((1, 2)))
    np.testing.assert_allclose(normalizer(values), values, rtol=1e-6)
    normalizer.update(values, tf.ones((1, 2)))
    np.testing.assert_allclose(normalizer(values), values / np.sqrt(10.0), rtol=1e-6)


def test_rewards_keep_the_order_of_returns_and_their_bound():
    """A rare reward of 30 is worth more than 200 steps of 0.1, though it is more than 10 times the root mean square."""
    rewards = np.zeros((2, 200), np.float32)
    rewards[0, -1], rewards[1] = 30.0, 0.1
    strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])
    with strategy.scope():
        normalizer = Normalizer(tf.TensorSpec((), tf.float32), clipping=10.0, center=False)
    own = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(rewards[context.replica_id_in_sync_group :][:1])
    )
    update = tf.function(lambda row: strategy.run(normalizer.update, (row, tf.ones((1, 200)))), autograph=False)
    update(own)
    returns = normalizer(tf.constant(rewards)).numpy().sum(axis=1)
    np.testing.assert_allclose(returns, [10.0, 20 / 3], rtol=1e-4)
