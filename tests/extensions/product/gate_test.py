"""The verdict of the gate: what a log proves, what it refutes, and what it cannot decide."""

import dataclasses
import json
import re

import numpy as np
import pytest

from benchmarks import gate as simulated
from tflearn.core import confidence_sequences
from tflearn.extensions.product.gate import judge
from tflearn.extensions.product.scaled_log import GateOptions, Limit, LoggedEpisodes, Through

OPTIONS = GateOptions(margin=0.02, low=0.0, high=1.0)
RATES = np.array([0.2, 0.4])


def log_of(actions, rewards, candidate, incumbent, logged, is_known=True):
    """Returns a log of single decisions among two actions, by the policies' probabilities of both."""
    column = lambda values: np.asarray(values, float)[:, np.newaxis]  # noqa: E731
    ratio = lambda policy: column(np.log(policy[actions] / logged[actions]))  # noqa: E731
    tables = [np.tile(policy, (len(actions), 1)) for policy in (candidate, incumbent, logged)]
    with np.errstate(divide='ignore'):
        return LoggedEpisodes(
            column(rewards),
            np.ones((len(actions), 1), bool),
            ratio(candidate),
            ratio(incumbent),
            known=confidence_sequences.support(*tables) if is_known else None,
            actions=actions[:, np.newaxis],
            log_behaviour=column(np.log(logged[actions])),
            log_even=np.full((len(actions), 1), np.log(0.5)),
        )


def clicks(share, other=0.1, *, num=6_000, log=0.5, true=None, seed=0, rates=RATES, **options):
    """Returns clicks of two actions, the second of which is better; a candidate and an incumbent take it so often."""
    rng = np.random.default_rng(seed)
    both = lambda second: np.array([1 - second, second])  # noqa: E731
    actions = (rng.random(num) < (log if true is None else true)).astype(int)
    rewards = rng.random(num) < rates[actions]
    return log_of(actions, rewards, both(share), both(other), both(log), **options)


def test_a_better_policy_passes_and_a_worse_one_does_not():
    verdict = judge(clicks(0.9), OPTIONS)
    assert verdict.passes and verdict.reasons == ()
    assert verdict.difference.low < 0.16 < verdict.difference.high
    assert verdict.candidate.low < 0.38 < verdict.candidate.high
    assert verdict.candidate.overlap == pytest.approx(0.6, abs=0.03)
    assert verdict.last_quarter.low < 0.16 < verdict.last_quarter.high
    assert verdict.last_quarter.high - verdict.last_quarter.low > verdict.difference.high - verdict.difference.low
    assert verdict.text().endswith('margin 0.02: passes')
    assert 'the decisions that came, not about new users' in verdict.text()
    worse = judge(clicks(0.1, 0.9), OPTIONS)
    assert (worse.outcome, worse.reasons) == ('worse', ('the difference is below -margin',))
    assert json.loads(json.dumps(worse.json(), allow_nan=False))['outcome'] == 'worse'
    assert worse.difference.low == pytest.approx(-verdict.difference.high)


def test_without_the_probabilities_of_all_actions_more_is_needed():
    rare = {'rates': np.array([0.95, 0.99]), 'log': 0.1, 'num': 3_000}  # failures: the best control variate is 1
    assert judge(clicks(0.9, **rare), OPTIONS).passes
    assert judge(clicks(0.9, **rare, is_known=False), OPTIONS).outcome == 'not decided'
    assert judge(clicks(0.9, is_known=False), OPTIONS).passes


def test_an_undecided_verdict_says_how_many_more_decide():
    options = dataclasses.replace(OPTIONS, margin=0.08)
    found = [[judge(clicks(0.6, 0.9, num=num, seed=seed), options) for seed in range(9)] for num in (600, 3_000)]
    assert all(each.outcome == 'not decided' and not each.passes for each in found[0])
    one = found[0][0]
    assert one.reasons[0].startswith(f'about {one.needed:,} more decisions at this rate')
    assert one.text().endswith(one.reasons[0])
    # Half of the logs pass with about 3,000 decisions, which those of 600 foresee within a factor of 2.5.
    assert 2 <= sum(each.passes for each in found[1]) <= 7
    assert 1_200 < np.median([600 + each.needed for each in found[0]]) < 7_500


def test_more_random_actions_halve_what_is_needed():
    # 2% of the decisions are random: of 1,000 about ten take the candidate's action.
    verdict = judge(clicks(0.99, 0.01, num=1_000, log=0.01), dataclasses.replace(OPTIONS, margin=0.15))
    assert verdict.outcome == 'not decided'
    # Half the variance: the action is taken twice as often, by 1% + s / 2 of the decisions.
    assert verdict.exploration == pytest.approx(0.02, abs=0.011)
    assert f'half as many with {verdict.exploration:.0%} more random ones' in verdict.text()


