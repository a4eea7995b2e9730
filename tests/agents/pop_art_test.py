"""Normalized values: outputs do not change with the statistics, which are those of the targets, and are kept."""

import numpy as np
import pytest
import tensorflow as tf

from tests.agents import example_data
from tests.agents.own_network_test import LogitsAndValue
from tests.testing.algorithms import ALGORITHMS
from tflearn.agents.impala import ImpalaLoss
from tflearn.agents.pop_art import PopArt
from tflearn.core.types import zeros
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.policies import loader
from tflearn.policies.exporter import PolicyExporter

NAMES = pytest.mark.parametrize('name', ['ppo', 'v_mpo', 'impala', 'appo'])


def _agent(name, **changes):
    """Without a memory, which has no part in normalized values and takes half of a step's operations."""
    layers = {'lstm_size': None} if ALGORITHMS[name].example.network else None
    return ALGORITHMS[name].make(layers=layers, **{'normalize_values': True, **changes})


def _data(agent, seed=0, mean=3000.0, deviation=500.0):
    """Sequences with rewards of another unit."""
    data = example_data.sequences(agent, 8, 5, seed)
    return data._replace(reward=mean + deviation * data.reward)


def _flat(nest):
    return tf.nest.map_structure(lambda leaf: tf.reshape(leaf, [-1, *leaf.shape[2:]]), nest)


def _with_loss(name, **changes):
    """An agent whose targets are the rewards, which it does not normalize."""
    plain = {'off_policy_correction': False} if name == 'impala' else {'normalize_rewards': False}
    return _agent(name, loss=type(ALGORITHMS[name].default('loss'))(gamma=0.0, **changes), **plain)


