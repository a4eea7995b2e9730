"""Bandits of a number by smoothed centres, against float64 numpy; and the densities of what they export."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tflearn.agents import linear_bandit
from tflearn.agents.linear_bandit import LinearOptions
from tflearn.agents.smoothing import Smoothing
from tflearn.agents.value_exploration import Boltzmann
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.policies import loader
from tflearn.policies.action_probabilities import ActionProbabilities, NoDensityError
from tflearn.policies.exporter import PolicyExporter

STATE = tensor_spec.BoundedTensorSpec((3,), tf.float32, -1.0, 1.0, 'state')
LOW, HIGH = 2.0, 10.0
SPECS = EnvironmentSpecs(STATE, tensor_spec.BoundedTensorSpec((), tf.float32, LOW, HIGH, 'price'))


def _make(smoothing, specs=SPECS, **arguments):
    arguments = {'options': LinearOptions(Boltzmann(0.2)), 'smoothing': smoothing, **arguments}
    return linear_bandit.make_agent(specs, create_train_step(), linear_bandit.EXPERIENCE, **arguments)


def _batch(agent, seed=0, size=40):
    """Returns sequences [size, 3] of prices, not drawn evenly; every fourth first row does not count."""
    data, random = example_data.sequences(agent, size, 3, seed), np.random.default_rng(seed)
    following = data.next_step_type.numpy()
    following[::4, 0] = ts.StepType.FIRST
    prices = tf.constant(random.uniform(LOW, HIGH, (size, 3)), tf.float32)
    return data._replace(action=prices, next_step_type=tf.constant(following))


@pytest.mark.parametrize('bandwidth', [None, 1.7])
def test_a_step_counts_for_each_window_that_has_its_number(bandwidth):
    """With the weight 1 / (range * density), in the regression of the centre's rewards."""
    agent = _make(Smoothing(4, bandwidth, epsilon=0.3))
    squares, products = np.stack([np.eye(4)] * 4), np.zeros((4, 4))
    centres, reach = np.array([3.0, 5.0, 7.0, 9.0]), bandwidth or 1.0
    for seed in range(2):
        data = _batch(agent, seed)
        agent.train(data)
        for i, t in np.ndindex(40, 2):
            x = np.append(data.observation[i, t], 1.0)
            weight = np.exp(-np.log(8.0) - data.policy_info.log_probability[i, t])
            for k in np.flatnonzero(np.abs(centres - data.action[i, t]) <= reach):
                if data.next_step_type[i, t] != ts.StepType.FIRST:
                    squares[k] += weight * np.outer(x, x)
                    products[k] += weight * data.reward[i, t] * x
    theta = np.linalg.solve(squares, products[..., np.newaxis])[..., 0]
    state = np.random.default_rng(9).uniform(-1, 1, (5, 3)).astype(np.float32)
    found = agent.collect_policy.distribution(ts.restart(tf.constant(state), 5)).action
    values = np.append(state, np.ones((5, 1)), axis=1) @ theta.T
    shares = np.exp(values / 0.2) / np.exp(values / 0.2).sum(axis=1, keepdims=True)
    windows = np.clip([centres - reach, centres + reach], LOW, HIGH)
    for price in np.linspace(LOW, HIGH, 41) + 1e-3:
        within = (windows[0] <= price) & (price <= windows[1])
        density = 0.7 * (shares * within / (windows[1] - windows[0])).sum(axis=1) + 0.3 / 8 * (price <= HIGH)
        np.testing.assert_allclose(found.prob(np.float32(price)), density, rtol=2e-5, atol=1e-9)
    greedy = agent.policy.action(ts.restart(tf.constant(state), 5)).action
    np.testing.assert_allclose(greedy, windows.mean(axis=0)[values.argmax(axis=1)], rtol=1e-6)


@pytest.mark.parametrize('kind', ['raw', 'collect'])
def test_an_exported_density_is_that_of_the_draws_and_integrates_to_one(kind, tmp_path):
    agent = _make(Smoothing(5, 1.5, epsilon=0.2))
    agent.train(_batch(agent))
    policy = agent.collect_policy if kind == 'collect' else agent.policy.wrapped_policy
    PolicyExporter(policy, tmp_path).export(3, {})
    loaded = loader.load(tmp_path / '3')
    known = ActionProbabilities(loaded, SPECS, 0.1, None)
    time_step = ts.restart(tf.constant([[0.5, -0.2, 0.9]] * 20_000), 20_000)
    plain = tf.nest.map_structure(lambda leaf: leaf.numpy(), time_step)
    own = policy.distribution(tf.nest.map_structure(lambda leaf: leaf[:1], time_step)).action
    prices = np.linspace(LOW, HIGH, 20_000).astype(np.float32)
    density = np.exp(known.log_probability(plain, (), prices)[0])
    np.testing.assert_allclose(density, 0.9 * own.prob(prices) + 0.1 / 8, rtol=1e-5)
    assert ((density[1:] + density[:-1]) / 2 @ np.diff(prices)) == pytest.approx(1, abs=1e-3)
    shares = known.probabilities(tf.nest.map_structure(lambda leaf: leaf[:1], plain), (), known.edges)[0][0]
    assert shares.sum() == pytest.approx(1, abs=1e-6) and known.num_choices is None
    own_shares = (shares - 0.1 * np.diff(known.edges) / 8) / 0.9
    drawn = np.histogram(loaded.action(plain)[0], known.edges)[0] / 20_000
    assert (np.abs(drawn - own_shares) <= 5 * np.sqrt(own_shares / 20_000) + 1e-6).all()