@pytest.mark.parametrize('true', [0.45, 0.55])
def test_wrong_probabilities_refute_the_log(true):
    assert judge(clicks(0.9, num=20_000), OPTIONS).passes
    verdict = judge(clicks(0.9, num=20_000, true=true), OPTIONS)
    assert not verdict.passes and 'the logged probabilities are refuted' in verdict.text()


@pytest.mark.parametrize('kept', [0.1, 0.15])
def test_subsampled_logs_are_judged_and_wrong_weights_refute_them(kept):
    """A tenth of what is no click is said to be kept; of the candidate's action it is more."""
    log = clicks(0.9, num=40_000)
    actions, rewards = log.actions[:, 0], log.rewards[:, 0]
    stated = np.where(rewards > 0, 1.0, 0.1)
    true = np.where((rewards == 0) & (actions == 1), kept, stated)
    index = np.random.default_rng(1).random(len(true)) < true
    known = confidence_sequences.Support(**{name: each[index] for name, each in vars(log.known).items()})
    parts = 'rewards', 'is_step', 'candidate', 'incumbent', 'actions', 'log_behaviour', 'log_even'
    some = {name: getattr(log, name)[index] for name in parts}
    verdict = judge(dataclasses.replace(log, **some, known=known, shares=(0.1 / stated)[index]), OPTIONS)
    assert verdict.passes == (kept == 0.1) != ('the logged probabilities are refuted' in verdict.text())
    if verdict.passes:
        assert verdict.difference.low < 0.16 < verdict.difference.high and abs(verdict.candidate.value - 0.38) < 0.03


def test_what_was_never_tried_counts_as_the_worst():
    rng = np.random.default_rng(0)
    actions, logged = np.zeros(5_000, int), np.array([1.0, 0.0])
    rewards = rng.random(5_000) < 0.2
    new, old = np.array([0.8, 0.2]), np.array([1.0, 0.0])  # a fifth of the candidate's actions was never logged
    log = log_of(actions, rewards, new, old, logged)
    assert judge(log, dataclasses.replace(OPTIONS, margin=0.03)).outcome != 'passes'
    assert judge(log, dataclasses.replace(OPTIONS, margin=0.08)).passes  # it cannot be worse than by 0.2 times 0.2
    never = log_of(actions, rewards, np.array([0.0, 1.0]), old, logged)
    verdict = judge(never, OPTIONS)
    assert not verdict.passes and 'not defined' in verdict.text() and verdict.json()['candidate']['value'] is None
    assert verdict.warnings[0].startswith('5000 actions were logged with probability 1, where the candidate may take')
    assert judge(log_of(actions, rewards, old, old, logged), OPTIONS).warnings == ()


def test_rewards_outside_of_the_range_are_clipped_and_low_ones_need_a_flag():
    log = clicks(0.9)
    high = dataclasses.replace(OPTIONS, high=0.5)
    verdict = judge(log, high)
    assert verdict.passes and any('rewards are outside of the range' in each for each in verdict.warnings)
    low = dataclasses.replace(OPTIONS, low=0.5, high=1.5)
    verdict = judge(log, low)
    assert verdict.outcome == 'not decided' and 'rewards are below 0.5' in verdict.reasons[0]
    assert judge(log, dataclasses.replace(low, clips=True)).passes


def test_unknown_rewards_count_as_the_worst_of_what_they_can_be():
    log = clicks(0.9)
    unknown = np.random.default_rng(1).random(log.rewards.shape) < 0.05
    verdict = judge(dataclasses.replace(log, rewards=np.where(unknown, np.nan, log.rewards)), OPTIONS)
    assert verdict.warnings == (f'{unknown.sum()} rewards are unknown: {verdict.warnings[0].partition(": ")[2]}',)
    worst = [np.where(unknown, log.candidate < log.incumbent, log.rewards), np.where(unknown, 0.0, log.rewards)]
    of_all = [judge(dataclasses.replace(log, rewards=rewards), OPTIONS) for rewards in worst]
    assert verdict.difference.low == of_all[0].difference.low < judge(log, OPTIONS).difference.low
    assert verdict.candidate.low == of_all[1].candidate.low
    best = [np.where(unknown, log.candidate > log.incumbent, log.rewards), np.where(unknown, 1.0, log.rewards)]
    of_all = [judge(dataclasses.replace(log, rewards=rewards), OPTIONS) for rewards in best]
    assert verdict.difference.high == of_all[0].difference.high and verdict.candidate.high == of_all[1].candidate.high


