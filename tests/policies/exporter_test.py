"""Exported policies act as the live ones do, in each loader; tests/runs/conformance_test.py has TensorFlow alone."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import sequential
from tf_agents.policies import greedy_policy, policy_loader, q_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

import tflearn
from tests.testing import example_policies
from tflearn.policies import converted, loader
from tflearn.policies.exporter import PolicyExporter

POLICIES = (
    *('greedy', 'epsilon_greedy', 'recurrent', 'stochastic_actor', 'greedy_actor', 'normalized', 'nested', 'random'),
    'with_info',
)
# What they have beside serving_default and action; the others have their distribution.
SIGNATURES = {
    'greedy': ('distribution', 'q_values'),
    'epsilon_greedy': (),
    'random': (),
    'recurrent': ('distribution', 'q_values', 'get_initial_state'),
    'nested': ('distribution', 'q_values'),
}


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    """Returns a function of a kind: its policy, with the weights of version 2, not of 1, and the versions' folder."""

    @functools.cache
    def export(kind):
        policy = getattr(example_policies, kind)()
        folder = tmp_path_factory.mktemp('exported') / kind / 'policy'
        exporter = PolicyExporter(policy, folder)
        exporter.export(1, {})
        example_policies.reweigh(policy)
        exporter.export(2, {'env_steps': 18_000, 'policy_version': 9})
        return policy, folder

    return export


@pytest.mark.parametrize('kind', POLICIES)
def test_every_kind_of_policy_exports_and_acts_within_its_spec(kind, exported):
    policy, folder = exported(kind)
    loaded = loader.load(folder / '2')
    signatures = set(tf.saved_model.load(str(folder / '2')).signatures)
    assert signatures == {'serving_default', 'action', *SIGNATURES.get(kind, {'distribution'})}
    for batch_size in (1, 5):
        state = loaded.initial_state(batch_size)
        action, next_state = loaded.action(example_policies.time_step(policy, batch_size), state)
        assert action.shape == (batch_size, *policy.action_spec.shape)
        assert action.dtype == policy.action_spec.dtype.as_numpy_dtype
        assert np.all(action >= policy.action_spec.minimum) and np.all(action <= policy.action_spec.maximum)
        tf.nest.assert_same_structure(next_state, state)


@pytest.mark.parametrize('kind', ['greedy', 'recurrent', 'greedy_actor', 'normalized', 'nested', 'with_info'])
def test_tf_agents_loads_an_export(kind, exported):
    """TF-Agents' loader reads the specs, and returns the live policy's actions."""
    policy, folder = exported(kind)
    opened = policy_loader.load(str(folder / '2'))
    for name in ('time_step_spec', 'action_spec', 'info_spec'):
        assert _shapes(getattr(opened, name)) == _shapes(getattr(policy, name))
    state, live_state = opened.get_initial_state(1), policy.get_initial_state(1)
    for seed in range(2):
        batch = example_policies.time_step(policy, 1, seed)
        step = opened.action(tf.nest.map_structure(lambda leaf: leaf[0], batch), state)
        live = policy.action(tf.nest.map_structure(tf.constant, batch), live_state)
        if kind != 'with_info':  # which is stochastic
            np.testing.assert_allclose(step.action, live.action[0], atol=1e-6)
        tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), step.state, live.state)
        assert _shapes(step.info) == _shapes(tf.nest.map_structure(lambda leaf: leaf[0], live.info))
        state, live_state = step.state, live.state


def _shapes(nest):
    return tf.nest.map_structure(
        lambda leaf: (tuple(leaf.shape), np.dtype(getattr(leaf.dtype, 'as_numpy_dtype', leaf.dtype))), nest
    )


@pytest.fixture(scope='module')
def of_categories(tmp_path_factory):
    """The version of a policy of one category, from 0 to 499."""
    observation = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 499, 'observation')
    layers = [tf.keras.layers.Lambda(lambda states: tf.one_hot(states, 500)), tf.keras.layers.Dense(2)]
    network = sequential.Sequential(layers, input_spec=observation)
    network.create_variables()
    time_step = ts.time_step_spec(observation)
    policy = greedy_policy.GreedyPolicy(q_policy.QPolicy(time_step, example_policies.DISCRETE_PAIR, network))
    return PolicyExporter(policy, tmp_path_factory.mktemp('categories')).export(1, {})


def rejects_categories_out_of_bounds(ask):
    ask(np.int64([499]))
    for wrong in (999, -1):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf'got observation from\] \[{wrong}\].*need 0 to 499'):
            ask(np.int64([wrong]))


@pytest.mark.extensions
def test_a_server_rejects_categories_out_of_bounds(of_categories):
    from tflearn.extensions.serving.served_version import ServedVersion

    signature = ServedVersion(of_categories).signature('serving_default')
    rejects_categories_out_of_bounds(lambda states: signature.run({'observation': states}))


