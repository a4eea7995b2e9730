"""The table of estimates, on episodes drawn from a small decision process."""

import dataclasses
import json
import statistics

import numpy as np
import pytest

from tests.extensions.product import small_mdp
from tflearn.extensions.product import linear_models
from tflearn.extensions.product.evaluation import OpeOptions, evaluate

OPTIONS = OpeOptions(gamma=small_mdp.GAMMA, num_features=64, low=-0.5, high=2.0)
EXACT = small_mdp.exact_value(small_mdp.TARGET)
IMPORTANCE = ('importance sampling', 'weighted IS', 'per-decision IS', 'weighted per-decision IS')


@pytest.fixture(scope='module')
def steps():
    return small_mdp.recorded(small_mdp.draw(3000, seed=3))


@pytest.mark.parametrize('estimate_behaviour', [False, True])
def test_all_estimates_are_near_the_exact_value(steps, estimate_behaviour):
    found = evaluate(steps, dataclasses.replace(OPTIONS, estimate_behaviour=estimate_behaviour))
    assert found.behaviour == ('estimated' if estimate_behaviour else 'recorded')
    assert found.warnings == ()
    assert list(found.estimates)[1:] == [*IMPORTANCE, 'doubly robust', 'switch doubly robust', 'fitted Q evaluation']
    for name, estimate in list(found.estimates.items())[1:]:
        assert estimate == pytest.approx(EXACT, abs=0.1), name
    if estimate_behaviour:
        assert list(found.intervals) == ['the behaviour policy']
        assert 'not recorded' in found.no_interval
    else:
        low, high = found.intervals['the policy']
        assert low < EXACT < high < low + 1.5
    low, high = found.intervals['the behaviour policy']
    assert low < small_mdp.exact_value(small_mdp.BEHAVIOUR) < high < low + 0.3
    assert 300 < found.effective_sample_size < 2000


def test_the_table_and_the_file(steps):
    found = evaluate(steps, OPTIONS)
    text = found.text()
    assert 'value: sum of rewards over 3 steps, gamma 0.9' in text
    assert len(text.splitlines()) == 2 + 8 + 2 + 1
    saved = json.loads(json.dumps(found.json(), allow_nan=False))
    assert saved['estimates']['doubly robust'] == found.estimates['doubly robust']
    assert saved['num_episodes'] == 3000


def test_a_shorter_horizon_counts_fewer_steps(steps):
    found = evaluate(steps, dataclasses.replace(OPTIONS, horizon=1))
    exact = small_mdp.exact_value(small_mdp.TARGET, horizon=1)
    assert found.estimates['weighted IS'] == pytest.approx(exact, abs=0.05)
    assert found.estimates['fitted Q evaluation'] == pytest.approx(exact, abs=0.05)


def test_a_few_episodes_are_warned_of():
    few = small_mdp.recorded(small_mdp.draw(6, seed=0))
    found = evaluate(few, OPTIONS)
    assert found.effective_sample_size < 6
    assert any('the effective sample size is' in warning for warning in found.warnings)
    never = dataclasses.replace(few, log_target=np.full(len(few.rewards), -np.inf))
    found = evaluate(never, OPTIONS)
    assert found.effective_sample_size == 0
    assert found.json()['estimates']['weighted IS'] is None
    assert 'nan' in found.text()


def test_a_policy_without_densities_gets_fitted_values_only(steps):
    found = evaluate(dataclasses.replace(steps, log_target=None), OPTIONS)
    assert list(found.estimates)[1:] == ['fitted Q evaluation']
    assert 'importance sampling is not possible' in found.text()


def test_images_get_importance_sampling_only(steps):
    images = dataclasses.replace(steps, observations=np.broadcast_to(0.0, (len(steps.rewards), 7056)))
    found = evaluate(images, OPTIONS)
    assert list(found.estimates)[1:] == [*IMPORTANCE]
    found = evaluate(dataclasses.replace(images, log_behaviour=None), OPTIONS)
    assert (len(found.estimates), found.behaviour) == (1, 'unknown')


