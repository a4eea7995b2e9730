"""Models for products: their names, their outputs, and TFLite models that act as the exported versions."""

import functools
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import actor_distribution_network, sequential
from tf_agents.policies import actor_policy, greedy_policy, q_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.testing import example_policies, lanes
from tflearn.agents import sac, td3
from tflearn.core.train_step import create_train_step
from tflearn.core.types import specs_of
from tflearn.environments import gymnasium_env
from tflearn.networks.networks import NetworkOptions
from tflearn.policies import converted, products
from tflearn.policies.converted import Converted
from tflearn.policies.exporter import PolicyExporter
from tflearn.policies.products import ProductOptions

FEATURES = {name: tf.TensorSpec((), tf.int64) for name in ('callee_users', 'node_count')}
ACTION = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 2, 'action')
SMALL = NetworkOptions(fc_layer_params=(8,))
NAMES = {'action': 'inlining_decision', 'logits': 'inlining_logits'}


def stochastic_policy():
    """Draws one of three actions, by a dict of two integers."""

    def join(features):
        return tf.stack([tf.cast(features[name], tf.float32) for name in sorted(features)], axis=-1)

    network = actor_distribution_network.ActorDistributionNetwork(
        FEATURES, ACTION, preprocessing_combiner=tf.keras.layers.Lambda(join), fc_layer_params=(8,)
    )
    network.create_variables()
    policy = actor_policy.ActorPolicy(ts.time_step_spec(FEATURES), ACTION, actor_network=network)
    example_policies.reweigh(policy)
    return policy


def test_a_policy_that_computes_in_bfloat16_is_a_product_without_a_tflite_model(tmp_path):
    observation = example_policies.OBSERVATION
    layers = [
        tf.keras.layers.Dense(8, 'relu', dtype='mixed_bfloat16'),
        tf.keras.layers.Dense(4, dtype='mixed_bfloat16'),
        tf.keras.layers.Lambda(lambda values: tf.cast(values, tf.float32)),
    ]
    network = sequential.Sequential(layers, input_spec=observation)
    network.create_variables()
    policy = q_policy.QPolicy(ts.time_step_spec(observation), example_policies.DISCRETE, network)
    version = PolicyExporter(greedy_policy.GreedyPolicy(policy), tmp_path / 'policy').export(1, {})
    ProductOptions(batch_size=4).save(version, tmp_path / 'product')
    assert not (tmp_path / 'product' / products.TFLITE).exists()
    rows = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    saved = tf.saved_model.load(str(tmp_path / 'product'))
    expected = tf.saved_model.load(str(version)).signatures['serving_default'](observation=tf.constant(rows))['action']
    assert saved.signatures['action'](observation=tf.constant(rows))['action'].shape == expected.shape
    with pytest.raises(ValueError, match='computes in bfloat16 or float16; tflite needs float32; train with precision'):
        Converted(version, 'tflite')


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    """The versions of a greedy policy and of the one whose mode it takes."""
    directory, raw = tmp_path_factory.mktemp('policies'), stochastic_policy()
    policies = {'greedy_policy': greedy_policy.GreedyPolicy(raw), 'raw_policy': raw}
    return {name: PolicyExporter(policy, directory / name).export(7, {}) for name, policy in policies.items()}


def load(path, signature='action'):
    """Returns the functions of a model: of the SavedModel, and of the TFLite model."""
    model = (path / products.TFLITE).read_bytes()
    saved = tf.saved_model.load(str(path))
    saved_function = saved.signatures[signature]
    saved_function.model = saved  # keeps its variables

    def run_tflite(**given):
        return converted.run_tflite(model, given, signature)

    return saved_function, run_tflite


