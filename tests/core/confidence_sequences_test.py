"""Confidence sequences by betting: their variables' exact expectations, their wealth, and how often they err."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from tflearn.core import confidence_sequences as cs
from tflearn.core.confidence_sequences import Variable


def table(seed, untried):
    """Returns probabilities of the log, a candidate and an incumbent, and the mean rewards, each [4, 5]."""
    rng = np.random.default_rng(seed)
    logged, candidate, incumbent = rng.dirichlet(np.ones(5), (3, 4))
    logged[:, :untried] = 0.0
    return logged / logged.sum(axis=1, keepdims=True), candidate, incumbent, rng.uniform(size=(4, 5))


def decisions(logged, candidate, incumbent, means):
    """Returns the chances of all kinds of decisions, and their variables; rewards are 0 or 1."""
    context, action = np.nonzero(np.repeat(logged[np.newaxis], 2, axis=0).reshape(8, 5))
    reward, context = np.divmod(context, 4)
    mu, mean = logged[context, action], means[context, action]
    chances = 0.25 * mu * np.where(reward == 1, mean, 1 - mean)
    weights = [(policy[context, action] / mu)[:, np.newaxis] for policy in (candidate, incumbent)]
    known = cs.support(candidate[context], incumbent[context], logged[context])
    return chances, cs.difference(*weights, reward[:, np.newaxis], np.ones(1), known), known


@pytest.mark.parametrize('untried', [0, 1, 2])
def test_expectations_are_the_difference_less_what_was_never_tried(untried):
    for seed in range(20):
        logged, candidate, incumbent, means = table(seed, untried)
        chances, (x, *controlled), known = decisions(logged, candidate, incumbent, means)
        assert chances.sum() == pytest.approx(1)
        exact = ((candidate - incumbent) * means).sum(axis=1).mean()
        never = logged == 0
        # The candidate's reward of an untried action may be 0, and the incumbent's 1.
        worst = ((candidate - incumbent) * np.where(never, candidate < incumbent, means)).sum(axis=1).mean()
        assert known.is_full == (untried == 0) and (worst == pytest.approx(exact)) == known.is_full
        for each in controlled:
            assert chances @ each.values == pytest.approx(worst)
            assert each.values.min() >= -each.bound - 1e-12
        alone = (incumbent * never).sum(axis=1).mean()  # X counts the incumbent's untried actions as 1
        tried = ((candidate - incumbent) * np.where(never, 0.0, means)).sum(axis=1).mean()
        assert chances @ x.values == pytest.approx(tried - alone) and x.values.min() >= -1


def test_a_bound_is_of_the_largest_possible_weight():
    # The log took action 0 each time, of which nothing is wrong; the candidate's own action was never drawn.
    logged, candidate, incumbent = (np.tile(each, (6, 1)) for each in ([0.99, 0.01], [0.0, 1.0], [1.0, 0.0]))
    known = cs.support(candidate, incumbent, logged)
    weights = np.zeros((6, 1)), np.full((6, 1), 1 / 0.99)
    _, first, _, last = cs.difference(*weights, np.ones((6, 1)), np.ones(1), known)
    assert (first.bound, last.bound) == pytest.approx((1 / 0.99, 100.0))
    for name, array in vars(known).items():
        np.testing.assert_array_equal(getattr(known.swapped.swapped, name), array)
    assert known.is_full


def test_sessions_have_the_difference_of_their_mean_rewards():
    # Two steps, two actions; the reward at the end depends on both.
    log, candidate, incumbent = np.array([0.5, 0.5]), np.array([0.2, 0.8]), np.array([0.9, 0.1])
    taken = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    rewards = np.stack([np.zeros(4), [0.1, 0.5, 0.2, 0.9]], axis=1)
    weights = [(policy / log)[taken].cumprod(axis=1) for policy in (candidate, incumbent)]
    (x,) = cs.difference(*weights, rewards, np.array([1.0, 0.5]), None)
    exact = ((candidate[taken].prod(axis=1) - incumbent[taken].prod(axis=1)) * rewards[:, 1]).sum()
    assert np.full(4, 0.25) @ x.values == pytest.approx(0.5 * exact / 1.5)


def test_the_wealth_is_the_mean_of_products():
    variable = Variable(np.array([0.5, -1.0, 2.0]), 1.0)
    wealth = np.mean([np.prod(1 + bet * (variable.values + 0.1)) for bet in cs.BETS if bet * 0.9 < 1])
    lost = np.mean(cs.BETS * 0.9 < 1)
    assert cs.log_wealth([variable], 0.1) == pytest.approx(math.log(wealth * lost))
    assert cs.log_wealth([variable, variable], 0.1) == pytest.approx(cs.log_wealth([variable], 0.1))
    wide = Variable(variable.values, 1e3)
    assert np.isneginf(wide.log_wealths(0.1)).sum() == np.count_nonzero(cs.BETS >= 1 / 999.9)
    twice = Variable(np.array([0.5, 0.5, -1.0, 2.0, 2.0]), 1.0)
    assert len(twice.merged().values) == 3
    assert cs.log_wealth([twice.merged()], 0.3) == pytest.approx(cs.log_wealth([twice], 0.3))


def test_what_was_dropped_leaves_the_wealth_as_it_is_on_average():
    """Each unit stays with the probability q, and is bet on by 1 / q: over all draws the mean is the whole log's."""
    values, q = np.array([0.5, -1.0, 2.0, 0.5]), np.array([1.0, 0.5, 0.25, 0.5])
    whole, wealths = Variable(values, 1.0), np.zeros(len(cs.BETS))
    for kept in itertools.product([False, True], repeat=4):
        drawn = np.array(kept)
        some = Variable(values[drawn], 1.0, shares=q.min() / q[drawn])
        logs = some.log_wealths(0.1)
        assert some.merged().log_wealths(0.1) == pytest.approx(logs)
        wealths += np.prod(np.where(drawn, q, 1 - q)) * np.exp(logs)
    lost = np.isneginf(whole.log_wealths(0.1))
    expected = [np.prod(1 + bet * q.min() * (values + 0.1)) for bet in cs.BETS[~lost]]
    assert wealths[~lost] == pytest.approx(np.array(expected)) and not wealths[lost].any()
    assert some.mean == pytest.approx(values @ (1 / q) / (1 / q).sum()) and some.spread < values.std()


