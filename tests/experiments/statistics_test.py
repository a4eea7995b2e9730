import json

import numpy as np
import pytest

from benchmarks.suite import results
from benchmarks.suite.rows import RESULTS
from tflearn.experiments import statistics

PUBLISHED = json.loads((RESULTS / results.STATISTICS).read_text())


@pytest.mark.parametrize(
    ('count', 'left'), [(1, [0]), (3, [0, 1, 2]), (4, [1, 2]), (5, [1, 2, 3]), (9, [2, 3, 4, 5, 6])]
)
def test_a_quarter_of_the_runs_is_left_out_at_each_end(count, left):
    values = np.arange(count)[::-1, None] * np.array([1.0, 10.0])
    np.testing.assert_allclose(statistics.interquartile_mean(values), np.mean(left) * np.array([1.0, 10.0]))


def test_the_interval_is_that_of_rliable():
    """As far as drawing at random allows; rliable's numbers are in the suite's results."""
    differences = []
    for key, sides in results.all_rows(RESULTS).items():
        for side, runs in sides.items():
            ends = np.array([run['curve'][-1][1] for run in runs if run['error'] is None])
            if len(ends) < 5:
                continue
            theirs = PUBLISHED[key][side]
            assert statistics.interquartile_mean(ends) == pytest.approx(theirs['iqm'], abs=1e-3)
            spread = max(np.ptp(ends), 1e-6)
            ours = statistics.interval(ends)
            differences += [(ours[0] - theirs['low']) / spread, (ours[1] - theirs['high']) / spread]
    assert len(differences) >= 40
    assert np.abs(differences).max() < 0.1
    assert abs(np.mean(differences)) < 0.01


def test_the_probability_of_improvement_counts_pairs():
    some, others = np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.0])
    expected = (0 + 1 + 0.5 + 1 + 1 + 1) / 6
    found, low, high = statistics.probability_of_improvement(some, others)
    assert found == pytest.approx(expected)
    assert 0 <= low < found < high <= 1
    mirrored, *_ = statistics.probability_of_improvement(others, some)
    assert mirrored == pytest.approx(1 - expected)


def test_groups_apart_are_better_for_certain():
    assert statistics.probability_of_improvement(np.arange(5) + 10.0, np.arange(5.0)) == (1.0, 1.0, 1.0)
    assert statistics.probability_of_improvement(np.ones(5), np.ones(5)) == (0.5, 0.5, 0.5)