def test_rejects_categories_out_of_bounds(of_categories):
    """Each signature and function does so in each loader, except TFLite, which has no assertions."""
    model, opened = tf.saved_model.load(str(of_categories)), policy_loader.load(str(of_categories))
    step = {'step_type': np.int32([1]), 'reward': np.float32([0]), 'discount': np.float32([1])}
    tensors = {name: tf.constant(value) for name, value in step.items()}
    asks = [
        lambda states: model.action(*step.values(), states),
        lambda states: model.signatures['serving_default'](observation=tf.constant(states)),
        lambda states: model.signatures['action'](**tensors, observation=tf.constant(states)),
        lambda states: model.signatures['distribution'](**tensors, observation=tf.constant(states)),
        lambda states: opened.action(ts.TimeStep(*(value[0] for value in step.values()), states[0])),
    ]
    for ask in asks:
        rejects_categories_out_of_bounds(ask)
    assert converted.run_tflite(converted.convert_tflite(of_categories), {'observation': np.int64([499, 999])})[
        'action'
    ].shape == (2,)


def test_action_function_returns_the_info(exported):
    policy, folder = exported('with_info')
    model = tf.saved_model.load(str(folder / '2'))
    time_step = example_policies.time_step(policy, 3)
    step = model.action(*time_step)
    assert type(step['info']) is dict
    assert step['info']['dist_params']['loc'].shape == (3, 2)
    flat = model.signatures['action'](**{name: tf.constant(getattr(time_step, name)) for name in time_step._fields})
    assert set(flat) == {'action', 'info_dist_params_loc', 'info_dist_params_scale', 'info_value_prediction'}


def test_distribution_equals_that_of_the_live_policy(exported):
    policy, folder = exported('stochastic_actor')
    model = tf.saved_model.load(str(folder / '2'))
    time_step = tf.nest.map_structure(tf.constant, example_policies.time_step(policy, 3))
    flat = model.signatures['distribution'](**time_step._asdict())
    live = policy.distribution(time_step).action
    assert {name: value.shape[0] for name, value in flat.items()} == dict.fromkeys(flat, 3)
    np.testing.assert_allclose(flat['distribution_loc'], live.mean(), atol=1e-6)
    np.testing.assert_allclose(flat['distribution_scale_diag'], live.stddev(), atol=1e-6)


def test_training_seed_is_not_exported(exported):
    """Every test sets one (tests/conftest.py)."""
    policy, folder = exported('stochastic_actor')
    time_step = example_policies.time_step(policy, 3)
    models = [tf.saved_model.load(str(folder / '2')) for _ in range(2)]
    draws = [model.action(*time_step)['action'].numpy() for model in models]
    assert not np.array_equal(*draws)


def test_nested_observations_are_named_inputs(exported):
    _, folder = exported('nested')
    serving = tf.saved_model.load(str(folder / '2')).signatures['serving_default']
    _, inputs = serving.structured_input_signature
    assert set(inputs) == {'observation_position', 'observation_speeds_0', 'observation_speeds_1'}
    assert all(spec.shape[0] is None for spec in inputs.values())
    assert set(serving.structured_outputs) == {'action'}


def test_tensorflow_serving_reads_the_newest_weights(exported):
    """Serving runs the graph's own restore operation, as the loader of TensorFlow 1 does."""
    policy, folder = exported('greedy')
    time_step = example_policies.time_step(policy, 50)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signature = tf.compat.v1.saved_model.load(session, ['serve'], str(folder / '2')).signature_def[
            'serving_default'
        ]
        feed = {signature.inputs['observation'].name: time_step.observation}
        served = session.run(signature.outputs['action'].name, feed)
    live = policy.action(tf.nest.map_structure(tf.constant, time_step)).action
    np.testing.assert_array_equal(served, live)


def test_metadata_describe_the_version(exported):
    _, folder = exported('nested')
    metadata = json.loads((folder / '2' / 'metadata.json').read_text())
    assert metadata['train_step'] == 2
    assert metadata['env_steps'] == 18_000
    assert metadata['policy_version'] == 9
    assert metadata['exported_at'] > 0
    assert metadata['tflearn_version'] == tflearn.__version__
    assert metadata['tensorflow_version'] == tf.__version__
    assert metadata['specs']['action'] == {'shape': [], 'dtype': 'int64', 'minimum': 0, 'maximum': 3}
    speed = {'shape': [1], 'dtype': 'float32'}
    assert metadata['specs']['observation']['speeds'][1] == speed
    assert metadata['specs']['policy_state'] == []


def test_a_mirrored_policy_is_exported_outside_the_scope_of_its_strategy(tmp_path):
    strategy = tf.distribute.MirroredStrategy(['CPU:0'])
    with strategy.scope():
        policy = example_policies.greedy()
        with pytest.raises(ValueError, match='need it outside'):
            PolicyExporter(policy, tmp_path)
    exporter = PolicyExporter(policy, tmp_path)
    example_policies.reweigh(policy)
    time_step = example_policies.time_step(policy, 50)
    live = policy.action(tf.nest.map_structure(tf.constant, time_step)).action
    np.testing.assert_array_equal(loader.load(exporter.export(1, {})).action(time_step)[0], live)
