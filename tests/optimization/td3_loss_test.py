"""The losses of TD3: noise, scales and distances; bounds of its settings."""

import numpy as np
import pytest
import tensorflow as tf

from tflearn.optimization import td3_loss
from tflearn.optimization.td3_loss import TD3Loss


def test_noise_is_clipped_and_scaled_to_the_bounds():
    bounds = np.float32([-2.0, 0.0]), np.float32([2.0, 1.0])
    actions, noise = (
        np.float32([[0.0, 0.5], [1.9, 0.5], [0.0, 0.5]]),
        np.float32([[1.0, 1.0], [1.0, -1.0], [9.0, -9.0]]),
    )
    found = td3_loss.smoothed_actions(actions, noise, bounds, TD3Loss())
    np.testing.assert_allclose(found, [[0.4, 0.6], [2.0, 0.4], [1.0, 0.25]], rtol=1e-6)


def test_the_value_scale_is_of_the_items_that_count():
    scale = td3_loss.value_scale(2.5, tf.constant([2.0, -4.0, 100.0]), tf.constant([1.0, 1.0, 0.0]))
    assert float(scale) == pytest.approx(2.5 / 3)
    assert float(td3_loss.value_scale(2.5, tf.zeros(3), tf.ones(3))) == 0.0


def test_distances_are_in_half_ranges():
    bounds = np.float32([-2.0, 0.0, 5.0]), np.float32([2.0, 1.0, 5.0])
    found = td3_loss.distances(tf.constant([[1.0, 0.0, 5.0]]), tf.constant([[-1.0, 0.25, 5.0]]), bounds)
    np.testing.assert_allclose(found, [(1.0 + 0.25) / 3])


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'gamma': 1.1}, 'got TD3Loss.gamma=1.1; need a number of at least 0 and at most 1'),
        ({'policy_delay': 0}, 'got TD3Loss.policy_delay=0; need an integer of at least 1'),
        ({'target_policy_noise': -0.1}, 'got TD3Loss.target_policy_noise=-0.1; need a number of at least 0'),
        ({'target_policy_noise_clip': float('nan')}, 'noise_clip=nan; need a finite number of at least 0'),
        ({'behavior_cloning_alpha': 0.0}, 'got TD3Loss.behavior_cloning_alpha=0.0; need a number above 0, or None'),
    ],
)
def test_rejects_invalid_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        TD3Loss(**settings)
