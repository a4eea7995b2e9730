"""The distributions of SquareCB and Boltzmann, against float64 numpy: as functions, of agents, of exported policies."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tflearn.agents import dqn, linear_bandit, r2d2
from tflearn.agents.value_exploration import Boltzmann, SquareCB, logits_of
from tflearn.core.action_mask import ActionMask
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.policies import loader
from tflearn.policies.action_probabilities import ActionProbabilities
from tflearn.policies.exporter import PolicyExporter

LOWEST = tf.float32.min
VALUES = np.float32(
    [
        *([0.3, 0.1, 0.2, -1.0], [0.5, 0.5, 0.5, 0.5], [LOWEST, 7.0, 6.5, LOWEST]),
        *([LOWEST, LOWEST, 3.0, LOWEST], [LOWEST] * 4),
    ]
)
BOUNDED = tensor_spec.BoundedTensorSpec
STATE, MASK = BOUNDED((3,), tf.float32, -1.0, 1.0, 'state'), BOUNDED((4,), tf.int64, 0, 1, 'mask')
ITEMS = BOUNDED((4, 2), tf.float32, -1.0, 1.0, 'items')
SPECS = EnvironmentSpecs({'items': ITEMS, 'mask': MASK, 'state': STATE}, BOUNDED((), tf.int64, 0, 3, 'action'))
NETWORK = NetworkOptions(fc_layer_params=(8,))


def _linear(exploration, arm_features):
    options = linear_bandit.LinearOptions(exploration)
    arguments = {'options': options, 'arm_features': arm_features, 'action_mask': 'mask'}
    agent = linear_bandit.make_agent(SPECS, create_train_step(), linear_bandit.EXPERIENCE, **arguments)
    for seed in range(5):
        agent.train(example_data.sequences(agent, 20, 3, seed))
    return agent


def _q_learning(module, exploration):
    arguments = {'network': NETWORK, 'action_mask': 'mask', 'exploration': exploration}
    return module.make_agent(SPECS, create_train_step(), module.EXPERIENCE, **arguments)


AGENTS = {
    'linear': lambda exploration: _linear(exploration, None),
    'linear, of items': lambda exploration: _linear(exploration, 'items'),
    'DQN': lambda exploration: _q_learning(dqn, exploration),
    'R2D2': lambda exploration: _q_learning(r2d2, exploration),
}


def _rows(size, seed=0):
    """Returns time steps with items, and with masks that differ; at least one action is legal."""
    random = np.random.default_rng(seed)
    mask = random.integers(0, 2, (size, 4))
    mask[np.arange(size), np.arange(size) % 4] = 1
    observation = {
        'items': tf.constant(random.uniform(-1, 1, (size, 4, 2)), tf.float32),
        'mask': tf.constant(mask),
        'state': tf.constant(random.uniform(-1, 1, (size, 3)), tf.float32),
    }
    return ts.restart(observation, size)


def _values(agent, time_step):
    """Returns the values of the legal actions, the lowest number for others, [B, K]."""
    if isinstance(agent, linear_bandit.LinearBanditAgent):
        rest = {name: leaf for name, leaf in time_step.observation.items() if name != 'mask'}
        values = agent.policy.wrapped_policy.scores(rest)
    else:
        policy = agent.policy.wrapped_policy
        values = policy.distribution(time_step, policy.get_initial_state(len(time_step.reward))).action.logits
    return np.where(time_step.observation['mask'], values, LOWEST)


def _squarecb(values, gamma):
    """Returns the probabilities of one row, float64, action by action as the paper has them."""
    legal = np.flatnonzero(values > LOWEST)
    legal = legal if len(legal) else np.arange(len(values))
    values = np.where(values > LOWEST, values.astype(np.float64), 0.0)
    best = legal[np.argmax(values[legal])]
    found = np.zeros(len(values))
    for action in legal:
        if action != best:
            found[action] = 1 / (len(legal) + gamma * (values[best] - values[action]))
    found[best] = 1 - found.sum()
    return found


def _boltzmann(values, temperature):
    """Returns the probabilities of one row, float64."""
    legal = (values > LOWEST) | (values <= LOWEST).all()
    values = values.astype(np.float64)
    weights = legal * np.exp((values - values.max()) / temperature)
    return weights / weights.sum()


def _probabilities(exploration, values, step=0):
    return tf.nn.softmax(logits_of(exploration, tf.constant(step, tf.int64))(tf.constant(values))).numpy()


@pytest.mark.parametrize('gamma', [1e-3, 1.0, 30.0, 1e6])
def test_inverse_gaps(gamma):
    """Several actions, equal ones, two and one that are legal, and none, where any may be drawn."""
    found = _probabilities(SquareCB(gamma), VALUES)
    np.testing.assert_allclose(found, [_squarecb(row, gamma) for row in VALUES], rtol=2e-6, atol=0)
    np.testing.assert_allclose(found[1], 0.25, rtol=1e-6)
    assert found[3].tolist() == [0, 0, 1, 0] and (found[2, [0, 3]] == 0).all()


def test_inverse_gaps_of_one_action_and_of_many():
    assert _probabilities(SquareCB(5.0), np.float32([[0.2], [-3.0]])).tolist() == [[1.0], [1.0]]
    many = np.random.default_rng(0).normal(size=(2, 20_000)).astype(np.float32)
    expected = [_squarecb(row, 1e5) for row in many]
    np.testing.assert_allclose(_probabilities(SquareCB(1e5), many), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize('temperature', [0.01, 1.0, 50.0])
def test_boltzmann(temperature):
    found = _probabilities(Boltzmann(temperature), VALUES)
    np.testing.assert_allclose(found, [_boltzmann(row, temperature) for row in VALUES], rtol=1e-5, atol=1e-30)


def test_gamma_by_the_train_step():
    rising = schedules.power(3.0, 0.5)
    for step in (0, 1, 6, 7, 8, 100):
        expected = [_squarecb(row, 3.0 * max(step, 1) ** 0.5) for row in VALUES]
        np.testing.assert_allclose(_probabilities(SquareCB(rising), VALUES, step), expected, rtol=1e-5)
    epochs = schedules.in_epochs(rising)
    for step, first in {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 7: 4, 8: 8, 2**40 - 1: 2**39, 2**40: 2**40}.items():
        assert float(epochs(tf.constant(step, tf.int64))) == pytest.approx(3.0 * first**0.5, rel=1e-6)


@pytest.mark.parametrize('name', AGENTS)
@pytest.mark.parametrize('kind', [SquareCB, Boltzmann])
def test_agents_draw_by_their_values_among_legal_actions(name, kind):
    setting, oracle = (20.0, _squarecb) if kind is SquareCB else (0.2, _boltzmann)
    agent = AGENTS[name](kind(setting))
    time_step, policy = _rows(8), agent.collect_policy
    found = policy.distribution(time_step, policy.get_initial_state(8)).action.probs_parameter().numpy()
    expected = np.stack([oracle(row, setting) for row in _values(agent, time_step)])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
    assert np.ptp(found[found > 0]) > 0.05 and (found[time_step.observation['mask'].numpy() == 0] == 0).all()
    many = tf.nest.map_structure(lambda leaf: tf.repeat(leaf, 4_000, axis=0), time_step)
    drawn = policy.action(many, policy.get_initial_state(32_000)).action.numpy().reshape(8, 4_000)
    shares = np.stack([np.bincount(row, minlength=4) for row in drawn]) / 4_000
    assert (np.abs(shares - expected) <= 5 * np.sqrt(expected / 4_000)).all()


@pytest.mark.parametrize('name', ['linear, of items', 'DQN'])
def test_an_exported_policy_has_the_probabilities_of_its_train_step(name, tmp_path):
    """Of a gamma that grows, the one at the export; what the gate and `tflearn-evaluate` judge by them."""
    agent = AGENTS[name](SquareCB(schedules.linear(10.0, 1_010.0, 1_000)))
    agent.train_step_counter.assign(40)
    PolicyExporter(agent.collect_policy, tmp_path).export(40, {})
    agent.train_step_counter.assign(900)
    loaded = loader.load(tmp_path / '40')
    time_step = tf.nest.map_structure(lambda leaf: leaf.numpy(), _rows(12))
    found, _ = ActionProbabilities(loaded, SPECS, 0.1, ActionMask(SPECS, 'mask')).probabilities(time_step, ())
    legal = time_step.observation['mask']
    own = np.stack([_squarecb(row, 50.0) for row in _values(agent, _rows(12))])
    np.testing.assert_allclose(found, 0.9 * own + 0.1 * legal / legal.sum(axis=1, keepdims=True), rtol=1e-3)
    many = tf.nest.map_structure(lambda leaf: np.repeat(leaf[2:3], 4_000, axis=0), time_step)
    shares = np.bincount(loaded.action(many)[0], minlength=4) / 4_000
    assert (np.abs(shares - own[2]) <= 5 * np.sqrt(own[2] / 4_000)).all(), 'its actions are draws'
    assert np.count_nonzero(legal[2]) > 1


def test_settings():
    with pytest.raises(ValueError, match='got SquareCB.gamma=0; need a number above 0, or a function'):
        SquareCB(0)
    with pytest.raises(ValueError, match='got Boltzmann.temperature=-1.0; need a number above 0'):
        Boltzmann(-1.0)
    with pytest.raises(TypeError, match='need one of ucb, thompson, or SquareCB, or Boltzmann'):
        linear_bandit.LinearOptions(3)
