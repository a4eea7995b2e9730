import numpy as np
import pytest
import tensorflow as tf

from tflearn.core.train_step import Draws, create_train_step
from tflearn.optimization import ensemble

RANDOM = np.random.default_rng(0)


def _draws():
    tf.random.set_seed(7)
    draws = Draws(create_train_step())
    draws.restart()
    return draws


def test_truncated_targets_and_losses_are_the_papers():
    """Against sums over critics, quantiles and targets in float64."""
    rule = ensemble.Truncated(num_quantiles=4, num_dropped=1)
    following, own = (RANDOM.normal(0, 2, (3, 2, 4)).astype(np.float32) for _ in range(2))
    kept = rule.bootstraps(tf.constant(following), _draws()).numpy()
    np.testing.assert_array_equal(kept, [sorted(item.ravel())[: 2 * 3] for item in following])
    targets = 0.5 + 0.9 * kept
    expected = np.zeros(3)
    for item, critic, quantile, i in np.ndindex(3, 2, 4, 6):
        error = np.float64(targets[item, i]) - own[item, critic, quantile]
        huber = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
        expected[item] += abs((quantile + 0.5) / 4 - (error < 0)) * huber / (4 * 6)
    np.testing.assert_allclose(rule.losses(tf.constant(own), tf.constant(targets)), expected, rtol=1e-5)


def test_the_least_of_drawn_critics():
    values = tf.constant(RANDOM.normal(0, 2, (5, 3, 1)).astype(np.float32))
    np.testing.assert_array_equal(ensemble.Least(3).bootstraps(values, _draws()), values.numpy().min(axis=1))
    pairs = [values.numpy()[:, pair].min(axis=1) for pair in ([0, 1], [0, 2], [1, 2])]
    draws = _draws()
    drawn = [ensemble.Least(2).bootstraps(values, draws).numpy() for _ in range(60)]
    counts = [sum(np.array_equal(found, pair) for found in drawn) for pair in pairs]
    assert sum(counts) == 60
    assert min(counts) >= 5
    losses = ensemble.Least().losses(values, tf.constant(RANDOM.normal(0, 1, (5, 1)).astype(np.float32)))
    assert losses.shape == (5,)


def test_squared_errors_are_summed_over_the_critics():
    losses = ensemble.Least().losses(tf.constant([[[1.0], [3.0]], [[0.0], [0.0]]]), tf.constant([[2.0], [3.0]]))
    np.testing.assert_allclose(losses, [2.0, 18.0])


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: ensemble.Truncated(5, 5), 'got num_dropped=5 of num_quantiles=5; need fewer than the quantiles'),
        (lambda: ensemble.Truncated(5, -1), 'got Truncated.num_dropped=-1'),
        (lambda: ensemble.Least(0), 'got Least.num_critics=0; need an integer of at least 1'),
    ],
)
def test_numbers_have_bounds(make, message):
    with pytest.raises(ValueError, match=message):
        make()