def test_real_actions_are_drawn():
    # One step; the reward is -(a - s)^2; the policy takes a = s + noise of 0.5, the data a = noise of 1.
    random = np.random.default_rng(1)
    state, action = random.uniform(-1, 1, 2000), random.normal(size=2000)
    both = lambda first: np.stack([first, np.zeros(2000)], axis=1).reshape(-1)  # noqa: E731
    density = lambda error, scale: -0.5 * (error / scale) ** 2 - np.log(scale)  # noqa: E731
    is_step = np.tile([True, False], 2000)
    steps = dataclasses.replace(
        small_mdp.recorded(small_mdp.draw(2, seed=0)),
        lengths=np.full(2000, 2),
        observations=both(state)[:, np.newaxis],
        is_step=is_step,
        rewards=both(-((action - state) ** 2)),
        discounts=np.ones(4000),
        actions=both(action)[:, np.newaxis],
        log_behaviour=both(density(action, 1.0)),
        log_target=both(density(action - state, 0.5)),
        choices=None,
        samples=both(state)[np.newaxis, :, np.newaxis] + 0.5 * random.normal(size=(16, 4000, 1)),
    )
    for estimate_behaviour in (False, True):
        found = evaluate(steps, dataclasses.replace(OPTIONS, estimate_behaviour=estimate_behaviour))
        for name in ('weighted IS', 'doubly robust', 'fitted Q evaluation'):
            assert found.estimates[name] == pytest.approx(-0.25, abs=0.05), name


def test_the_estimated_behaviour_policy_is_the_share_in_each_state():
    state = np.random.default_rng(0).integers(0, 2, 4000)
    choice = (np.random.default_rng(1).random(4000) < np.array([0.2, 0.9])[state]).astype(int)
    found = np.exp(linear_models.log_probabilities_of_choices(np.eye(2)[state], choice, 2))
    for s in (0, 1):
        share = choice[state == s].mean()
        np.testing.assert_allclose(found[(state == s) & (choice == 1)], share, atol=2e-3)


def test_clipped_actions_are_tails_of_the_estimated_behaviour_policy():
    # Actions are clipped to [-1, 1], which is where most of them are; the mean is linear in the state.
    random = np.random.default_rng(2)
    features = np.stack([np.ones(20_000), random.uniform(-1, 1, 20_000)], axis=1)
    means = features @ np.array([[0.5, -0.2], [1.0, 0.3]])
    actions = np.clip(means + np.array([0.8, 0.5]) * random.normal(size=means.shape), -1, 1)
    assert (np.abs(actions) == 1).mean() > 0.2
    found = linear_models.log_densities(features, actions, (np.full(2, -1.0), np.full(2, 1.0)))
    standard = statistics.NormalDist()
    expected = np.zeros(20_000)
    for k, deviation in enumerate((0.8, 0.5)):
        z = (actions[:, k] - means[:, k]) / deviation
        inside = -0.5 * z**2 - np.log(deviation * np.sqrt(2 * np.pi))
        tail = np.log([standard.cdf(-each) for each in z * actions[:, k]])
        expected += np.where(np.abs(actions[:, k]) == 1, tail, inside)
    np.testing.assert_allclose(found, expected, atol=0.15)
    assert abs((found - expected).mean()) < 0.005


def test_many_choices_keep_features_of_their_own():
    # The value of each of 15 choices is no linear function of the state, beside which there are 15 constants.
    random = np.random.default_rng(3)
    state, choice = random.uniform(-3, 3, 6000), random.integers(0, 15, 6000)
    both = lambda first: np.stack([first, np.zeros(6000)], axis=1).reshape(-1)  # noqa: E731
    best = np.eye(15)[(np.cos(2 * state) > 0).astype(int)]  # the evaluated policy, [N, 15]
    steps = dataclasses.replace(
        small_mdp.recorded(small_mdp.draw(2, seed=0)),
        lengths=np.full(6000, 2),
        observations=np.concatenate([both(state)[:, np.newaxis], np.ones((12_000, 15))], axis=1),
        is_step=np.tile([True, False], 6000),
        rewards=both(np.cos(2 * state) * (choice % 2)),
        discounts=both(np.zeros(6000)),
        actions=both(choice.astype(float))[:, np.newaxis],
        log_behaviour=None,
        log_target=None,
        choices=np.repeat(best, 2, axis=0),
    )
    found = evaluate(steps, OpeOptions()).estimates['fitted Q evaluation']
    exact = np.maximum(np.cos(2 * state), 0).mean()
    assert found == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize(('factor', 'warned'), [(1.0, False), (1.2, True), (0.8, True)])
def test_a_wrong_behaviour_policy_is_warned_of(steps, factor, warned):
    wrong = dataclasses.replace(steps, log_behaviour=steps.log_behaviour - np.log(factor))
    found = evaluate(wrong, OPTIONS).warnings
    assert any('the mean weight of the episodes is' in warning for warning in found) == warned


def test_rejects_one_episode():
    with pytest.raises(ValueError, match='got 1 episodes; need at least two with steps'):
        evaluate(small_mdp.recorded(small_mdp.draw(1, seed=0)), OPTIONS)


RARE = np.array([0.002, 0.005, 0.008])  # the click rates of three actions
LOG, OTHER = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.2, 0.7])


