"""The losses of TD3: noise, scales and distances; bounds of its settings."""

import numpy as np
import pytest
import tensorflow as tf

from tflearn.agents import td3
from tflearn.agents.td3 import TD3Loss


def test_noise_is_clipped_and_scaled_to_the_bounds():
    bounds = np.float32([-2.0, 0.0]), np.float32([2.0, 1.0])
    actions, noise = (
        np.float32([[0.0, 0.5], [1.9, 0.5], [0.0, 0.5]]),
        np.float32([[1.0, 1.0], [1.0, -1.0], [9.0, -9.0]]),
    )
    found = td3.smoothed_actions(actions, noise, bounds, TD3Loss())
    np.testing.assert_allclose(found, [[0.4, 0.6], [2.0, 0.4], [1.0, 0.25]], rtol=1e-6)


def test_the_value_scale_is_of_the_items_that_count():
    scale = td3.value_scale(2.5, tf.constant([2.0, -4.0, 100.0]), tf.constant([1.0, 1.0, 0.0]))
    assert float(scale) == pytest.approx(2.5 / 3)
    assert float(td3.value_scale(2.5, tf.zeros(3), tf.ones(3))) == 0.0


def test_distances_are_in_half_ranges():
    bounds = np.float32([-2.0, 0.0, 5.0]), np.float32([2.0, 1.0, 5.0])
    found = td3.distances(tf.constant([[1.0, 0.0, 5.0]]), tf.constant([[-1.0, 0.25, 5.0]]), bounds)
    np.testing.assert_allclose(found, [(1.0 + 0.25) / 3])
