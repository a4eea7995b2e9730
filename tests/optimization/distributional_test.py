"""The losses against slow float64 versions of the papers' formulas."""

import numpy as np
import pytest
import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.optimization.distributional import Categorical, Quantiles

REWARDS, DISCOUNTS = np.array([1.0, -2.0, 30.0], np.float32), np.array([0.9, 0.0, 0.5], np.float32)


def outputs(num, seed):
    return np.random.default_rng(seed).normal(0.0, 3.0, [3, num]).astype(np.float32)


def test_quantile_huber_loss():
    distribution, own, following = Quantiles(5, kappa=0.7), outputs(5, 0), outputs(5, 1)
    expected = np.zeros(3)
    for item in range(3):
        for i in range(5):  # equation 10
            for j in range(5):
                error = REWARDS[item] + np.float64(DISCOUNTS[item]) * following[item, j] - own[item, i]
                huber = 0.5 * error**2 if abs(error) <= 0.7 else 0.7 * (abs(error) - 0.35)
                expected[item] += abs((2 * i + 1) / 10 - (error < 0)) * huber / 0.7 / 5
    found = distribution.losses(*map(tf.constant, (own, following, REWARDS, DISCOUNTS)))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(distribution.means(tf.constant(own)), own.mean(axis=1), rtol=1e-5)


def test_projected_cross_entropy():
    distribution, own, following = Categorical(7, -3.0, 9.0), outputs(7, 0), outputs(7, 1)
    atoms, softmax = np.linspace(-3.0, 9.0, 7), lambda x: np.exp(x) / np.exp(x).sum()
    expected = np.zeros(3)
    for item in range(3):
        targets = np.zeros(7)
        for probability, atom in zip(softmax(following[item].astype(np.float64)), atoms, strict=True):  # algorithm 1
            place = (np.clip(REWARDS[item] + np.float64(DISCOUNTS[item]) * atom, -3.0, 9.0) + 3.0) / 2.0
            low, high = int(np.floor(place)), int(np.ceil(place))
            targets[low] += probability * (high - place if high > low else 1.0)
            targets[high] += probability * (place - low)
        expected[item] = -np.sum(targets * np.log(softmax(own[item].astype(np.float64))))
    found = distribution.losses(*map(tf.constant, (own, following, REWARDS, DISCOUNTS)))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    means = [softmax(logits) @ atoms for logits in own.astype(np.float64)]
    np.testing.assert_allclose(distribution.means(tf.constant(own)), means, rtol=1e-4)


def test_no_gradient_goes_through_the_target():
    for distribution in (Quantiles(4), Categorical(4, -1.0, 1.0)):
        own, following = (tf.constant(outputs(4, seed)) for seed in (0, 1))
        with tf.GradientTape() as tape:
            tape.watch((own, following))
            loss = distribution.losses(own, following, tf.constant(REWARDS), tf.constant(DISCOUNTS))
        gradients = tape.gradient(loss, (own, following))
        assert np.abs(gradients[0]).max() > 0
        assert gradients[1] is None


@pytest.mark.parametrize(
    ('made', 'settings'), [(Quantiles, (0,)), (Quantiles, (8, 0.0)), (Categorical, (1,)), (Categorical, (5, 2.0, 1.0))]
)
def test_impossible_settings_are_refused(made, settings):
    with pytest.raises(UserValueError, match='^got '):
        made(*settings)
