import numpy as np
import pytest

from tflearn.optimization import conservative

GENERATOR = np.random.default_rng(0)


def test_the_gap_of_all_choices():
    values, own = GENERATOR.normal(size=(5, 3)), GENERATOR.normal(size=5)
    found = conservative.gap(np.float32(values), np.float32(own))
    np.testing.assert_allclose(found, np.log(np.exp(values).sum(axis=1)) - own, rtol=1e-5)


def test_the_gap_of_drawn_actions_estimates_the_integral():
    """Of exp(a) over [0, 2], from uniform actions and from actions of the density a / 2."""
    numbers = 20_000
    uniform, other = 2 * GENERATOR.random(numbers), 2 * np.sqrt(GENERATOR.random(numbers))
    actions = np.concatenate([uniform, other])[np.newaxis]
    densities = np.concatenate([np.full(numbers, 0.5), other / 2])[np.newaxis]
    found = conservative.gap(np.float32(actions), np.float32([0.5]), np.float32(np.log(densities)))
    np.testing.assert_allclose(found, [np.log(np.exp(2) - 1) - 0.5], atol=0.02)


def test_rejects_a_target_without_a_weight():
    with pytest.raises(ValueError, match='got Conservative.target_gap=5.0 with weight=0.0; need .* above 0'):
        conservative.Conservative(target_gap=5.0)
