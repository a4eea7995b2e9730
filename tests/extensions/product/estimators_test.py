"""The estimators on all episodes of a small decision process: their expectations equal the exact value."""

import numpy as np
import pytest

from tests.extensions.product import small_mdp
from tflearn.extensions.product import estimators
from tflearn.extensions.product.estimators import Episodes

KNOWN = small_mdp.all_episodes()
PROBABILITIES = np.array([[probability for probability, *_ in KNOWN]])
EXACT = small_mdp.exact_value(small_mdp.TARGET)


def padded(row):
    """Returns the rows of all episodes, [N, T]; `row` takes state, action and t."""
    found = np.zeros((len(KNOWN), small_mdp.HORIZON))
    for i, (_, states, actions, _) in enumerate(KNOWN):
        for t, action in enumerate(actions):
            found[i, t] = row(states[t], action, t)
    return found


@pytest.fixture(scope='module')
def episodes():
    log_ratio = np.log(small_mdp.TARGET / small_mdp.BEHAVIOUR)
    ratios = padded(lambda state, action, t: log_ratio[state, action])
    return Episodes(padded(lambda state, action, t: small_mdp.REWARD[state, action]), ratios, small_mdp.GAMMA)


def test_the_episodes_are_all():
    assert PROBABILITIES.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    'make',
    [
        estimators.importance_sampling,
        estimators.weighted_importance_sampling,
        estimators.per_decision,
        estimators.weighted_per_decision,
    ],
)
def test_the_expectation_is_the_exact_value(episodes, make):
    assert make(episodes)(PROBABILITIES)[0] == pytest.approx(EXACT, abs=1e-12)


def test_the_behaviour_value_is_that_of_the_behaviour_policy(episodes):
    exact = small_mdp.exact_value(small_mdp.BEHAVIOUR)
    assert estimators.behaviour_value(episodes)(PROBABILITIES)[0] == pytest.approx(exact, abs=1e-12)
    assert abs(exact - EXACT) > 0.2


@pytest.mark.parametrize('error', [0.0, 3.0])
def test_doubly_robust_is_exact_with_any_q(episodes, error):
    _, exact_q = small_mdp.exact_values(small_mdp.TARGET)
    wrong = np.array([[error, -error], [2 * error, 0.5 * error]])
    q_of = [q + wrong for q in exact_q]
    left = lambda t: small_mdp.HORIZON - t  # noqa: E731
    q_values = padded(lambda state, action, t: q_of[left(t)][state, action])
    values = padded(lambda state, action, t: small_mdp.TARGET[state] @ q_of[left(t)][state])
    estimator = estimators.doubly_robust(episodes, q_values, values)
    assert estimator(PROBABILITIES)[0] == pytest.approx(EXACT, abs=1e-12)
    variance = PROBABILITIES[0] @ (estimator(np.eye(len(KNOWN))) - EXACT) ** 2
    plain = PROBABILITIES[0] @ (estimators.importance_sampling(episodes)(np.eye(len(KNOWN))) - EXACT) ** 2
    assert (variance < plain / 2) == (error == 0)
    direct = estimators.doubly_robust(episodes, q_values, values, largest_ratio=0.0)
    assert direct(PROBABILITIES)[0] == pytest.approx(PROBABILITIES[0] @ values[:, 0], abs=1e-12)


def test_effective_sample_size():
    assert estimators.effective_sample_size(np.zeros(7)) == pytest.approx(7)
    assert estimators.effective_sample_size(np.log([1e-300, 1.0, 1e-300])) == pytest.approx(1)
    assert estimators.effective_sample_size(np.full(3, 5000.0)) == pytest.approx(3)
    assert estimators.effective_sample_size(np.full(3, -np.inf)) == 0
    weights = np.array([0.5, 1.0, 2.5])
    assert estimators.effective_sample_size(np.log(weights)) == pytest.approx(16 / 7.5)


def test_huge_ratios_do_not_overflow_weighted_estimates():
    episodes = Episodes(np.array([[1.0, 1.0], [2.0, 2.0]]), np.array([[400.0, 500.0], [-np.inf, 3.0]]), 1.0)
    counts = np.ones((1, 2))
    assert estimators.weighted_importance_sampling(episodes)(counts)[0] == pytest.approx(2)
    assert estimators.weighted_per_decision(episodes)(counts)[0] == pytest.approx(2)


def test_the_mean_weight_is_one():
    of = lambda *ratios: Episodes(np.ones((len(ratios), 1)), np.log(np.array(ratios))[:, np.newaxis], 1.0)  # noqa: E731
    assert estimators.mean_weight_is_one(of(0.5, 1.5, 1.0, 1.0))
    assert not estimators.mean_weight_is_one(of(1.3, 1.3, 1.3, 1.3))
    assert not estimators.mean_weight_is_one(of(1e300, 1.0, 1.0, 1.0))


def test_no_weight_at_all_is_not_defined():
    episodes, counts = Episodes(np.ones((4, 2)), np.full((4, 2), -np.inf), 1.0), np.ones((1, 4))
    assert np.isnan(estimators.weighted_importance_sampling(episodes)(counts)[0])
    assert estimators.importance_sampling(episodes)(counts)[0] == 0


def test_rejects_wrong_arguments():
    with pytest.raises(ValueError, match=r'got rewards \(2, 1\) and ratios \(1, 2\); need two arrays'):
        Episodes(np.zeros((2, 1)), np.zeros((1, 2)), 1.0)
