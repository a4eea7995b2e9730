"""Policies of nested observations with a mask: in TensorFlow alone, in TFLite, and served."""

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.testing import example_policies, experiences, lanes, small_tasks
from tflearn.agents import dqn, ppo, r2d2
from tflearn.core.action_mask import mask_of
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.gtrxl import GTrXLOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.policies import converted, exporter, loader
from tflearn.policies.converted import Converted
from tflearn.policies.exporter import PolicyExporter


class Robot(NamedTuple):
    """Its fields are not in alphabetical order."""

    kind: Any
    arm: Any


bounded = tensor_spec.BoundedTensorSpec
SPECS = EnvironmentSpecs(
    {
        'camera': bounded((8, 8, 1), tf.uint8, 0, 255),
        'legal': {'mask': bounded((5,), tf.int64, 0, 1)},
        'robot': Robot(bounded((), tf.int64, 0, 4), (tf.TensorSpec((3,), tf.float32), tf.TensorSpec((), tf.float32))),
    },
    bounded((2,), tf.int64, [0, 0], [1, 2]),
)
NAMES = [
    'observation_camera',
    'observation_legal_mask',
    'observation_robot_arm_0',
    'observation_robot_arm_1',
    'observation_robot_kind',
]
MASK = 'observation_legal_mask'


@pytest.fixture(scope='module')
def policy():
    agent = ppo.make_agent(
        SPECS,
        create_train_step(),
        ppo.EXPERIENCE,
        network=NetworkOptions(fc_layer_params=(8,)),
        action_mask='legal.mask',
    )
    agent.initialize()
    example_policies.reweigh(agent.policy, seed=1)
    return agent.policy


