import json
import pathlib

import numpy as np
import pytest

from tflearn.extensions.experiments import comparison

# By rliable 1.2.0, 2,000 draws: of last returns, and of scores of two libraries, that the suite's runs had.
RLIABLE = json.loads(pathlib.Path(__file__).with_name('rliable.json').read_text())


@pytest.mark.parametrize(
    ('count', 'left'), [(1, [0]), (3, [0, 1, 2]), (4, [1, 2]), (5, [1, 2, 3]), (9, [2, 3, 4, 5, 6])]
)
def test_a_quarter_of_the_runs_is_left_out_at_each_end(count, left):
    values = np.arange(count)[::-1, None] * np.array([1.0, 10.0])
    np.testing.assert_allclose(comparison.interquartile_mean(values), np.mean(left) * np.array([1.0, 10.0]))


def test_the_interval_is_that_of_rliable():
    """As far as drawing at random allows."""
    differences = []
    for theirs in RLIABLE['measures']:
        runs = np.array(theirs['runs'])
        assert comparison.interquartile_mean(runs) == pytest.approx(theirs['iqm'], abs=2e-3)
        low, high = comparison.bootstrap_interval(runs)
        differences += [(low - theirs['low']) / np.ptp(runs), (high - theirs['high']) / np.ptp(runs)]
    assert len(differences) == 50
    assert np.abs(differences).max() < 0.1
    assert abs(np.mean(differences)) < 0.01


def test_the_probability_of_improvement_is_that_of_rliable():
    for theirs in RLIABLE['improvements']:
        found = comparison.probability_of_improvement(np.array(theirs['runs']), np.array(theirs['others']))
        assert found[0] == pytest.approx(theirs['improvement'][0])
        np.testing.assert_allclose(found[1:], theirs['improvement'][1:], atol=0.08)


def test_the_probability_of_improvement_counts_pairs():
    some, others = np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.0])
    expected = (0 + 1 + 0.5 + 1 + 1 + 1) / 6
    found, low, high = comparison.probability_of_improvement(some, others)
    assert found == pytest.approx(expected)
    assert 0 <= low < found < high <= 1
    mirrored, *_ = comparison.probability_of_improvement(others, some)
    assert mirrored == pytest.approx(1 - expected)


def test_groups_apart_are_better_for_certain():
    assert comparison.probability_of_improvement(np.arange(5) + 10.0, np.arange(5.0)) == (1.0, 1.0, 1.0)
    assert comparison.probability_of_improvement(np.ones(5), np.ones(5)) == (0.5, 0.5, 0.5)