def rare_clicks(seed, target, num=4_000):
    """Returns decisions of one step among three actions, with four numbers that tell nothing; clicks are rare."""
    rng = np.random.default_rng(seed)
    action = rng.choice(3, num, p=LOG)
    both = lambda first: np.stack([first, np.zeros(num)], axis=1).reshape(-1)  # noqa: E731
    taken = both(action).astype(int)
    return dataclasses.replace(
        small_mdp.recorded(small_mdp.draw(2, seed=0)),
        lengths=np.full(num, 2),
        observations=rng.normal(size=(2 * num, 4)),
        is_step=np.tile([True, False], num),
        rewards=both((rng.random(num) < RARE[action]).astype(float)),
        discounts=np.zeros(2 * num),
        actions=taken[:, np.newaxis].astype(float),
        log_behaviour=np.log(LOG[taken]),
        log_target=np.log(target[taken]),
        choices=np.tile(target, (2 * num, 1)),
    )


def doubly_robust_of(steps):
    found = evaluate(steps, OpeOptions(num_features=48))
    return found.estimates['doubly robust'], found.estimates['behaviour policy (mean return)']


@pytest.mark.parametrize('target', [LOG, OTHER], ids=['the log', 'another'])
def test_doubly_robust_is_not_biased_where_rewards_are_rare(target):
    # Values of rare clicks that are fitted to noise are often below 0: no mean of them may be clipped.
    found = [doubly_robust_of(rare_clicks(seed, target))[0] for seed in range(12)]
    errors = np.array(found) - target @ RARE
    assert abs(errors.mean()) <= 3.5 * errors.std(ddof=1) / np.sqrt(len(errors))


@pytest.mark.parametrize('num', [100, 4_000])
def test_the_interval_of_rare_clicks_holds_the_value(num):
    held = 0
    for seed in range(20):
        found = evaluate(rare_clicks(seed, OTHER, num), OpeOptions(num_features=8, low=0, high=1))
        low, high = found.intervals['the policy']
        assert 0 <= low < high < (0.2 if num == 4_000 else 0.7)
        held += low <= OTHER @ RARE <= high
    assert held >= 18


def test_an_interval_that_nothing_proves_is_not_defined(steps):
    rare = rare_clicks(0, OTHER, 2_000)
    for changed, given, why in (
        (rare, {}, 'got no range of the rewards; need'),
        (rare, {'low': 0.0, 'high': 0.5}, 'rewards are outside of [0, 0.5]'),
        (steps, {'low': 0.5, 'high': 2.0}, 'need a range with 0'),
        (dataclasses.replace(rare, log_behaviour=None), {'low': 0.0, 'high': 1.0}, 'are not recorded'),
        (dataclasses.replace(rare, log_behaviour=rare.log_behaviour - 3), {'low': 0.0, 'high': 1.0}, 'contradict'),
    ):
        found = evaluate(changed, OpeOptions(num_features=8, **given))
        assert 'the policy' not in found.intervals
        assert why in found.no_interval, found.no_interval
        assert f'interval not defined: {found.no_interval}' in found.text()


def test_doubly_robust_of_the_policy_that_logged_is_its_mean_reward():
    for seed in range(4):
        estimate, mean = doubly_robust_of(rare_clicks(seed, LOG))
        # It differs by the mean of v - q, whose expectation is 0: less than the rewards' own standard error.
        assert estimate == pytest.approx(mean, abs=np.sqrt(0.0035 / 4_000)), seed


def test_values_are_fitted_to_none_of_the_same_cluster():
    # Each user has one feature of his own and always clicks or never does: only his own decisions tell which.
    rng = np.random.default_rng(4)
    user = np.repeat(np.arange(40), 50)
    click = rng.integers(0, 2, 40)[user].astype(float)
    steps = rare_clicks(0, OTHER, num=2_000)
    own = dataclasses.replace(
        steps,
        observations=np.repeat(np.eye(40)[user], 2, axis=0),
        rewards=np.stack([click, np.zeros(2_000)], axis=1).reshape(-1),
    )
    spread = {}
    for name, clusters in (('episodes', None), ('users', user)):
        found = [
            evaluate(dataclasses.replace(own, clusters=clusters), OpeOptions(num_features=130, seed=seed))
            for seed in range(12)
        ]
        estimates = np.array([each.estimates['doubly robust'] for each in found])
        assert estimates == pytest.approx(click.mean(), abs=0.15)
        spread[name] = np.abs(estimates - click.mean()).mean()
    assert spread['users'] > 1.5 * spread['episodes'], spread


RATES = np.array([[0.2, 0.6, 0.4], [0.8, 0.4, 0.6]])  # of clicks, [user, action]
COMMON, PREFERS = np.array([0.25, 0.75]), np.array([[0.5, 0.3, 0.2], [0.2, 0.4, 0.4]])