def test_users_who_return_count_once():
    # A fifth of the users come 20 times and like the candidate's action; those who come once do not.
    rng = np.random.default_rng(2)
    regular = np.arange(4_000) % 5 == 0
    user = np.repeat(np.arange(4_000), np.where(regular, 20, 1))
    actions = rng.integers(0, 2, len(user))
    rates = np.where(actions == 1, np.where(regular[user], 0.7, 0.05), 0.4)
    rewards = rng.random(len(user)) < rates
    both = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    log = log_of(actions, rewards, *both, np.array([0.5, 0.5]))
    assert judge(log, OPTIONS).passes  # of the decisions that came it is true
    verdict = judge(dataclasses.replace(log, clusters=user), OPTIONS)
    assert (verdict.outcome, verdict.num_units, verdict.units) == ('worse', 4_000, 'clusters')
    assert verdict.difference.low < 0.2 * 0.3 - 0.8 * 0.35 < verdict.difference.high


def test_sessions_need_their_longest_length():
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 4, 4_000)
    inside = np.arange(3) < lengths[:, np.newaxis]
    actions = rng.integers(0, 2, inside.shape)
    rewards = np.where(inside, rng.random(inside.shape) < RATES[actions], 0.0)
    ratio = np.where(inside, np.log(np.array([0.6, 1.4])[actions]), 0.0)  # the candidate takes the second by 70%
    log = LoggedEpisodes(rewards, inside, ratio, np.zeros_like(ratio))
    with pytest.raises(ValueError, match='got an episode of 3 steps, and 1 as the longest; need `longest` or'):
        judge(log, OPTIONS)
    options = dataclasses.replace(OPTIONS, longest=3, margin=0.05)
    verdict = judge(log, options)
    exact = 2 * 0.2 * 0.2  # two steps on average
    assert verdict.passes and verdict.difference.low < exact < verdict.difference.high
    assert verdict.difference.value == pytest.approx(exact, abs=0.05) and verdict.num_steps == lengths.sum()
    assert verdict.candidate.low < 2 * 0.34 < verdict.candidate.high
    whole = judge(log, dataclasses.replace(options, high=3.0, longest=None, whole=True))
    assert (whole.outcome, whole.units) == ('passes', 'sessions')
    assert whole.difference.low < exact < whole.difference.high and whole.candidate.low < 2 * 0.34
    with pytest.raises(ValueError, match='need a range with 0, the reward after their ends'):
        judge(log, dataclasses.replace(options, low=0.1))


def test_a_range_is_needed_and_never_taken_from_the_data():
    with pytest.raises(ValueError, match=r'got no range of the rewards; need reward_range = \[least, greatest\]'):
        judge(clicks(0.9), GateOptions())
    with pytest.raises(ValueError, match='got rewards from 1.0 to 0.0; need a range'):
        GateOptions(low=1.0, high=0.0)


def test_the_ends_of_a_range_are_within_it_as_float32():
    log = clicks(0.9)
    stored = np.where(log.rewards, np.float32(0.7), np.float32(-0.2)).astype(np.float32).astype(np.float64)
    assert stored.min() < -0.2
    verdict = judge(dataclasses.replace(log, rewards=stored), GateOptions(margin=0.02, low=-0.2, high=0.7))
    assert verdict.passes and verdict.warnings == ()


def limited(most, cost, **options):
    """Returns the verdict on a better candidate, whose action costs 1 in such a share of its decisions."""
    log = clicks(0.9, num=12_000)
    rng, second = np.random.default_rng(1), log.actions == 1
    costs = (rng.random(second.shape) < np.where(second, cost, 0.02)).astype(float)
    costs[:20] = options.pop('first', costs[:20])
    limits = [Limit('complaints', most, 0.0, 1.0)]
    return judge(dataclasses.replace(log, costs={'complaints': costs}), dataclasses.replace(OPTIONS, limits=limits))