@lanes.numpy_1
def test_greedy_policy_with_chosen_names_and_logits(exported, tmp_path):
    output = tmp_path / 'product'
    options = ProductOptions(time_step=True, parameters=True, names=NAMES)
    options.save(exported['greedy_policy'], output, exported['raw_policy'])
    saved, run_tflite = load(output)
    inputs = {'callee_users', 'node_count', 'step_type', 'reward', 'discount'}
    assert {name: spec.shape for name, spec in saved.structured_input_signature[1].items()} == dict.fromkeys(inputs, 1)
    interpreter = converted.tflite_interpreter((output / 'model.tflite').read_bytes())
    assert {tensor['name'] for tensor in interpreter.get_input_details()} == {f'action_{name}:0' for name in inputs}
    specs = json.loads((output / 'output_spec.json').read_text())
    assert [spec['logging_name'] for spec in specs] == ['inlining_decision', 'inlining_logits']
    assert [(spec['tensor_spec']['type'], spec['tensor_spec']['shape']) for spec in specs] == [
        ('int64_t', [1]),
        ('float', [1, 3]),
    ]
    ports = {f'{spec["tensor_spec"]["name"]}:{spec["tensor_spec"]["port"]}' for spec in specs}
    assert {tensor['name'] for tensor in interpreter.get_output_details()} == ports
    assert (output / 'policy_specs.pbtxt').is_file()
    fields = {
        'step_type': np.array([1], np.int32),
        'reward': np.zeros(1, np.float32),
        'discount': np.ones(1, np.float32),
    }
    version = tf.saved_model.load(str(exported['greedy_policy'])).signatures['serving_default']
    seen = set()
    for number in range(30):
        features = {'callee_users': np.array([number % 7]), 'node_count': np.array([number * 5 - 60])}
        named = {f'observation_{name}': tf.constant(value) for name, value in features.items()}
        action = version(**named)['action'].numpy()
        seen |= set(action)
        for outputs in (
            saved(**{name: tf.constant(value) for name, value in {**features, **fields}.items()}),
            run_tflite(**features, **fields),
        ):
            assert np.array_equal(outputs['inlining_decision'], action)
            assert np.argmax(outputs['inlining_logits'], axis=-1) == action
    assert len(seen) > 1


@lanes.numpy_1
def test_stochastic_policy_draws_by_its_logits(exported, tmp_path):
    ProductOptions(parameters=True).save(exported['raw_policy'], tmp_path / 'one')
    ProductOptions(400, 'draw', names={'action': 'choice'}).save(exported['raw_policy'], tmp_path / 'many')
    features = {'callee_users': np.array([1]), 'node_count': np.array([2])}
    saved, run_tflite = load(tmp_path / 'one')
    probabilities = tf.nn.softmax(run_tflite(**features)['logits']).numpy()[0]
    np.testing.assert_allclose(tf.nn.softmax(saved(**features)['logits'])[0], probabilities, atol=1e-5)
    assert probabilities.max() < 0.9
    repeated = {name: np.repeat(value, 400) for name, value in features.items()}
    saved, run_tflite = load(tmp_path / 'many', 'draw')
    for function in (saved, run_tflite):
        drawn = np.asarray(function(**repeated)['choice'])
        np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 400, probabilities, atol=0.12)
        assert not np.array_equal(drawn, function(**repeated)['choice'])


def test_normal_distribution(tmp_path):
    raw = example_policies.stochastic_actor()
    example_policies.reweigh(raw)
    version = PolicyExporter(raw, tmp_path / 'raw').export(1, {})
    greedy = PolicyExporter(greedy_policy.GreedyPolicy(raw), tmp_path / 'greedy').export(1, {})
    ProductOptions(500, parameters=True).save(version, tmp_path / 'drawn')
    ProductOptions(500, parameters=True, tflite=False).save(greedy, tmp_path / 'mode', version)
    observation = np.repeat([[0.1, -0.2, 0.3, 0.4]], 500, axis=0).astype(np.float32)
    mode = tf.saved_model.load(str(tmp_path / 'mode')).signatures['action'](observation=tf.constant(observation))
    assert not (tmp_path / 'mode' / 'model.tflite').exists()
    np.testing.assert_array_equal(mode['action'], mode['loc'])
    for function in load(tmp_path / 'drawn'):
        drawn = {name: np.asarray(value) for name, value in function(observation=observation).items()}
        np.testing.assert_allclose(drawn['loc'], mode['loc'], atol=1e-5)
        normal = np.random.default_rng(0).normal(size=(500, 2))
        expected = np.clip(drawn['loc'] + drawn['scale_diag'] * normal, -1.0, 1.0)  # the policy clips too
        np.testing.assert_allclose(drawn['action'].mean(axis=0), expected.mean(axis=0), atol=0.15)
        np.testing.assert_allclose(drawn['action'].std(axis=0), expected.std(axis=0), atol=0.1)
        assert np.all(np.abs(drawn['action']) <= 1.0)


def test_squashed_normal_distribution(tmp_path):
    specs = specs_of(functools.partial(gymnasium_env.make, 'Pendulum-v1'))
    raw = sac.make_agent(specs, create_train_step(), sac.EXPERIENCE, network=SMALL).collect_policy
    version = PolicyExporter(raw, tmp_path / 'raw').export(1, {})
    ProductOptions(2000).save(version, tmp_path / 'drawn')
    observation = np.zeros((2000, 3), np.float32)
    own = tf.saved_model.load(str(version)).signatures['serving_default'](observation=tf.constant(observation))[
        'action'
    ]
    for function in load(tmp_path / 'drawn'):
        drawn = np.asarray(function(observation=observation)['action'])
        assert np.all(np.abs(drawn) <= 2.0)
        np.testing.assert_allclose(np.quantile(drawn, (0.1, 0.5, 0.9)), np.quantile(own, (0.1, 0.5, 0.9)), atol=0.25)
    with pytest.raises(ValueError, match='whose distribution has distribution; need logits, or loc and scale_diag'):
        ProductOptions(parameters=True).save(version, tmp_path / 'other')