def of_decisions(user, action, reward, logged, target):
    """Returns decisions of one step, of users whose one-hot vectors are observed; policies are [user, action]."""
    both = lambda first: np.repeat(first, 2, axis=0)  # noqa: E731
    end = np.tile([True, False], len(user))
    of_rows, taken = both(user), both(action)
    return dataclasses.replace(
        small_mdp.recorded(small_mdp.draw(2, seed=0)),
        lengths=np.full(len(user), 2),
        observations=np.eye(len(logged))[of_rows],
        is_step=end,
        rewards=both(reward.astype(float)) * end,
        discounts=np.zeros(2 * len(user)),
        actions=taken[:, np.newaxis].astype(float),
        log_behaviour=np.log(logged[of_rows, taken]),
        log_target=np.log(target[of_rows, taken]),
        choices=target[of_rows],
        even=np.full((2 * len(user), logged.shape[1]), 1 / logged.shape[1]),
        action_names=[f'action {i}' for i in range(logged.shape[1])],
    )


def test_baselines_are_exact_where_all_decisions_are_enumerated():
    chances = COMMON[:, np.newaxis, np.newaxis] * PREFERS[:, :, np.newaxis] * np.stack([1 - RATES, RATES], axis=2)
    counts = np.round(chances * 4_000).astype(int)
    assert np.allclose(counts, chances * 4_000), 'all kinds of decisions, as often as they are likely'
    kinds = np.repeat(np.indices(counts.shape).reshape(3, -1), counts.reshape(-1), axis=1)
    steps = of_decisions(*kinds, PREFERS, np.array([[0.1, 0.1, 0.8], [0.3, 0.3, 0.4]]))
    options = OpeOptions(low=0, high=1, num_features=9, baseline_action='action 1')
    found = evaluate(steps, options)
    of_actions = COMMON @ RATES
    values = {'uniform': of_actions.mean(), 'best constant': of_actions.max(), 'always action 1': of_actions[1]}
    assert list(found.baselines) == list(values)
    for name, value in values.items():
        baseline = found.baselines[name]
        assert set(baseline.estimates) == {*found.estimates} - {'behaviour policy (mean return)'} - (
            {'switch doubly robust'} if name == 'best constant' else set()
        )
        for estimator, estimate in baseline.estimates.items():
            near = 1e-9 if 'IS' in estimator or estimator == 'importance sampling' else 0.01
            assert estimate == pytest.approx(value, abs=near), (name, estimator)
        low, high = baseline.interval
        assert low < value < high < low + 0.15
        assert f'95% interval of {name}: [{low:.4g}, {high:.4g}], effective sample size' in found.text()
    assert "'action 0' for one half of the data and 'action 0' for the other" in found.text()
    assert 'nearly constant' not in found.text()
    constant = evaluate(of_decisions(*kinds, PREFERS, np.array([[0.03, 0.92, 0.05]] * 2)), options).text()
    assert "the policy takes the action 'action 1' in 92% of the decisions: it is nearly constant; " in constant
    header = [line for line in found.text().splitlines() if line.startswith('estimator')]
    assert header[0].endswith('uniform  best constant  always action 1')
    saved = json.loads(json.dumps(found.json(), allow_nan=False))
    assert saved['baselines']['uniform']['estimates']['weighted IS'] == pytest.approx(values['uniform'])
    with pytest.raises(ValueError, match="got the baseline action 'b'; need one of action 0, action 1, action 2"):
        evaluate(steps, dataclasses.replace(options, baseline_action='b'))
    with pytest.raises(ValueError, match='need data with a single Discrete action'):
        evaluate(dataclasses.replace(steps, even=None), options)


def test_the_best_constant_action_is_not_better_than_it_is_since_it_was_lucky():
    # Four actions that are alike: the best of their estimates is not what any of them is worth.
    rng, even, found, lucky = np.random.default_rng(0), np.full((1, 4), 0.25), [], []
    for _ in range(40):
        action, reward = rng.integers(0, 4, 200), rng.random(200) < 0.5
        steps = of_decisions(np.zeros(200, int), action, reward, even, even)
        of_best = evaluate(steps, OpeOptions(num_features=12)).baselines['best constant'].estimates
        found.append([of_best[name] for name in ('weighted IS', 'doubly robust', 'fitted Q evaluation')])
        lucky.append(max(reward[action == i].mean() for i in range(4)))
    errors = np.array(lucky) - 0.5
    assert errors.mean() > 3.5 * errors.std(ddof=1) / np.sqrt(len(errors)), 'what is to be avoided'
    errors = np.array(found) - 0.5
    assert (np.abs(errors.mean(axis=0)) <= 3.5 * errors.std(axis=0, ddof=1) / np.sqrt(len(errors))).all()
