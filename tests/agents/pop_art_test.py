"""Normalized values: outputs do not change with the statistics, which are those of the targets, and are kept."""

import functools

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tflearn
from tests.agents import example_data
from tests.agents.own_network_test import LogitsAndValue
from tests.testing.algorithms import ALGORITHMS
from tflearn.agents import ppo
from tflearn.agents.impala import ImpalaLoss
from tflearn.agents.pop_art import PopArt
from tflearn.environments import vector_env
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

NAMES = pytest.mark.parametrize('name', ['ppo', 'v_mpo', 'impala', 'appo'])


def _agent(name, **changes):
    return ALGORITHMS[name].make(**{'normalize_values': True, **changes})


def _data(agent, seed=0, length=5):
    """Sequences with rewards of another unit."""
    data = example_data.sequences(agent, 8, length, seed)
    return data._replace(reward=3000.0 + 500.0 * data.reward)


def test_statistics_are_those_of_all_targets_and_the_layer_s_output_stays():
    pop_art, layer = PopArt(), tf.keras.layers.Dense(1)
    inputs, seen = tf.random.stateless_normal((20, 4), (1, 2)), []
    layer(inputs)
    for seed in range(5):
        targets = np.random.default_rng(seed).normal(300.0, 10.0 * (1 + seed), 50).astype(np.float32)
        means = {name: tf.reduce_mean(rows) for name, rows in pop_art.metrics(tf.constant(targets)).items()}
        extra = pop_art.update(layer, means | {'valid_share': tf.constant(1.0)}, taken=None)
        seen.extend(targets)
        assert float(pop_art.mean) == pytest.approx(np.mean(seen, dtype=np.float64), rel=1e-5)
        assert float(pop_art.deviation) == pytest.approx(np.std(seen, dtype=np.float64), rel=1e-3)
        if seed == 0:
            before = pop_art(layer(inputs)).numpy()
        assert extra['value_mean'] == pop_art.mean and extra['value_deviation'] == pop_art.deviation
        np.testing.assert_allclose(pop_art(layer(inputs)), before, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    'changes', [{'square': np.nan}, {'share': 0.0}, {'taken': tf.constant(False)}], ids=['nan', 'no row', 'skipped']
)
def test_a_step_that_does_not_count_changes_nothing(changes):
    pop_art, layer = PopArt(), tf.keras.layers.Dense(1)
    layer.build((1, 4))
    before = [variable.numpy() for variable in (*pop_art.variables, *layer.variables)]
    square, share = (tf.constant(changes.get(name, default)) for name, default in (('square', 9.0), ('share', 1.0)))
    extra = {'value_shift': tf.constant(2.0), 'value_square': square, 'valid_share': share}
    pop_art.update(layer, extra, changes.get('taken'))
    for variable, value in zip((*pop_art.variables, *layer.variables), before, strict=True):
        np.testing.assert_array_equal(variable, value)


@NAMES
def test_values_stay_while_the_statistics_change(name):
    """Without a learning rate nothing else changes."""
    agent = _agent(name, optimizer=OptimizerOptions(0.0))
    data = _data(agent)
    values = lambda: agent._network(data.observation, step_type=data.step_type)[0][1].numpy()  # noqa: E731
    agent.train(data)
    before, found = values(), []
    for seed in range(3):
        extra = agent.train(_data(agent, seed)).extra
        found.append((float(extra['value_mean']), float(extra['value_deviation'])))
        np.testing.assert_allclose(values(), before, rtol=1e-3, atol=1e-3)
    assert len(set(found)) == 3
    assert {'value_shift', 'value_square'}.isdisjoint(extra)


def test_the_first_step_only_begins_the_statistics():
    """Errors of 3,000 would be in Adam's moments for long."""
    agent = _agent('impala', loss=ImpalaLoss(entropy_coefficient=0.0))
    before = [variable.numpy() for variable in agent._network.trainable_variables]
    for step in range(2):
        agent.train(_data(agent))
        changes = [np.abs(new - old).max() for new, old in zip(agent._network.trainable_variables, before, strict=True)]
        assert max(changes) < 1e-4 if step == 0 else max(changes) > 4e-4


@pytest.mark.parametrize('name', ['ppo', 'impala'])
def test_large_returns_are_learned(name):
    """The same values without it are far from the targets after as many steps."""
    errors = []
    for normalized in (True, False):
        loss = type(ALGORITHMS[name].default('loss'))(gamma=0.0, value_coefficient=1.0)
        plain = {'normalize_rewards': False, 'normalize_observations': False} if name == 'ppo' else {}
        agent = _agent(name, loss=loss, optimizer=OptimizerOptions(3e-3), normalize_values=normalized, **plain)
        data, train = _data(agent), tf.function(agent.train)
        for _ in range(50):
            train(data)
        values = agent._network(data.observation, step_type=data.step_type)[0][1]
        errors.append(np.abs(values - data.reward)[:, :-1].mean())
    assert errors[0] < 500 and errors[1] > 2500, errors


@NAMES
def test_checkpoints_have_the_statistics(name, tmp_path):
    agent, other = _agent(name), _agent(name)
    agent.train(_data(agent))
    tf.train.Checkpoint(agent=other).restore(tf.train.Checkpoint(agent=agent).save(str(tmp_path / 'saved')))
    saved, restored = (each._network.pop_art for each in (agent, other))
    assert float(restored.deviation) == float(saved.deviation) != 1.0
    assert float(restored.mean) == float(saved.mean) != 0.0


def test_a_run_exports_what_acts(tmp_path):
    run = tflearn.train(
        make_environment=functools.partial(vector_env.in_process, functools.partial(gymnasium.make, 'CartPole-v1')),
        make_agent=functools.partial(ppo.make_agent, normalize_values=True, network=NetworkOptions((8,))),
        max_env_steps=1_100,
        mode='synchronous',
        root_dir=tmp_path,
    )
    assert run.policy(np.zeros(4, np.float32)) in (0, 1)


def test_rejects_a_network_that_computes_the_value():
    network = NetworkOptions(shared=True, make_network=lambda spec, name: LogitsAndValue(2))
    with pytest.raises(ValueError, match='got normalize_values=True with a make_network that computes the value'):
        _agent('ppo', network=network)