BOX = tensor_spec.BoundedTensorSpec((2,), tf.float32, np.float32([2, -1]), np.float32([10, 1]), 'action')


def test_a_vector_is_drawn_from_a_grid_of_windows_with_its_density(tmp_path):
    """Of 4 x 4 centres, against numpy: what a decision counts for, and the density of what is exported."""
    agent = _make(Smoothing(4, epsilon=0.3), EnvironmentSpecs(STATE, BOX))
    random = np.random.default_rng(0)
    data = example_data.sequences(agent, 400, 3, 0)
    data = data._replace(action=tf.constant(random.uniform([2, -1], [10, 1], (400, 3, 2)), tf.float32))
    agent.train(data)
    squares, products, rewards = np.stack([np.eye(4)] * 16), np.zeros((16, 4)), data.reward.numpy()
    places = np.floor((data.action.numpy() - [2, -1]) / [2, 0.5]).astype(int)
    for i, t in np.ndindex(400, 2):
        if data.next_step_type[i, t] != ts.StepType.FIRST:
            x, k = np.append(data.observation[i, t], 1.0), places[i, t] @ [4, 1]
            weight = np.exp(-np.log(16.0) - data.policy_info.log_probability[i, t])
            squares[k] += weight * np.outer(x, x)
            products[k] += weight * rewards[i, t] * x
    theta = np.linalg.solve(squares, products[..., np.newaxis])[..., 0]
    state = np.float32([[0.5, -0.2, 0.9]])
    values = np.append(state, 1.0) @ theta.T
    shares = np.exp(values / 0.2) / np.exp(values / 0.2).sum()
    PolicyExporter(agent.collect_policy, tmp_path).export(3, {})
    loaded = loader.load(tmp_path / '3')
    known = ActionProbabilities(loaded, EnvironmentSpecs(STATE, BOX), 0.1, None)
    assert known.edges is None
    many = tf.nest.map_structure(
        lambda leaf: leaf.numpy(), ts.restart(tf.constant(np.repeat(state, 20_000, 0)), 20_000)
    )
    drawn = loaded.action(many)[0]
    assert drawn.shape == (20_000, 2) and drawn.dtype == np.float32
    where = (drawn - [2, -1]) / [2, 0.5]
    cells = np.floor(where).astype(int).clip(0, 3) @ [4, 1]
    # By rounding a number at an edge may be in either cell: one draw of a million.
    inner = (np.abs(where - np.round(where)) > 1e-5).all(axis=1)
    assert inner.sum() > 19_900
    # A cell has the volume 1; 0.3 of the draws are even, and 0.1 more of what is served.
    density = 0.7 * shares + 0.3 / 16
    found = np.exp(known.log_probability(many, (), drawn)[0])
    np.testing.assert_allclose(found[inner], (0.9 * density + 0.1 / 16)[cells[inner]], rtol=1e-4)
    found = np.bincount(cells, minlength=16) / 20_000
    assert (np.abs(found - density) <= 5 * np.sqrt(density / 20_000)).all() and np.ptp(density) > 0.02
    best = divmod(int(values.argmax()), 4)
    greedy = agent.policy.action(ts.restart(tf.constant(state), 1)).action[0]
    np.testing.assert_allclose(greedy, [3 + 2 * best[0], -0.75 + 0.5 * best[1]], rtol=1e-6)


def test_the_greedy_policy_has_no_density(tmp_path):
    PolicyExporter(_make(Smoothing()).policy, tmp_path).export(3, {})
    with pytest.raises(NoDensityError, match="need one that draws them, such as 'raw_policy'"):
        ActionProbabilities(loader.load(tmp_path / '3'), SPECS, 0.0, None)


def test_other_actions_and_settings_are_refused():
    matrix = tensor_spec.BoundedTensorSpec((2, 1), tf.float32, -1.0, 1.0, 'action')
    half = tensor_spec.BoundedTensorSpec((2,), tf.float32, 0.0, np.float32([1.0, np.inf]), 'action')
    endless = tensor_spec.BoundedTensorSpec((), tf.float32, 0.0, np.inf, 'action')
    for action in (matrix, half, endless, tf.TensorSpec((), tf.float32), example_data.DISCRETE.action):
        with pytest.raises(ValueError, match='got smoothing for the action .*need one number of float32'):
            _make(Smoothing(), EnvironmentSpecs(STATE, action))
    vector = tensor_spec.BoundedTensorSpec((4,), tf.float32, -1.0, 1.0, 'action')
    with pytest.raises(ValueError, match=r'num_centres=16 for each of 4 numbers, a grid of 65,536; need at most 4,096'):
        _make(Smoothing(), EnvironmentSpecs(STATE, vector))
    with pytest.raises(ValueError, match='got smoothing with arm_features or action_mask'):
        _make(Smoothing(), arm_features='items')
    with pytest.raises(ValueError, match='got Smoothing.bandwidth=0; need'):
        Smoothing(bandwidth=0)
