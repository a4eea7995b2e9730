"""Fitted Q evaluation with a feature for each state and action equals dynamic programming."""

import numpy as np
import pytest

from tests.extensions.product import small_mdp
from tflearn.extensions.product import linear_models
from tflearn.extensions.product.linear_models import by_choice, features_of


def fit_all(horizon, gamma):
    """Fits to all episodes by their probabilities; returns q, v, and the states, actions and steps left."""
    known = small_mdp.all_episodes()
    steps = small_mdp.recorded([episode[1:] for episode in known])
    used = np.flatnonzero(steps.is_step)
    taken = np.eye(2)[steps.actions[:, 0].astype(int)]
    rows = linear_models.Rows(
        by_choice(steps.observations, steps.choices),
        used,
        used + 1,
        steps.rewards[used],
        gamma * steps.discounts[used],
    )
    weights = np.repeat([episode[0] for episode in known], steps.lengths)[used]
    left = np.maximum(horizon - steps.times, 0)
    fits = np.stack([weights, weights], axis=1)
    features = by_choice(steps.observations, taken)[used]
    regression = linear_models.Regression(features, fits, ridge=1e-14)
    q_values, values, _ = linear_models.fit(regression, rows, horizon, left, gamma)
    states = steps.observations.argmax(axis=1)
    return q_values, values, states, steps.actions[used, 0].astype(int), used, left


@pytest.mark.parametrize(('horizon', 'gamma'), [(small_mdp.HORIZON, small_mdp.GAMMA), (12, 1.0), (400, 0.8)])
def test_values_equal_dynamic_programming(horizon, gamma):
    q_values, values, states, actions, used, left = fit_all(horizon, gamma)
    exact_v, exact_q = small_mdp.exact_values(small_mdp.TARGET, horizon, gamma)
    expected = np.array([exact_v[k][state] for k, state in zip(left, states, strict=True)])
    np.testing.assert_allclose(values[:, 0], expected, atol=1e-8)
    expected = np.array([exact_q[left[i]][states[i], action] for i, action in zip(used, actions, strict=True)])
    np.testing.assert_allclose(q_values[:, 1], expected, atol=1e-8)


def test_values_stay_within_what_rewards_can_sum_up_to():
    # One feature that grows from step to step: without limits the values would explode.
    features = np.array([[1.0], [10.0]])
    rows = linear_models.Rows(features * 50, np.arange(2), np.arange(2)[::-1], np.ones(2), np.ones(2))
    regression = linear_models.Regression(features, np.ones((2, 1)))
    *_, clipped = linear_models.fit(regression, rows, 30, np.array([30, 7]), 1.0)
    np.testing.assert_allclose(clipped[:, 0], [30, 7])


def test_features_fit_a_smooth_function():
    random = np.random.default_rng(0)
    inputs = np.concatenate([random.normal(size=(800, 2)), np.full((800, 1), 3.0)], axis=1)
    wanted = np.sin(2 * inputs[:, 0]) * inputs[:, 1]
    features = features_of(inputs, 200, seed=1)(inputs)
    assert features.shape == (800, 200)
    theta = np.linalg.lstsq(features[:600], wanted[:600], rcond=1e-8)[0]
    assert np.std(features[600:] @ theta - wanted[600:]) < 0.15 * np.std(wanted)


def test_rejects_too_few_features_and_images():
    with pytest.raises(ValueError, match='got num_features=3 for 3 numbers; need at least 4'):
        features_of(np.zeros((5, 3)), 3, 0)
    with pytest.raises(ValueError, match='images are not supported'):
        features_of(np.zeros((2, 7056)), 8000, 0)