@pytest.fixture(scope='module')
def folder(policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp('policies')
    exporter.PolicyExporter(policy, folder / 'greedy_policy').export(7, {})
    return folder


@pytest.fixture
def named():
    """Inputs by name: four observations, in which few actions are legal."""
    random = np.random.default_rng(3)
    return {
        'observation_camera': random.integers(0, 255, (4, 8, 8, 1)).astype(np.uint8),
        MASK: np.array([[0, 1, 1, 0, 0], [1, 0, 0, 0, 1], [1, 1, 0, 1, 1], [1, 1, 1, 1, 1]]),
        'observation_robot_arm_0': random.normal(size=(4, 3)).astype(np.float32),
        'observation_robot_arm_1': random.normal(size=4).astype(np.float32),
        'observation_robot_kind': random.integers(0, 5, 4),
    }


def nest(named):
    camera, mask, arm, length, kind = (named[name] for name in NAMES)
    return {'camera': camera, 'legal': {'mask': mask}, 'robot': Robot(kind, (arm, length))}


def live(policy, named):
    time_step = example_policies.time_step(policy, 4)._replace(observation=nest(named))
    return policy.action(tf.nest.map_structure(tf.constant, time_step)).action.numpy()


def test_named_tensors_and_tflite(policy, folder, named):
    model = tf.saved_model.load(str(folder / 'greedy_policy' / '7')).signatures['serving_default']
    assert sorted(model.structured_input_signature[1]) == NAMES
    got = model(**{name: tf.constant(value) for name, value in named.items()})['action'].numpy()
    np.testing.assert_array_equal(got, live(policy, named))
    assert all(named[MASK][i, first] and named[MASK][i, 2 + second] for i, (first, second) in enumerate(got))
    model = converted.convert_tflite(folder / 'greedy_policy' / '7')
    np.testing.assert_array_equal(converted.run_tflite(model, named)['action'], got)


def test_a_mask_without_a_legal_action_is_an_error(folder, named):
    model = tf.saved_model.load(str(folder / 'greedy_policy' / '7'))
    named[MASK][2] = [1, 0, 0, 0, 0]
    tensors = {name: tf.constant(value) for name, value in named.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r'got no legal action in legal.mask in row\] \[2\]'):
        model.signatures['serving_default'](**tensors)
    step = {'reward': tf.zeros(4), 'discount': tf.ones(4)}
    model.signatures['action'](step_type=tf.constant([1, 1, 2, 1]), **step, **tensors)  # the row takes no action
    model.signatures['serving_default'](**tf.nest.map_structure(tf.zeros_like, tensors))  # as loaders run it once


def test_a_category_of_a_named_tuple_is_checked(folder, named):
    model = tf.saved_model.load(str(folder / 'greedy_policy' / '7')).signatures['serving_default']
    named['observation_robot_kind'][1] = 9
    with pytest.raises(tf.errors.InvalidArgumentError, match='got observation_robot_kind from.*9'):
        model(**{name: tf.constant(value) for name, value in named.items()})


@pytest.mark.extensions
def test_served(policy, folder, named):
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    import grpc

    from tests.testing import served_policies
    from tflearn.extensions.serving.client import PolicyClient, RemotePolicy
    from tflearn.extensions.serving.served_version import BatchOptions

    expected = live(policy, named)
    with served_policies.serving(folder, BatchOptions()) as (server, _):
        address = f'localhost:{server.port}'
        client = PolicyClient(address, timeout_secs=60.0)
        outputs, version = client.predict(named)
        np.testing.assert_array_equal(outputs['action'], expected)
        assert version == 7
        remote = RemotePolicy(address, 'greedy_policy', policy)
        time_step = example_policies.time_step(policy, 4)._replace(observation=nest(named))
        remote.check(time_step)
        np.testing.assert_array_equal(remote.action(time_step, ())[0], expected)
        named[MASK][0] = 0
        with pytest.raises(grpc.RpcError, match='got no legal action in legal.mask in row'):
            client.predict(named)
        with pytest.raises(grpc.RpcError, match='observation_robot_arm_0'):
            client.predict({name: value for name, value in named.items() if name != 'observation_robot_arm_0'})
        for connected in (client, remote):
            connected.close()


def test_the_loaded_policy_has_the_mask(policy, folder):
    loaded = loader.load(folder / 'greedy_policy' / '7')
    assert loaded.metadata[exporter.ACTION_MASK] == mask_of(policy).path == 'legal.mask'


def test_dqn_in_tflite(tmp_path):
    specs = EnvironmentSpecs(SPECS.observation, bounded((), tf.int64, 0, 4))
    agent = dqn.make_agent(
        specs,
        create_train_step(),
        dqn.EXPERIENCE,
        network=NetworkOptions(fc_layer_params=(8,)),
        action_mask='legal.mask',
    )
    agent.initialize()
    path = exporter.PolicyExporter(agent.policy, tmp_path).export(1, {})
    inputs = Converted(path, 'tflite').inputs.items()
    given = {name: np.zeros([1, *spec.shape[1:]], spec.dtype.as_numpy_dtype) for name, spec in inputs}
    given[MASK][0, 3] = 1
    assert converted.run_tflite(converted.convert_tflite(path), given)['action'] == [3]


# Exported policies with memory: their state is carried over from call to call, and reset where a step is FIRST.

BATCH = 3
FIRST, MID = 0, 1
PLAIN = {'normalize_observations': False}  # random variances could be negative


def _ppo(specs, memory='lstm', **layers):
    experience = experiences.changed(ppo.EXPERIENCE, store_policy_state=True, sequence_length=33, stride=32)
    network = NetworkOptions((8,), lstm_size=(8,), memory=memory, **layers)
    return ppo.make_agent(specs, create_train_step(), experience, network=network, **PLAIN)


def _r2d2(specs):
    return r2d2.make_agent(
        specs, create_train_step(), r2d2.EXPERIENCE, network=NetworkOptions(lstm_size=(8,), fc_layer_params=(8,))
    )


# One network for the policy and the value: each trace of a GTrXL takes long.
GTRXL = {'memory': 'gtrxl', 'shared': True, 'gtrxl': GTrXLOptions(window_steps=3, num_heads=2)}
MAKE = {
    'ppo': _ppo,
    'r2d2': _r2d2,
    'gru': functools.partial(_ppo, memory='gru'),
    'gtrxl': functools.partial(_ppo, **GTRXL),
}


# tests/policies/exporter_test.py has LSTMs.
KINDS = [*(pytest.param(name, marks=pytest.mark.slow) for name in ('ppo', 'r2d2')), 'gru', 'gtrxl']


@pytest.fixture(scope='module', params=lanes.sample(KINDS, 'gtrxl'))
def exported(request, tmp_path_factory):
    """The live policy with large weights, so that its state has an effect, and a loaded version of it."""
    environment = small_tasks.make_signal(1, 0)
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
        assert _distance([state[name] for name in sorted(state)], nested) < 1e-5


@lanes.classic  # tests/policies/converted_test.py has LSTMs in the current lane too
@pytest.mark.parametrize('exported', ['gtrxl'], indirect=True)
def test_its_onnx_and_tflite_models_act_as_it_does(exported):
    pytest.importorskip('onnxruntime', reason='needs pip install ".[onnx]"')
    from tests.testing import converted_models

    _, exporter, _ = exported
    converted_models.check(exporter._directory / '0')


@pytest.mark.extensions
def test_a_server_takes_and_returns_the_state(exported):
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tests.testing import served_policies
    from tflearn.extensions.serving.client import RemotePolicy

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