def test_clusters_are_means_in_the_order_of_their_begins():
    found = Variable(np.array([1.0, 5.0, 3.0, -2.0]), 2.0).mean_by(np.array([7, 3, 7, 1]))
    assert found.values.tolist() == [2.0, 5.0, -2.0]


def test_actions_refute_a_log_as_their_variables_do():
    rng = np.random.default_rng(0)
    stated, true = np.array([0.7, 0.2, 0.1]), np.array([0.6, 0.3, 0.1])
    for drawn, refuted in ((stated, False), (true, True)):
        actions = rng.choice(3, 5_000, p=drawn)
        logged = stated[actions]
        variables = [Variable((actions == a) / logged - 1, 1.0) for a in range(3)]
        below_one = cs.BETS < 1  # all of what a gambler owns would be lost at once
        same = cs.log_mean(np.concatenate([each.log_wealths(0.0)[below_one] for each in variables]))
        found = cs.log_wealth_of_actions(actions, logged)
        assert found == pytest.approx(same)
        shares = rng.choice([0.1, 1.0], 5_000)
        variables = [dataclasses.replace(each, shares=shares) for each in variables]
        same = cs.log_mean(np.concatenate([each.log_wealths(0.0)[below_one] for each in variables]))
        assert cs.log_wealth_of_actions(actions, logged, shares) == pytest.approx(same)
        assert (found > math.log(20)) == refuted
        weights = np.array([0.1, 0.8, 0.1])[actions] / logged
        against = max(cs.log_wealth([each], 0.0) for each in cs.refuters(weights, np.ones(5_000), None))
        assert (against > math.log(20)) == refuted


def test_bounds_hold_at_every_look():
    """Of 200 sequences of skewed numbers at most the share alpha ever excludes the mean; more data narrow them."""
    rng = np.random.default_rng(1)
    looks, wrong, last = (100, 300, 1_000), 0, []
    for _ in range(200):
        drawn = np.where(rng.random(looks[-1]) < 0.05, rng.uniform(0, 8, looks[-1]), 0.0)  # the mean is 0.2
        lows = [cs.lower_bound([Variable(drawn[:look], 0.0).merged()], 0.1, 0.0, 1.0) for look in looks]
        wrong += max(lows) > 0.2
        last.append(lows[-1])
    assert wrong <= 200 * 0.1
    assert 0.05 < np.mean(last) < 0.18
    assert cs.log_wealth([Variable(drawn, 0.0)], -(lows[-1] - 1e-3)) >= math.log(10)