def test_a_better_candidate_passes_only_within_its_limits():
    value = 0.9 * 0.1 + 0.1 * 0.02
    within = limited(0.13, 0.1)
    found = within.costs['complaints']
    assert within.passes and found.outcome == 'within' and found.value == pytest.approx(value, abs=0.01)
    assert found.low < value < found.high < 0.13
    assert re.search(r'complaints +0\.\d+ +\[.*\] +at most 0.13: within\n', within.text())
    beyond = limited(0.06, 0.1)
    assert (beyond.outcome, beyond.reasons) == ('worse', ('complaints is above 0.06',))
    assert beyond.costs['complaints'].outcome == 'beyond' and beyond.difference.low > 0
    undecided = limited(value, 0.1)
    assert undecided.outcome == undecided.costs['complaints'].outcome == 'not decided'
    assert json.loads(json.dumps(undecided.json(), allow_nan=False))['costs']['complaints']['most'] == value
    unknown = limited(0.13, 0.1, first=np.nan)
    assert unknown.costs['complaints'].high > found.high, 'what is unknown counts as the worst'
    outside = limited(0.13, 0.1, first=7.0)
    assert outside.outcome == 'not decided' and 'costs are above 1, the greatest that is stated' in outside.text()


def test_an_undecided_cost_says_how_many_more_decide():
    undecided = limited(0.098, 0.1)
    assert undecided.outcome == 'not decided' and undecided.difference.low > -OPTIONS.margin
    assert 1_000 < undecided.needed < 100_000


def test_what_the_log_never_takes_has_the_greatest_cost():
    log = clicks(0.9, log=0.0)  # the candidate mostly takes what was never logged
    limits = [Limit('complaints', 0.8, 0.0, 1.0)]
    log = dataclasses.replace(log, costs={'complaints': np.zeros(log.rewards.shape)})
    found = judge(log, dataclasses.replace(OPTIONS, limits=limits)).costs['complaints']
    assert found.outcome == 'not decided' and found.high >= 0.9


@pytest.mark.parametrize(
    'name',
    [
        'better, at the limit of a cost',
        'failures 1%, margin 1%',
        'users who return',
        'probabilities 25% too low',
        'bad outcomes 10%',
        'items that vary',
        'slates of 2',
    ],
)
def test_a_candidate_that_is_worse_by_the_margin_rarely_passes_at_any_look(name):
    world = simulated.WORLDS[name](-1)
    looks = np.arange(500, 20_001, 500)
    passed, _ = simulated.passing(world, looks, 400, [7])
    assert np.isfinite(passed).sum() <= 33  # 99.9% of binomials with 5% of 400 are not above


def test_an_equal_candidate_needs_at_most_four_times_what_a_test_of_fixed_size_does():
    found = simulated.judged('2 actions', 200, 3)['equal']
    assert found['within 4'] >= 0.8 and found['within 2.5'] >= 0.5


def sessions(rng, num, steps, served):
    """Returns actions of a policy that takes one of them in 70%, the rewards, and its probabilities."""
    logged = np.where(np.arange(4) == served, 0.7, 0.1)
    actions = rng.choice(4, (num, steps), p=logged)
    rewards = np.zeros(actions.shape)
    rewards[:, -1] = rng.random(num) < np.array([0.4, 0.6, 0.2, 0.2])[actions].mean(axis=1)
    return actions, rewards, logged


def beside(log, candidate, incumbent):
    """Returns what the gate takes of policies that take one action in 70%."""
    actions, rewards, logged = log
    both = [np.where(np.arange(4) == policy, 0.7, 0.1) for policy in (candidate, incumbent)]
    tables = [np.tile(policy, (len(actions), 1)) for policy in (*both, logged)]
    return LoggedEpisodes(
        rewards,
        np.ones(actions.shape, bool),
        *(np.log(policy[actions] / logged[actions]) for policy in both),
        known=confidence_sequences.support(*tables) if actions.shape[1] == 1 else None,
        greatest=np.full(actions.shape, (both[1] / logged).max()),
    )


@pytest.mark.parametrize(('steps', 'num'), [(1, 300), (2, 1_000)])
def test_what_serves_proves_more_of_the_best_and_rarely_what_is_worse_by_the_margin(steps, num):
    """Of what is just so much worse than the best, the candidate is what looks best in the sessions that train."""
    options = GateOptions(margin=0.24, low=0.0, high=1.0, whole=True)
    passed = np.zeros(3, int)
    for seed in range(20):
        rng = np.random.default_rng([steps, seed])
        held_out, rest = (sessions(rng, size, steps, 0) for size in (num, 10 * num))
        means = [rest[1].sum(axis=1)[(rest[0] == action).any(axis=1)].mean() for action in (2, 3)]
        given = [(one, Through(beside(held_out, one, 0), beside(rest, 0, 1))) for one in (0, 2 + np.argmax(means))]
        passed += [judge(beside(held_out, one, 1), options, of).passes for one, of in ((0, None), *given)]
    direct, through, worse = passed
    assert direct + 10 <= through
    assert worse <= 5  # 99.9% of binomials with 5% of 20 are not above
