"""Posteriors, scores and choices of linear bandits, against float64 numpy."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tests.testing import experiences
from tflearn.agents import linear_bandit
from tflearn.core import strategies
from tflearn.core.experience import Experience, Prioritized, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.files.run_dir import RunDir
from tflearn.learner.learner import Learner

NUM_ARMS = 4
BOUNDED = tensor_spec.BoundedTensorSpec
STATE, ITEMS = BOUNDED((3,), tf.float32, -1.0, 1.0, 'state'), BOUNDED((NUM_ARMS, 2), tf.float32, -1.0, 1.0, 'items')
MASK = BOUNDED((NUM_ARMS,), tf.int64, 0, 1, 'mask')
ACTION = BOUNDED((), tf.int64, 0, NUM_ARMS - 1, 'action')
DISJOINT = EnvironmentSpecs({'mask': MASK, 'state': STATE}, ACTION)
SHARED = EnvironmentSpecs({'items': ITEMS, 'mask': MASK, 'state': STATE}, ACTION)


def _make(specs=DISJOINT, experience=linear_bandit.EXPERIENCE, **options):
    return linear_bandit.make_agent(
        specs,
        create_train_step(),
        experience,
        options=linear_bandit.LinearOptions(**{'prior_precision': 2.0, **options}),
        arm_features='items' if 'items' in specs.observation else None,
        action_mask='mask' if 'mask' in specs.observation else None,
    )


def _batch(agent, size=6, seed=0):
    """Returns sequences [size, 3]; every fourth first row is one between two episodes, which does not count."""
    data = example_data.sequences(agent, size, 3, seed)
    random = np.random.default_rng(seed)
    following = data.next_step_type.numpy()
    following[::4, 0] = ts.StepType.FIRST
    return data._replace(
        action=tf.constant(random.integers(0, NUM_ARMS, (size, 3))), next_step_type=tf.constant(following)
    )


def _features(observation, shared):
    """Returns x of all arms, [..., K, D]."""
    context = np.concatenate([observation['state'], np.ones((*observation['state'].shape[:-1], 1))], -1)
    context = context.astype(np.float64)
    if not shared:
        return np.stack([context] * NUM_ARMS, -2)
    items = np.asarray(observation['items'], np.float64)
    products = context[..., np.newaxis, :, np.newaxis] * items[..., :, np.newaxis, :]
    return products.reshape(*items.shape[:-1], -1)


def _sums(batches, shared):
    """Returns A and b of the oracle, one step after the other."""
    a = b = None
    for data in batches:
        x = _features(data.observation, shared)
        if a is None:
            models = 1 if shared else NUM_ARMS
            a, b = np.stack([2.0 * np.eye(x.shape[-1])] * models), np.zeros((models, x.shape[-1]))
        for i, t in itertools.product(range(len(x)), range(2)):
            if data.next_step_type[i, t] == ts.StepType.FIRST:
                continue
            arm = int(data.action[i, t])
            owner = 0 if shared else arm
            a[owner] += np.outer(x[i, t, arm], x[i, t, arm])
            b[owner] += float(data.reward[i, t]) * x[i, t, arm]
    return a, b


@pytest.mark.parametrize('shared', [False, True])
def test_posterior_and_bounds(shared):
    """A, b and theta after batches, and the upper bounds of Li et al.'s equation 5, by inverses instead of roots."""
    agent = _make(SHARED if shared else DISJOINT, alpha=0.7)
    batches = [_batch(agent, seed=seed) for seed in range(3)]
    theta = agent._posterior.theta.numpy()
    for data in batches:
        a, b = _sums([data], shared)
        info = agent.train(data)
    a, b = _sums(batches, shared)
    np.testing.assert_allclose(agent._posterior.precision, a, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(agent._posterior.moment, b, rtol=1e-12, atol=1e-13)
    theta = np.stack([np.linalg.inv(one) @ moment for one, moment in zip(a, b, strict=True)])
    np.testing.assert_allclose(agent._posterior.theta, theta, rtol=1e-10, atol=1e-12)
    observation = tf.nest.map_structure(lambda leaf: leaf[:, 0], batches[0].observation)
    x = _features(observation, shared)
    owners = [0] * NUM_ARMS if shared else range(NUM_ARMS)
    means = np.stack([x[:, k] @ theta[owner] for k, owner in enumerate(owners)], 1)
    inverses = [np.linalg.inv(a[owner]) for owner in owners]
    widths = [np.sqrt(np.einsum('bd,de,be->b', x[:, k], inverses[k], x[:, k])) for k in range(NUM_ARMS)]
    rest = {name: leaf for name, leaf in observation.items() if name != 'mask'}
    np.testing.assert_allclose(agent.policy.wrapped_policy.scores(rest), means, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(agent.collect_policy.scores(rest), means + 0.7 * np.stack(widths, 1), atol=2e-9)
    assert int(agent.train_step_counter) == 3 and np.isfinite(info.loss)


@pytest.mark.parametrize('shared', [False, True])
def test_older_items_weigh_less(shared):
    """Each by the discount for each item of later batches, and the prior not, of all arms (Russac et al., D-LinUCB)."""
    gamma = 0.9
    agent = _make(SHARED if shared else DISJOINT, discount=gamma)
    batches = [_batch(agent, seed=seed) for seed in range(3)]
    for data in batches:
        agent.train(data)
    counts = [int(np.count_nonzero(data.next_step_type.numpy()[:, :2] != ts.StepType.FIRST)) for data in batches]
    assert len(set(counts)) == 1 and counts[0] == 10
    parts = [_sums([data], shared) for data in batches]
    prior = 2.0 * np.eye(parts[0][0].shape[-1])
    weights = [gamma ** sum(counts[i + 1 :]) for i in range(3)]
    a = prior + sum(weight * (each - prior) for weight, (each, _) in zip(weights, parts, strict=True))
    b = sum(weight * each for weight, (_, each) in zip(weights, parts, strict=True))
    np.testing.assert_allclose(agent._posterior.precision, a, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(agent._posterior.moment, b, rtol=1e-12, atol=1e-13)
    theta = np.stack([np.linalg.solve(one, moment) for one, moment in zip(a, b, strict=True)])
    np.testing.assert_allclose(agent._posterior.theta, theta, rtol=1e-10, atol=1e-12)


def test_a_discount_needs_items_in_their_order():
    with pytest.raises(ValueError, match='draws items in no order of time; need a Queue'):
        _make(experience=Experience(replay=Uniform()), discount=0.99)


def test_a_discount_follows_a_reward_that_changes():
    """An arm that was worth 1 is worth -1 for a tenth of the items: the posterior without a discount still likes it."""
    values = []
    for discount in (1.0, 0.97):
        agent = _make(discount=discount)
        for i in range(40):
            data = _batch(agent, seed=i)
            reward = tf.where(data.action == 0, 1.0 if i < 36 else -1.0, 0.0)
            agent.train(data._replace(reward=tf.cast(reward, tf.float32)))
        context = {'state': tf.zeros((1, 3))}
        values.append(float(agent.policy.wrapped_policy.scores(context)[0, 0]))
    assert values[0] > 0.5 and values[1] < 0


@pytest.mark.parametrize('shared', [False, True])
def test_loss_is_the_error_before_the_batch(shared):
    agent = _make(SHARED if shared else DISJOINT)
    first, second = _batch(agent, seed=0), _batch(agent, seed=1)
    agent.train(first)
    a, b = _sums([first], shared)
    x, errors, deviations = _features(second.observation, shared), [], []
    for i, t in itertools.product(range(len(x)), range(2)):
        if second.next_step_type[i, t] != ts.StepType.FIRST:
            arm = int(second.action[i, t])
            owner = 0 if shared else arm
            inverse = np.linalg.inv(a[owner])
            errors.append((float(second.reward[i, t]) - x[i, t, arm] @ inverse @ b[owner]) ** 2)
            deviations.append(np.sqrt(x[i, t, arm] @ inverse @ x[i, t, arm]))
    info = agent.loss(second)
    np.testing.assert_allclose([info.loss, info.extra['deviation']], [np.mean(errors), np.mean(deviations)], rtol=1e-5)
    np.testing.assert_allclose(agent.train(second).loss, info.loss, rtol=1e-6)


@pytest.mark.parametrize('shared', [False, True])
def test_thompson_draws_from_the_posterior(shared):
    """Mean and variance of many scores of one observation are those of mu^T x, mu from N(theta, alpha^2 A^-1)."""
    agent = _make(SHARED if shared else DISJOINT, exploration='thompson', alpha=0.5)
    data = _batch(agent)
    agent.train(data)
    a, b = _sums([data], shared)
    one = {name: leaf[:1, 0] for name, leaf in data.observation.items() if name != 'mask'}
    drawn = agent.collect_policy.scores({name: tf.repeat(leaf, 40_000, 0) for name, leaf in one.items()}).numpy()
    x = _features(one, shared)[0]
    for k in range(NUM_ARMS):
        inverse = np.linalg.inv(a[0 if shared else k])
        assert drawn[:, k].mean() == pytest.approx(x[k] @ inverse @ b[0 if shared else k], abs=0.02)
        assert drawn[:, k].var() == pytest.approx(0.25 * x[k] @ inverse @ x[k], rel=0.05)
    between = np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]
    inverse = np.linalg.inv(a[0])
    expected = x[0] @ inverse @ x[1] / np.sqrt((x[0] @ inverse @ x[0]) * (x[1] @ inverse @ x[1])) if shared else 0.0
    assert between == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize('shared', [False, True])
@pytest.mark.parametrize('exploration', ['ucb', 'thompson'])
def test_the_distribution_is_that_of_the_actions(shared, exploration):
    agent = _make(SHARED if shared else DISJOINT, exploration=exploration)
    zeros = tf.nest.map_structure(lambda spec: np.zeros((1, *spec.shape), np.float32), agent.time_step_spec.observation)
    zeros['mask'] = np.array([[1, 0, 1, 1]])  # nothing is known: the three legal arms are alike
    for observation in (zeros, {**_first_row(_batch(agent)), 'mask': np.array([[1, 1, 0, 1]])}):
        many = {name: np.repeat(leaf, 20_000, 0) for name, leaf in observation.items()}
        policy = agent.collect_policy
        chosen = policy.action(ts.restart(tf.nest.map_structure(tf.constant, many), 20_000)).action.numpy()
        rows = {name: tf.constant(leaf[:500]) for name, leaf in many.items()}  # of 100 draws each
        found = policy.distribution(ts.restart(rows, 500)).action
        shares = found.probs_parameter().numpy()
        times = shares * linear_bandit.NUM_DRAWS
        assert exploration == 'ucb' or np.allclose(times, times.round(), atol=1e-3)
        assert (shares[:, observation['mask'][0] == 0] == 0).all()
        expected = np.bincount(chosen, minlength=NUM_ARMS) / 20_000
        np.testing.assert_allclose(shares.mean(axis=0), expected, atol=0.02)
        agent.train(_batch(agent))


@pytest.mark.parametrize('shared', [False, True])
def test_the_probabilities_of_two_arms_are_exact(shared):
    action = BOUNDED((), tf.int64, 0, 1, 'action')
    items = {'items': BOUNDED((2, 2), tf.float32, -1.0, 1.0, 'items')} if shared else {}
    agent = _make(EnvironmentSpecs({'state': STATE, **items}, action), exploration='thompson', alpha=0.3)
    data = example_data.sequences(agent, 40, 3, 0)
    agent.train(data._replace(action=tf.constant(np.random.default_rng(0).integers(0, 2, (40, 3)))))
    rows = {name: leaf[:8, 0] for name, leaf in data.observation.items()}
    found = agent.collect_policy.distribution(ts.restart(rows, 8)).action.probs_parameter().numpy()
    many = ts.restart({name: tf.repeat(leaf, 20_000, 0) for name, leaf in rows.items()}, 160_000)
    taken = agent.collect_policy.action(many).action.numpy().reshape(8, 20_000).mean(axis=1)
    np.testing.assert_allclose(found[:, 1], taken, atol=0.015)  # four standard errors
    again = agent.collect_policy.distribution(ts.restart(rows, 8)).action.probs_parameter().numpy()
    np.testing.assert_array_equal(found, again)


def test_an_arm_of_one_percent_has_a_probability():
    agent = _make(exploration='thompson', alpha=1.0)
    state = np.zeros((500, 3), np.float32)  # its features are the constant 1 alone
    # Of two alike arms each is the best in half of the draws; a third one is it in one of a hundred.
    agent._posterior.theta.assign(np.array([[0, 0, 0, 0.0], [0, 0, 0, 0.0], [0, 0, 0, -2.3], [0, 0, 0, -1e6]]))
    agent._posterior.root.assign(np.tile(np.eye(4), (4, 1, 1)))
    rows = {'state': tf.constant(state), 'mask': tf.ones((500, NUM_ARMS), tf.int64)}
    shares = agent.collect_policy.distribution(ts.restart(rows, 500)).action.probs_parameter().numpy()
    assert 0.008 < shares[:, 2].mean() < 0.02 and shares[:, 3].max() == 0
    assert (shares[:, 2] == 0).sum() <= 1  # by 100 draws a third of the rows lost it


def _first_row(data):
    return {name: leaf[:1, 0].numpy() for name, leaf in data.observation.items()}


def test_chooses_legal_arms_only():
    agent = _make(SHARED)
    masks = np.random.default_rng(1).integers(0, 2, (200, NUM_ARMS))
    masks[np.arange(200), np.arange(200) % NUM_ARMS] = 1
    zeros = {'items': tf.zeros((200, NUM_ARMS, 2)), 'state': tf.zeros((200, 3)), 'mask': tf.constant(masks)}
    for policy in (agent.policy, agent.collect_policy):
        chosen = policy.action(ts.restart(zeros, 200)).action.numpy()
        assert masks[np.arange(200), chosen].all()
    assert len(np.unique(chosen)) == NUM_ARMS, 'ties are broken at random'


def test_a_batch_that_is_not_finite_changes_nothing():
    agent = _make()
    data = _batch(agent)
    bad = data._replace(reward=tf.where(tf.range(3) == 1, np.nan, data.reward))
    assert not np.isfinite(agent.train(bad).loss)
    np.testing.assert_array_equal(agent._posterior.moment, 0.0)
    np.testing.assert_array_equal(agent._posterior.theta, 0.0)


def test_replicas_add_up_the_sums_of_all(tmp_path):
    """Two replicas with half of each batch have the A, b and losses of one with all of it."""
    strategy, alone = strategies.make('mirrored:2'), _make(SHARED)
    with strategy.scope():
        agent = _make(SHARED, experiences.changed(linear_bandit.EXPERIENCE, sequence_length=3))
    batches = [_batch(agent, 8, seed) for seed in range(5)]
    joined = tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), *batches)
    dataset = tf.data.Dataset.from_tensor_slices(joined).batch(4, drop_remainder=True)
    with Learner(agent, lambda _: dataset, RunDir(tmp_path), strategy=strategy) as learner:
        together = learner.run(5)
    infos = [alone.train(batch) for batch in batches]
    a, b = _sums(batches, True)
    np.testing.assert_allclose(agent._posterior.precision.numpy(), a, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(agent._posterior.moment.numpy(), b, rtol=1e-12, atol=1e-13)
    assert together.loss == pytest.approx(np.mean([info.loss for info in infos]), rel=1e-6)
    extra = {name: np.mean([info.extra[name] for info in infos]) for name in infos[0].extra}
    assert together.extra == pytest.approx(extra, rel=1e-6)


def test_xla_compiles_the_train_step():
    plain, compiled = _make(SHARED), _make(SHARED)
    data = _batch(plain)
    loss = plain.train(data).loss
    assert float(tf.function(compiled.train, autograph=False, jit_compile=True)(data).loss) == pytest.approx(
        float(loss), rel=1e-6
    )
    for one, other in zip(plain._posterior.variables, compiled._posterior.variables, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-13)


def test_a_checkpoint_holds_the_posterior(tmp_path):
    agent = _make()
    dataset = tf.data.Dataset.from_tensor_slices(_batch(agent, 8)).batch(4)
    with Learner(agent, lambda _: dataset, RunDir(tmp_path)) as learner:
        learner.run(2)
    restored = _make()
    with Learner(restored, lambda _: dataset, RunDir(tmp_path)) as learner:
        assert learner.step == 2
    for before, after in zip(agent._posterior.variables, restored._posterior.variables, strict=True):
        np.testing.assert_array_equal(before, after)


def test_refusals():
    with pytest.raises(ValueError, match='needs a Queue without training, or Uniform'):
        _make(experience=Experience(replay=Prioritized()))
    with pytest.raises(ValueError, match='got LinearOptions.alpha=-1'):
        linear_bandit.LinearOptions(alpha=-1)
    with pytest.raises(ValueError, match="got LinearOptions.exploration='greedy'; need one of ucb, thompson"):
        linear_bandit.LinearOptions(exploration='greedy')
    with pytest.raises(ValueError, match="got arm_features='state' of .*; need floats .4, D."):
        linear_bandit.make_agent(SHARED, create_train_step(), linear_bandit.EXPERIENCE, arm_features='state')
    with pytest.raises(ValueError, match="got arm_features='item'; need one of the parts"):
        linear_bandit.make_agent(SHARED, create_train_step(), linear_bandit.EXPERIENCE, arm_features='item')
    many = EnvironmentSpecs(BOUNDED((), tf.int64, 0, 2_000, 'user'), ACTION)
    with pytest.raises(ValueError, match='got more than 1000 categories'):
        linear_bandit.make_agent(many, create_train_step(), linear_bandit.EXPERIENCE)
