"""Values and losses of embedded actions, against float64 numpy."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data, oracles
from tflearn.agents import dqn
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.action_embeddings import ActionEmbeddings, NetworkOptions
from tflearn.optimization.distributional import Quantiles

NUM_ACTIONS = 5
BOUNDED = tensor_spec.BoundedTensorSpec
PARTS = {
    'items': BOUNDED((NUM_ACTIONS, 3), tf.float32, -1.0, 1.0, 'items'),
    'mask': BOUNDED((NUM_ACTIONS,), tf.int64, 0, 1, 'mask'),
    'state': BOUNDED((2,), tf.float32, -1.0, 1.0, 'state'),
}
ACTION = BOUNDED((), tf.int64, 0, NUM_ACTIONS - 1, 'action')
TABLE = np.random.default_rng(0).normal(size=(NUM_ACTIONS, 3))


def _make(table, parts, **changes):
    specs = EnvironmentSpecs({name: PARTS[name] for name in parts}, ACTION)
    embeddings = ActionEmbeddings(table, units=4, fc_layer_params=(6,))
    settings = {
        'network': NetworkOptions(fc_layer_params=(8,)),
        'gamma': 0.9,
        'double': False,
        'action_mask': 'mask',
        **changes,
    }
    agent = dqn.make_agent(specs, create_train_step(), dqn.EXPERIENCE, action_embeddings=embeddings, **settings)
    agent.initialize()
    return agent


def _values(network, state, vectors):
    """The oracle: state(s)^T action(e_a) / sqrt(D) + bias(s), float64 [B, K]."""
    weights = {variable.name: variable.numpy().astype(np.float64) for variable in network.variables}

    def of(*parts):
        found = [weight for name, weight in weights.items() if all(part in name for part in parts)]
        assert found, (parts, list(weights))
        return found

    features = oracles.mlp(np.asarray(state, np.float64), of('EncodingNetwork'), oracles.relu)
    kernel, bias = of('towers/state')
    offset, constant = of('towers/bias')
    ends = oracles.mlp(np.asarray(vectors, np.float64), of('action'), oracles.relu, last=True)
    products = np.einsum('bd,...kd->bk' if ends.ndim == 2 else 'bd,bkd->bk', features @ kernel + bias, ends)
    return products / np.sqrt(4) + features @ offset + constant


@pytest.mark.parametrize('table', [TABLE, 'items'])
def test_values_and_loss(table):
    by_path = isinstance(table, str)
    agent = _make(table, [*(['items'] if by_path else []), 'mask', 'state'], huber=False)
    data = example_data.sequences(agent, 7, 2)
    mask = np.random.default_rng(2).integers(0, 2, (7, 2, NUM_ACTIONS))
    mask[..., 0] = 1
    data = data._replace(observation={**data.observation, 'mask': tf.constant(mask)})
    vectors = [data.observation['items'][:, t] if by_path else TABLE for t in (0, 1)]
    states = [data.observation['state'][:, t] for t in (0, 1)]
    now, following = (_values(agent._q_network, s, v) for s, v in zip(states, vectors, strict=True))
    best = np.where(mask[:, 1], following, -np.inf).max(1)
    targets = data.reward[:, 0] + 0.9 * best
    taken = now[np.arange(7), data.action[:, 0]]
    observation = tf.nest.map_structure(lambda leaf: leaf[:, 0], data.observation)
    chosen = agent.policy.action(ts.restart(observation, 7)).action
    np.testing.assert_array_equal(chosen, np.where(mask[:, 0], now, -np.inf).argmax(1))
    before = [variable.numpy() for variable in agent._q_network.trainable_weights]
    assert float(agent.train(data).loss) == pytest.approx(np.mean((targets - taken) ** 2), rel=1e-5)
    assert all((old != new.numpy()).any() for old, new in zip(before, agent._q_network.trainable_weights, strict=True))


def test_the_table_stays_and_is_in_the_policy():
    agent = _make(TABLE, ['mask', 'state'])
    agent.train(example_data.sequences(agent, 7, 2))
    (table,) = [variable for variable in agent.policy.variables() if 'table' in variable.name]
    np.testing.assert_allclose(table, TABLE, rtol=1e-6)


def test_refusals():
    with pytest.raises(ValueError, match=r'got action_embeddings of shape \(4, 3\), float64; need floats \[5, E\]'):
        _make(TABLE[:4], ['mask', 'state'])
    with pytest.raises(ValueError, match="got action_embeddings 'item' and an observation with the parts items, state"):
        _make('item', PARTS)
    for change in ({'dueling': True}, {'noisy_sigma': 0.5}, {'distribution': Quantiles(5)}):
        with pytest.raises(ValueError, match='got action_embeddings with dueling, distribution or noisy_sigma'):
            _make(TABLE, ['mask', 'state'], **change)
    with pytest.raises(ValueError, match='got ActionEmbeddings.units=0; need an integer of at least 1'):
        ActionEmbeddings(TABLE, units=0)