def test_a_policy_that_adds_noise_itself_draws_its_actions(tmp_path):
    specs = specs_of(functools.partial(gymnasium_env.make, 'Pendulum-v1'))
    raw = td3.make_agent(specs, create_train_step(), td3.EXPERIENCE, network=SMALL).collect_policy
    version = PolicyExporter(raw, tmp_path / 'raw').export(1, {})
    ProductOptions(100, tflite=False).save(version, tmp_path / 'drawn')
    act = tf.saved_model.load(str(tmp_path / 'drawn')).signatures['action']
    drawn = act(observation=tf.zeros((100, 3)))['action'].numpy()
    assert np.all(np.abs(drawn) <= 2.0) and drawn.std() > 0.01


def test_policies_without_parameters_and_with_a_state(tmp_path):
    version = PolicyExporter(example_policies.recurrent(), tmp_path / 'recurrent').export(1, {})
    ProductOptions(tflite=False).save(version, tmp_path / 'state')
    saved = tf.saved_model.load(str(tmp_path / 'state')).signatures['action']
    assert set(saved.structured_outputs) == {'action', 'policy_state_0', 'policy_state_1'}
    assert set(saved.structured_input_signature[1]) == {'observation', 'policy_state_0', 'policy_state_1'}
    exploring = PolicyExporter(example_policies.epsilon_greedy(), tmp_path / 'exploring').export(1, {})
    ProductOptions(tflite=False).save(exploring, tmp_path / 'explores')
    assert (tmp_path / 'explores' / 'output_spec.json').is_file()
    with pytest.raises(ValueError, match='whose distribution has no parameters; need logits, or loc and scale_diag'):
        ProductOptions(parameters=True).save(exploring, tmp_path / 'other')


@lanes.numpy_1
def test_rejects_what_does_not_fit(exported, tmp_path):
    greedy = exported['greedy_policy']

    def save(raw=None, **options):
        ProductOptions(tflite=False, **options).save(greedy, tmp_path / 'product', raw)

    with pytest.raises(ValueError, match=r'got names for \w+; the inputs and outputs of the model are action, callee_'):
        save(names={'callee_user': 'users'})
    with pytest.raises(ValueError, match='which give several inputs one name'):
        save(names={'callee_users': 'node_count'})
    with pytest.raises(ValueError, match='two outputs that are equal'):
        save(exported['raw_policy'], parameters=True, names={'logits': 'action'})
    with pytest.raises(ValueError, match='and no raw policy at None; need it of the same train step'):
        save(parameters=True)
    with pytest.raises(ValueError, match="got the names '1st', 'a.b'; need letters"):
        ProductOptions(names={'action': '1st', 'node_count': 'a.b'})
    with pytest.raises(RuntimeError, match='as action from the model of .*; need'):
        other = PolicyExporter(stochastic_policy_of_seed(), tmp_path / 'other').export(7, {})
        save(other, parameters=True)
    assert not list(tmp_path.glob('product*')) and not list(tmp_path.glob('.*'))
    save()
    with pytest.raises(ValueError, match='product, which exists; need a new path'):
        save()


def stochastic_policy_of_seed():
    policy = stochastic_policy()
    example_policies.reweigh(policy, seed=3)
    return policy


# TensorFlow's tool shows the inputs and outputs of an exported policy.


@pytest.mark.slow
def test_signatures_and_names_are_readable(tmp_path):
    version = PolicyExporter(example_policies.recurrent(), tmp_path).export(1, {})
    tool = [sys.executable, '-m', 'tensorflow.python.tools.saved_model_cli']
    command = [*tool, 'show', '--dir', str(version), '--all']
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    signatures = dict(re.findall(r"signature_def\['(\w+)'\]:\n(.*?)Method name", shown, re.DOTALL))
    assert {'serving_default', 'action', 'distribution', 'get_initial_state'} <= set(signatures)
    named = {name: set(re.findall(r"(?:inputs|outputs)\['(\w+)'\]", text)) for name, text in signatures.items()}
    state = {'policy_state_0', 'policy_state_1'}
    assert named['serving_default'] == {'observation', 'action', *state}
    assert named['action'] == {'step_type', 'reward', 'discount', 'observation', 'action', *state}
    assert named['get_initial_state'] == {'batch_size', *state}
    assert any(name.startswith('distribution') for name in named['distribution'])
    functions = shown.partition('Concrete Functions')[2]
    for argument in ('step_type', 'reward', 'discount', 'observation', 'policy_state', 'batch_size'):
        assert f"name='{argument}" in functions
