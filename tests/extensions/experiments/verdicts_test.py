import dataclasses
import itertools
import math

import numpy as np
import pytest

from tflearn.extensions.experiments import verdicts


def enumerated(values, others):
    """Returns the p by listing all splits of the scores, and the greatest p up to 5% of any split."""
    scores = [*values, *others]

    def wins(first):
        rest = [scores[i] for i in range(len(scores)) if i not in first]
        return sum(0.5 + 0.5 * np.sign(scores[i] - other) for i in first for other in rest)

    middle = len(values) * len(others) / 2
    found = [abs(wins(first) - middle) for first in itertools.combinations(range(len(scores)), len(values))]
    ps = {each: np.mean(np.array(found) >= each - 1e-9) for each in set(found)}
    return ps[found[0]], max((p for p in ps.values() if p <= verdicts.LEVEL), default=0.0)


@pytest.mark.parametrize(
    ('values', 'others'),
    [
        ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]),
        ([1.0, 7.0, 3.0, 9.0, 2.5], [5.0, 6.0, 0.0, 8.0]),
        ([1.0, 1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0, 0.0]),
        ([2.0, 2.0, 1.0, 2.0], [2.0, 1.0, 3.0, 3.0, 3.0]),
        ([5.0] * 4, [5.0] * 4),
    ],
)
def test_p_and_level_are_those_of_all_splits(values, others):
    found = verdicts.judge(np.array(values), np.array(others))
    p, level = enumerated(values, others)
    assert (found.p, found.level) == (pytest.approx(p), pytest.approx(level))
    mirrored = verdicts.judge(np.array(others), np.array(values))
    assert (mirrored.p, mirrored.level) == (pytest.approx(p), pytest.approx(level))
    assert found.probability == pytest.approx(1 - mirrored.probability)
    assert found.difference == pytest.approx((-mirrored.difference[1], -mirrored.difference[0]))


def test_p_and_level_of_pairs_are_those_of_all_flips_of_the_signs():
    others, values = np.zeros(7), np.array([3.0, -1.0, 4.0, 1.0, 5.0, 0.0, 2.0])
    found = verdicts.judge(values, others, paired=True)
    ranks, observed = np.array([4.0, 1.5, 5.0, 1.5, 6.0, 3.0]), 19.5
    sums = [ranks @ flips for flips in itertools.product((0, 1), repeat=6)]
    distances = np.abs(np.array(sums) - ranks.sum() / 2)
    assert found.p == pytest.approx(np.mean(distances >= observed - ranks.sum() / 2))
    ps = [np.mean(distances >= each) for each in distances]
    assert found.level == pytest.approx(max(p for p in ps if p <= verdicts.LEVEL))
    better = verdicts.judge(values + 3.0, others, paired=True)
    assert (better.word, verdicts.judge(others, values + 3.0, paired=True).word) == ('better', 'worse')
    assert verdicts.judge(values[:5], others[:5], paired=True) is None, 'five pairs have no p below 6.25%'


def test_pairs_that_share_their_starts_show_a_smaller_difference():
    starts, noise = np.arange(8.0) * 10, np.array([0.1, 0.3, 0.2, 0.5, 0.1, 0.2, 0.4, 0.3])
    assert verdicts.judge(starts + 1 + noise, starts).word == 'not told apart'
    assert verdicts.judge(starts + 1 + noise, starts, paired=True).word == 'better'


@pytest.mark.parametrize(
    ('numbers', 'level', 'deviations'),
    [((4, 4), 2 / 70, 2.9), ((5, 5), 8 / 252, 2.3), ((10, 5), 0.04, 1.8), ((10, 10), 0.0433, 1.4)],
)
def test_it_states_its_level_and_the_difference_that_it_sees_in_80_percent(numbers, level, deviations):
    values, others = np.arange(numbers[0]) * 2.0, np.arange(numbers[1]) * 2.0 + 1
    found = verdicts.judge(values, others)
    assert found.word == 'not told apart'
    assert found.level == pytest.approx(level, abs=1e-4)
    assert found.deviations == pytest.approx(deviations, abs=0.05)
    squares = ((values - values.mean()) ** 2).sum() + ((others - others.mean()) ** 2).sum()
    assert found.visible == pytest.approx(found.deviations * math.sqrt(squares / (sum(numbers) - 2)))
    rng = np.random.default_rng(7)
    seen = [
        verdicts.judge(rng.normal(found.deviations, size=numbers[0]), rng.normal(size=numbers[1])).word == 'better'
        for _ in range(1_000)
    ]
    assert np.mean(seen) == pytest.approx(0.8, abs=0.05)


def test_groups_are_equal_only_within_a_stated_band():
    values, others = np.array([1.0, 1.1, 1.2, 1.3, 1.4]), np.array([1.05, 1.15, 1.25, 1.35, 1.2])
    ends = verdicts.judge(values, others).difference
    band = max(np.abs(ends))
    assert verdicts.judge(values, others).word == 'not told apart'
    assert verdicts.judge(values, others, equal_within=band).word == 'equal'
    assert verdicts.judge(values, others, equal_within=0.99 * band).word == 'not told apart'
    assert verdicts.judge(np.ones(5), np.ones(5)).word == 'no verdict attainable'
    assert verdicts.judge(np.ones(5), np.ones(5), equal_within=0.0).word == 'equal'


def test_fewer_than_four_runs_say_nothing():
    assert verdicts.judge(np.arange(3.0), np.arange(20.0) + 100) is None
    assert all(np.isnan(verdicts.median_interval(np.arange(3.0))))


@pytest.mark.parametrize(
    ('count', 'ends', 'coverage'),
    [(4, (1, 4), 0.875), (5, (1, 5), 0.9375), (9, (2, 8), 0.961), (10, (2, 9), 0.979), (20, (6, 15), 0.959)],
)
def test_the_interval_of_the_median_is_between_order_statistics(count, ends, coverage):
    values = np.arange(count, 0, -1)[:, None] * np.array([1.0, 10.0])
    low, high, found = verdicts.median_interval(values)
    np.testing.assert_array_equal([low, high], np.outer(ends, [1.0, 10.0]))
    assert found == pytest.approx(coverage, abs=5e-4)


def test_holm_adjusts_in_steps():
    verdict = verdicts.judge(np.arange(5.0), np.arange(5.0))
    for ps, expected in [([0.01, 0.04, 0.03, 0.5], [0.04, 0.09, 0.09, 0.5]), ([0.6, 0.7], [1.0, 1.0]), ([], [])]:
        found = verdicts.adjusted([dataclasses.replace(verdict, p=p) for p in ps])
        assert [each.holm for each in found] == pytest.approx(expected)