def test_statistics_are_those_of_all_targets_and_the_layer_s_output_stays():
    pop_art, layer = PopArt(), tf.keras.layers.Dense(1)
    inputs, seen = tf.random.stateless_normal((20, 4), (1, 2)), []
    layer(inputs)
    for seed in range(5):
        targets = np.random.default_rng(seed).normal(300.0, 10.0 * (1 + seed), 50).astype(np.float32)
        extra = pop_art.update(layer, *tf.nn.moments(tf.constant(targets), axes=0), tf.constant(True))
        seen.extend(targets)
        assert float(pop_art.mean) == pytest.approx(np.mean(seen, dtype=np.float64), rel=1e-5)
        assert float(pop_art.deviation) == pytest.approx(np.std(seen, dtype=np.float64), rel=1e-3)
        if seed == 0:
            before = pop_art(layer(inputs)).numpy()
        assert extra['value_mean'] == pop_art.mean and extra['value_deviation'] == pop_art.deviation
        np.testing.assert_allclose(pop_art(layer(inputs)), before, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize('case', ['nan', 'no row', 'skipped'])
def test_a_step_that_does_not_count_changes_nothing(case):
    agent = _agent('ppo', normalize_rewards=False, optimizer=OptimizerOptions(skip_nonfinite=True), max_kl=1e9)
    samples, counts = agent.prepare(_data(agent))
    pop_art = agent._network.pop_art
    for due in (False, True):
        before = [variable.numpy() for variable in pop_art.variables]
        used = samples._replace(target=np.nan * samples.target) if case == 'nan' and not due else samples
        agent._divergence.assign(2e9 if case == 'skipped' and not due else 0.0)
        agent.train(_flat(used), _flat(counts * (0.0 if case == 'no row' and not due else 1.0)))
        same = [(variable.numpy() == old).all() for variable, old in zip(pop_art.variables, before, strict=True)]
        assert same == [not due] * 3


@pytest.mark.parametrize('name', ['ppo', 'v_mpo', 'impala'])
def test_a_deviation_that_is_small_beside_the_mean(name):
    """In float32 the mean square less the squared mean would be noise."""
    agent = _with_loss(name)
    data = _data(agent, mean=1e4, deviation=1.0)
    values = np.float64(agent._network(data.observation, step_type=data.step_type)[0][1])[:, :-1]
    targets = np.float64(data.reward)[:, :-1]
    extra = agent.train(data).extra
    assert float(extra['value_deviation']) == pytest.approx(np.std(targets), rel=1e-3)
    assert float(extra['explained_variance']) == pytest.approx(1 - np.var(targets - values) / np.var(targets), abs=1e-2)


@NAMES
def test_errors_are_bounded_after_quiet_times(name):
    """The deviation of targets so far says nothing about the first large ones."""
    agent = _with_loss(name) if name != 'appo' else _agent(name)
    for seed in range(3):
        agent.train(_data(agent, seed, 0.0, 1e-3))
    info = agent.loss(_data(agent, mean=1e6, deviation=1.0))
    share = 0.5 if name in ('impala', 'appo') else 1.0
    assert float(info.extra['value_loss']) == pytest.approx(share * (1 - 3e-4) / 3e-4, rel=1e-3)
    assert abs(float(info.extra['policy_loss'])) < 1e3


def test_an_error_beyond_the_bound_has_a_gradient():
    pop_art, layer, errors = PopArt(), tf.keras.layers.Dense(1), tf.constant([-3e9, -0.5, 3e9])
    layer.build((1, 4))
    pop_art.update(layer, tf.constant(0.0), tf.constant(1e-4), tf.constant(True))
    with tf.GradientTape() as tape:
        tape.watch(errors)
        scaled = pop_art.scaled(errors)
    np.testing.assert_allclose(scaled, [-57.727, -50.0, 57.727], rtol=1e-4)
    np.testing.assert_allclose(tape.gradient(scaled, errors), [100.0] * 3, rtol=1e-4)


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
    assert set(agent.loss(data).extra) == set(extra) - {'value_mean', 'value_deviation'}
    assert {key for key in extra if key.startswith('value')} == {'value_loss', 'value_mean', 'value_deviation'}


def test_the_first_step_only_begins_the_statistics():
    """Errors of 3,000 would be in Adam's moments for long."""
    agent = _agent('impala', loss=ImpalaLoss(entropy_coefficient=0.0))
    before = [variable.numpy() for variable in agent._network.trainable_variables]
    for step in range(2):
        agent.train(_data(agent))
        changes = [np.abs(new - old).max() for new, old in zip(agent._network.trainable_variables, before, strict=True)]
        assert max(changes) < 1e-4 if step == 0 else max(changes) > 4e-4


@pytest.mark.parametrize('name', ['ppo', 'v_mpo'])
def test_the_first_iteration_learns_from_its_second_step_on(name):
    """Its samples are prepared before the statistics begin."""
    agent = _with_loss(name, **({'normalize_advantages': False} if name == 'ppo' else {}))
    samples, counts = agent.prepare(_data(agent))
    variables = [*agent._network.policy_variables, *(agent._trained('v_mpo_dual') if name == 'v_mpo' else [])]
    for learns in (False, True):
        before = [variable.numpy() for variable in variables]
        extra = agent.train(_flat(samples), _flat(counts)).extra
        changes = [np.abs(new - old).max() for new, old in zip(variables, before, strict=True)]
        assert [change > 1e-4 for change in changes] == [learns] * len(variables) and (learns or max(changes) == 0)
    if name == 'v_mpo':
        scaled = np.sort(samples.advantage.numpy().ravel() / extra['value_deviation'])[16:]
        expected = 0.1 + np.log(np.mean(np.exp(scaled)))
        assert float(extra['temperature_loss']) == pytest.approx(expected, rel=1e-3)


def test_value_clipping_begins_with_the_second_iteration():
    """What a value was before the statistics began is no bound: by them it changes by many deviations."""
    agent = _with_loss('ppo', value_clipping=0.2)
    data = _data(agent)
    for iteration in range(2):
        samples, counts = agent.prepare(data)
        agent.train(_flat(samples), _flat(counts))
        bias = agent._network._value_head.bias
        bias.assign_add([1.0])
        farther = samples._replace(target=10.0 * agent._network.pop_art.deviation + 1e4 * tf.ones_like(samples.target))
        with tf.GradientTape() as tape:
            loss = agent.loss(_flat(farther), _flat(counts)).loss
        assert (float(tape.gradient(loss, bias)[0]) == 0) == (iteration == 1)


@pytest.mark.parametrize('name', ['ppo', pytest.param('impala', marks=pytest.mark.slow)])
def test_large_returns_are_learned(name):
    """The same values without it are far from the targets after as many steps."""
    errors = []
    for normalized in (True, False):
        loss = type(ALGORITHMS[name].default('loss'))(gamma=0.0, value_coefficient=1.0)
        plain = {'normalize_rewards': False, 'normalize_observations': False} if name == 'ppo' else {}
        agent = _agent(name, loss=loss, optimizer=OptimizerOptions(3e-3), normalize_values=normalized, **plain)
        data, train = _data(agent), tf.function(agent.train, autograph=False)
        for _ in range(50):
            train(data)
        values = agent._network(data.observation, step_type=data.step_type)[0][1]
        errors.append(np.abs(values - data.reward)[:, :-1].mean())
    assert errors[0] < 500 and errors[1] > 2500, errors


@pytest.mark.parametrize('name', ['ppo', 'v_mpo', 'impala'])  # APPO's network is IMPALA's
def test_checkpoints_have_the_statistics(name, tmp_path):
    agent, other = _agent(name), _agent(name)
    agent.train(_data(agent))
    tf.train.Checkpoint(agent=other).restore(tf.train.Checkpoint(agent=agent).save(str(tmp_path / 'saved')))
    saved, restored = (each._network.pop_art for each in (agent, other))
    assert float(restored.deviation) == float(saved.deviation) != 1.0
    assert float(restored.mean) == float(saved.mean) != 0.0


def test_the_exported_policy_acts_as_the_trained_one(tmp_path):
    agent = _agent('ppo')
    data = _data(agent)
    agent.train(data)
    steps = zeros(example_data.DISCRETE.time_step, (8,))._replace(observation=data.observation[:, 0])
    exported = loader.load(PolicyExporter(agent.policy, tmp_path / 'policy').export(1, {}))
    np.testing.assert_array_equal(exported.action(steps)[0], agent.policy.action(steps).action)


def test_rejects_a_network_that_computes_the_value():
    network = NetworkOptions(shared=True, make_network=lambda spec, name: LogitsAndValue(2))
    with pytest.raises(ValueError, match='got normalize_values=True with a make_network that computes the value'):
        _agent('ppo', network=network)
