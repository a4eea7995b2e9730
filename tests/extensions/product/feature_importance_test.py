"""What each feature is worth to a policy: estimates and intervals against exact losses, by the real program too."""

import json
import re

import numpy as np
import pytest

from tests.testing import forks
from tests.testing.served_policies import Publisher
from tflearn.data import arrays
from tflearn.extensions.product.data_evaluation import evaluate_on_data
from tflearn.extensions.product.feature_importance import Feature, interval
from tflearn.files.run_dir import RunDir

DEADLINE_SECS = 120.0
NUM = 4_000


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    """A run, a log of random actions, and the exact loss.

    The policy takes the rewarded action, by the first number of four; how large its reward is says the third one. Users
    have two decisions each.
    """
    folder = tmp_path_factory.mktemp('world')
    random = np.random.default_rng(0)
    observation = random.normal(size=(NUM, 4)).astype(np.float32)
    action = random.integers(0, 2, NUM)
    right, size = observation[:, 0] > 0, 0.6 + 0.4 * (observation[:, 2] > 0)
    reward = (action == right) * size
    info = {'log_probability': np.full(NUM, np.log(0.5), np.float32), 'cluster': np.arange(NUM) // 2}
    arrays.from_arrays(folder / 'log', observation=observation, action=action, reward=reward, policy_info=info)
    Publisher(folder / 'run' / 'policies').publish(1)
    return folder / 'run', folder / 'log', np.mean(size * np.where(right, 1 - right.mean(), right.mean()))


def test_only_what_the_policy_uses_is_worth_something(world):
    run, log, loss = world
    found, facts = evaluate_on_data(RunDir(run), [str(log)], {}, features='numbers', low=0.0, high=1.0, epsilon=0.2)
    first, *others = found.features.items()
    name, importance = first
    assert name == 'observation[0]' and [each for each, _ in others] == [f'observation[{i}]' for i in (1, 2, 3)]
    for estimator, tolerance in {'importance sampling': 0.05, 'doubly robust': 0.04}.items():
        assert importance.estimates[estimator] == pytest.approx(0.8 * loss, abs=tolerance)
    low, high = importance.interval
    assert 0.2 < low < 0.8 * loss < high < 0.45
    for _, other in others:
        assert set(other.estimates.values()) == {0.0} and other.interval == (0.0, 0.0)
    assert json.loads(json.dumps(facts))['features'][name]['interval'] == [low, high]
    again, _ = evaluate_on_data(RunDir(run), [str(log)], {}, features='parts', epsilon=0.2)
    assert again.features.keys() == {'observation'} and again.features['observation'].interval is None
    assert again.text().splitlines()[-1].endswith('  not defined'), 'no range of the rewards'
    assert again.features['observation'].estimates == pytest.approx(importance.estimates, abs=0.01)


def test_the_program_prints_the_table(world):
    run, log, loss = world
    flags = f'--root_dir={run}', f'--data={log}', '--feature_importance=parts', '--reward_low=0', '--reward_high=1'
    ended = forks.run('scripts.evaluate', *flags, timeout=DEADLINE_SECS)
    assert ended.returncode == 0, ended.stderr
    table = re.search(r'^loss if the feature is shuffled +importance sampling +doubly robust  95% interval\n(.*)$',
                      ended.stdout, re.MULTILINE)  # fmt: skip
    row = re.match(r'observation +([0-9.]+) +([0-9.]+)  \[([0-9.]+), ([0-9.]+)\]$', table[1])
    sampled, doubly_robust, low, high = map(float, row.groups())
    assert low < loss < high and sampled == pytest.approx(loss, abs=0.05) == doubly_robust


def test_items_are_shuffled_among_legal_ones():
    """Of three items in each of 50 rows: all legal values once, padding and other features where they were."""
    random = np.random.default_rng(1)
    items = np.arange(300.0).reshape(50, 3, 2)
    legal = random.integers(0, 2, (50, 3)) > 0
    observation = {'items': items, 'user': np.arange(100.0).reshape(50, 2)}
    number = Feature('items[1]', 0, 1, True).shuffled(observation, legal, random)
    whole = Feature('items', 0, None, True).shuffled(observation, legal, random)
    for found, columns in ((number['items'], [1]), (whole['items'], [0, 1])):
        np.testing.assert_array_equal(found[~legal], items[~legal])
        for column in range(2):
            before, after = items[legal][:, column], found[legal][:, column]
            assert sorted(after) == sorted(before) and (after != before).any() == (column in columns)
    np.testing.assert_array_equal(whole['items'][legal][:, 0] + 1, whole['items'][legal][:, 1])
    np.testing.assert_array_equal(number['user'], observation['user'])
    user = Feature('user[0]', 1, 0, False).shuffled(observation, legal, random)['user']
    skipped = ~legal.any(axis=1)
    np.testing.assert_array_equal(user[skipped], observation['user'][skipped])
    assert sorted(user[:, 0]) == list(range(0, 100, 2)) and user[:, 1].tolist() == list(range(1, 100, 2))
    assert items.flat[5] == 5, 'what was given stays as it is'


@pytest.mark.parametrize('unsupported', [False, True])
def test_an_interval_holds_the_loss_and_none_of_what_was_never_tried(unsupported):
    """Three actions, one of which the log may never take; the exact loss is 0.1, of which 0.3 would be unknown."""
    log = np.array([0.6, 0.4, 0.0]) if unsupported else np.array([0.5, 0.3, 0.2])
    policy, shuffled, rates = np.array([0.6, 0.1, 0.3]), np.array([0.2, 0.8, 0.0]), np.array([0.4, 0.2, 0.3])
    loss, differs = float((policy - shuffled) @ rates), np.maximum(shuffled - policy, 0).sum()
    random = np.random.default_rng(2)
    action = random.choice(3, 20_000, p=log)
    reward = (random.random(20_000) < rates[action]).astype(float)
    weights = policy[action] / log[action], shuffled[action] / log[action]
    low, high = interval(weights, reward, np.full(20_000, differs), None)
    assert low < loss < high and high - low < (0.4 if unsupported else 0.08)
    assert not unsupported or high - low > 0.3
    pairs = interval(weights, reward, np.full(20_000, differs), np.arange(20_000) // 2)
    assert pairs[0] < loss < pairs[1]
    twice = [np.repeat(each, 2) for each in (*weights, reward)]
    alike = interval((twice[0], twice[1]), twice[2], np.full(40_000, differs), np.arange(40_000) // 2)
    assert alike == pytest.approx((low, high), abs=1e-5), 'a cluster counts once'
