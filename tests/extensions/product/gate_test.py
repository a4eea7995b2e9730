"""The verdict of the gate: its error is that of a bootstrap, and what cannot be judged does not pass."""

import json
import re

import numpy as np
import pytest

from tflearn.extensions.product import estimators
from tflearn.extensions.product.estimators import Episodes
from tflearn.extensions.product.gate import GateOptions, judge

STEPS = np.ones((2_000, 1), bool)


def clicks(share, log=(0.5, 0.5), seed=0, num=2_000):
    """Logged clicks of two actions, of which the second is better; the log-ratios of a policy with a share of it."""
    rng = np.random.default_rng(seed)
    actions = (rng.random(num) < log[1]).astype(int)
    rewards = (rng.random(num) < np.array([0.2, 0.4])[actions]).astype(float)[:, np.newaxis]
    with np.errstate(divide='ignore'):
        ratios = np.log(np.array([1 - share, share])[actions] / np.array(log)[actions])
    return rewards, ratios[:, np.newaxis]


def test_a_better_policy_passes_and_a_worse_one_does_not():
    rewards, better = clicks(0.9)
    _, worse = clicks(0.1)
    verdict = judge(rewards, STEPS, better, worse, GateOptions(margin=0.01))
    assert verdict.passes and verdict.difference.low < 0.16 < verdict.difference.high
    assert verdict.difference.low < verdict.lower_bound
    assert verdict.candidate.overlap == pytest.approx(0.6, abs=0.03)
    assert '0.01: passes' in verdict.text()
    verdict = judge(rewards, STEPS, worse, better, GateOptions(margin=0.01))
    assert verdict.reasons == ('the lower bound is not above -margin',)
    assert json.loads(json.dumps(verdict.json(), allow_nan=False))['passes'] is False


def test_what_both_policies_owe_to_the_episodes_cancels():
    rewards, ratios = clicks(0.9)
    verdict = judge(rewards, STEPS, ratios, ratios, GateOptions(margin=1e-6))
    assert verdict.difference.value == verdict.lower_bound == 0 and verdict.passes
    assert not judge(rewards, STEPS, ratios, ratios, GateOptions(margin=0.0)).passes


def test_the_interval_of_sessions_is_that_of_a_bootstrap():
    rng = np.random.default_rng(1)
    num, steps = 500, 4
    lengths = rng.integers(1, steps + 1, num)
    inside = np.arange(steps) < lengths[:, np.newaxis]
    rewards = np.where(inside, rng.normal(1.0, 1.0, inside.shape), 0.0)
    one, other = (np.where(inside, rng.normal(-0.045, 0.3, inside.shape), 0.0) for _ in range(2))
    options = GateOptions(level=0.9, gamma=0.9)
    verdict = judge(rewards, inside, one, other, options)
    assert verdict.num_steps == lengths.sum()
    pair = [estimators.weighted_per_decision(Episodes(rewards, ratios, 0.9)) for ratios in (one, other)]
    same = estimators.bootstrap(lambda counts: pair[0](counts) - pair[1](counts), num, 4_000, 0, steps, level=0.9)
    found = verdict.difference
    assert found.value == pytest.approx(same.value)
    width = same.high - same.low
    assert [found.low, found.high] == pytest.approx([same.low, same.high], abs=0.1 * width)


@pytest.mark.parametrize(
    ('share', 'log', 'reason'),
    [
        (1.0, (0.99, 0.01), 'the data are worth .* episodes of the candidate, fewer than 100'),
        (0.5, (1.0, 0.0), 'the mean weight of the candidate is 0.5, not 1: it takes actions that the log never'),
    ],
)
def test_what_the_log_says_too_little_of_does_not_pass(share, log, reason):
    rewards, ratios = clicks(share, log)
    verdict = judge(rewards, STEPS, ratios, np.zeros_like(ratios), GateOptions(margin=1.0))
    assert not verdict.passes
    assert any(re.match(reason, each) for each in verdict.reasons), verdict.reasons


def test_a_policy_of_no_logged_action_has_no_value():
    rewards, ratios = clicks(1.0, (1.0, 0.0))
    verdict = judge(rewards, STEPS, ratios, np.zeros_like(ratios), GateOptions())
    assert not verdict.passes and 'not defined' in verdict.text()
    assert verdict.json()['candidate']['value'] is None
