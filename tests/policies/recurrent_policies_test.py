"""Exported policies with memory: their state is carried over from call to call, and reset where a step is FIRST."""

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import experiences
from tflearn.agents import ppo, r2d2
from tflearn.core.train_step import create_train_step
from tflearn.environments.tasks import t_maze
from tflearn.networks.networks import NetworkOptions
from tflearn.policies.exporter import PolicyExporter

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')
BATCH = 3
FIRST, MID = 0, 1
PLAIN = {'normalize_observations': False}  # random variances could be negative


def _ppo(specs):
    experience = experiences.changed(ppo.EXPERIENCE, store_policy_state=True, sequence_length=33, stride=32)
    return ppo.make_agent(specs, create_train_step(), experience, network=NetworkOptions(lstm_size=(8,)), **PLAIN)


def _r2d2(specs):
    return r2d2.make_agent(
        specs, create_train_step(), r2d2.EXPERIENCE, network=NetworkOptions(lstm_size=(8,), fc_layer_params=(8,))
    )


MAKE = {'ppo': _ppo, 'r2d2': _r2d2}


@pytest.fixture(scope='module', params=MAKE)
def exported(request, tmp_path_factory):
    """The live policy with large weights, so that its state has an effect, and a loaded version of it."""
    environment = t_maze.make(1, 0)
    environment.close()
    agent = MAKE[request.param](environment.specs)
    for i, variable in enumerate(agent.policy.variables()):
        if variable.shape.rank:
            variable.assign(tf.random.stateless_normal(variable.shape, (i, 1)))
    exporter = PolicyExporter(agent.policy, tmp_path_factory.mktemp('policies') / 'greedy_policy')
    return agent.policy, exporter, tf.saved_model.load(str(exporter.export(0, {})))


def _observations(steps):
    generator = np.random.default_rng(0)
    return generator.integers(0, 2, (steps, BATCH, 3)).astype(np.float32)


def _act(model, observation, state, step_type=MID):
    types = tf.fill([BATCH], tf.constant(step_type, tf.int32))
    step = model.action(types, tf.zeros([BATCH]), tf.ones([BATCH]), tf.constant(observation), state)
    return step['action'].numpy(), step['policy_state']


def _time_step(policy, observation, step_type):
    return policy.time_step_spec._replace(
        step_type=np.full(BATCH, step_type, np.int32),
        reward=np.zeros(BATCH, np.float32),
        discount=np.ones(BATCH, np.float32),
        observation=observation,
    )


def _distance(left, right):
    pairs = zip(tf.nest.flatten(left), tf.nest.flatten(right), strict=True)
    return max(float(tf.reduce_max(tf.abs(a - b))) for a, b in pairs)


def test_it_acts_as_the_live_policy_does_for_an_episode(exported):
    policy, _, model = exported
    state, live_state = model.get_initial_state(BATCH), policy.get_initial_state(BATCH)
    for i, observation in enumerate(_observations(6)):
        step_type = FIRST if i == 0 else MID
        action, state = _act(model, observation, state, step_type)
        time_step = tf.nest.map_structure(tf.constant, _time_step(policy, observation, step_type))
        step = policy.action(time_step, live_state)
        live_state = step.state
        np.testing.assert_array_equal(action, step.action)
        assert _distance(state, live_state) < 1e-5


def test_the_state_matters_until_an_episode_starts(exported):
    *_, model = exported
    initial = model.get_initial_state(BATCH)
    observations = _observations(3)
    _, seen = _act(model, observations[0], initial, FIRST)
    _, remembered = _act(model, observations[1], seen)
    _, forgotten = _act(model, observations[1], initial)
    assert _distance(remembered, forgotten) > 1e-3
    _, reset = _act(model, observations[2], remembered, FIRST)
    _, new = _act(model, observations[2], initial, FIRST)
    assert _distance(reset, new) < 1e-6


def test_the_signature_takes_and_returns_the_state_by_names(exported):
    *_, model = exported
    state = dict(model.signatures['get_initial_state'](batch_size=tf.constant(BATCH)))
    assert state
    assert all(name.startswith('policy_state') for name in state)
    observations = _observations(2)
    nested = model.get_initial_state(BATCH)
    for observation in observations:
        answer = model.signatures['serving_default'](observation=tf.constant(observation), **state)
        action, nested = _act(model, observation, nested)
        np.testing.assert_array_equal(answer['action'], action)
        state = {name: value for name, value in answer.items() if name != 'action'}
        assert state.keys() == dict(model.signatures['get_initial_state'](batch_size=tf.constant(BATCH))).keys()


def test_a_server_takes_and_returns_the_state(exported):
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tests.testing import served_policies
    from tflearn.serving.client import RemotePolicy

    policy, exporter, model = exported
    with served_policies.serving(exporter._directory.parent) as (server, _):
        served = RemotePolicy(f'localhost:{server.port}', 'greedy_policy', policy)
        state, remote = model.get_initial_state(BATCH), served.initial_state(BATCH)
        for i, observation in enumerate(_observations(4)):
            step_type = FIRST if i in (0, 2) else MID
            action, state = _act(model, observation, state, step_type)
            got, remote = served.action(_time_step(policy, observation, step_type), remote)
            np.testing.assert_array_equal(got, action)
            assert _distance(state, remote) < 1e-5
        served.close()


def test_one_that_acts_differently_is_not_published(exported, monkeypatch):
    """Only rounding may differ."""
    policy, exporter, _ = exported
    snapshot = exporter._read_all()
    for variable in policy.variables():
        variable.assign(variable * 1.01)
    monkeypatch.setattr(exporter, '_read_all', lambda: snapshot)
    with pytest.raises(RuntimeError, match='need .* as from the live policy'):
        exporter.export(1, {})
