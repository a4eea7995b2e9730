"""Each kind of observation is encoded for the networks, in every agent."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tests.environments import example_environments
from tests.testing.algorithms import ALGORITHMS, names
from tflearn.agents import dqn, ppo
from tflearn.core import precision
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.environments import gymnasium_env
from tflearn.networks import encoder, mlp, networks, noisy, recurrent
from tflearn.networks.critics import Critics
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import distributional
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.policies import loader
from tflearn.policies.exporter import PolicyExporter


def bounded(shape, dtype, low, high):
    return tensor_spec.BoundedTensorSpec(shape, dtype, low, high, 'observation')


TAXI = bounded((), tf.int64, 0, 499)
LARGE = bounded((), tf.int64, 0, 4_999)
NUMBERS = {
    'floats': bounded((3,), tf.float32, -1.0, 1.0),
    'zeros and ones': bounded((3,), tf.int64, 0, 1),
    'no bounds': tf.TensorSpec((3,), tf.int32),
    "the dtype's bounds": bounded((3,), tf.int32, -(2**31), 2**31 - 1),
}


@pytest.mark.parametrize('kind', NUMBERS)
def test_numbers_are_not_encoded(kind):
    assert encoder.make_layer(NUMBERS[kind]) is None


def test_bytes_are_scaled_to_1():
    layer = encoder.make_layer(bounded((2, 2, 1), tf.uint8, 0, 255))
    np.testing.assert_allclose(
        layer(tf.constant([[[[0], [51]], [[102], [255]]]], tf.uint8)), [[[[0], [0.2]], [[0.4], [1]]]]
    )


def test_categories_become_one_hot_vectors():
    """Categories out of bounds become zeros."""
    layer = encoder.make_layer(bounded((), tf.int64, 5, 7))
    np.testing.assert_array_equal(layer(tf.constant([5, 7, 8, 4])), [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]])
    several = encoder.make_layer(bounded((2,), tf.int32, [0, 0], [1, 2]))
    np.testing.assert_array_equal(
        several(tf.constant([[0, 2], [1, 0], [2, 3]])), [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    )


def test_many_categories_become_rows_of_a_table():
    layer = encoder.make_layer(bounded((2,), tf.int64, [0, 0], [999, 1]))
    rows = layer(tf.constant([[0, 0], [999, 1], [1000, 2]], tf.int64)).numpy()
    (table,) = layer.trainable_variables
    assert table.shape == (1002, encoder.EMBEDDING_SIZE)
    np.testing.assert_array_equal(rows[0], np.concatenate([table[0], table[1000]]))
    np.testing.assert_array_equal(rows[1], np.concatenate([table[999], table[1001]]))
    assert not rows[2].any()


@pytest.mark.parametrize(('minimum', 'maximum', 'number'), [(0, 99_999, 200_000), (-(2**62), 2**62, 2**64 + 2)])
def test_rejects_more_categories_than_a_table_holds(minimum, maximum, number):
    message = f'got {number} categories in .*; need at most 100000; .* let the environment return floats'
    with pytest.raises(ValueError, match=message):
        encoder.make_layer(bounded((2,), tf.int64, minimum, maximum))


CONTINUOUS, DISCRETE = example_data.CONTINUOUS.action, example_data.DISCRETE.action
FEW = NetworkOptions(fc_layer_params=(8,))
NAMES = names('dqn', 'sac', 'td3', 'ppo', 'impala', 'reinforce', argument='network')


@pytest.mark.parametrize(('spec', 'first'), [(TAXI, [500, 8]), (LARGE, [5_000, encoder.EMBEDDING_SIZE])])
@pytest.mark.parametrize('name', NAMES)
def test_every_agent_encodes_categories(name, spec, first):
    algorithm = ALGORITHMS[name]
    agent = algorithm.make(EnvironmentSpecs(spec, algorithm.specs.action))
    # Rainbow's layers have vectors of noise too.
    kernels = [variable.shape.as_list() for variable in agent.collect_policy.variables() if variable.shape.rank > 1]
    assert kernels[0] == first
    parts = {id(part): part for value in vars(agent).values() for part in _networks(value)}
    for part in parts.values():
        shapes = [variable.shape.as_list() for variable in part.variables]
        wanted = first
        if isinstance(part, Critics) and first[0] == 500 and name != 'recurrent_sac':
            # Their first layers are stacked, and take the two numbers of a continuous action too.
            stacked = {'ddpg': [], 'tqc': [5]}.get(name, [2])
            wanted = [*stacked, 500 if part.is_discrete else 502, 8]
        assert wanted in shapes, part.name
    if first[0] == 500:
        data, states = example_data.sequences(agent, 4, algorithm.length), agent.collect_policy.policy_state_spec
        if states:
            stored = tf.nest.map_structure(
                lambda leaf: tf.zeros((4, algorithm.length, *leaf.shape), leaf.dtype), states
            )
            data = data._replace(policy_info={**(data.policy_info or {}), recurrent.POLICY_STATE: stored})
        info = agent.train(data)
        assert np.isfinite(info.loss.numpy())


def _networks(value):
    return [value] if isinstance(value, network.Network | Critics) else []


def test_gradients_of_a_table_train_it():
    agent = dqn.make_agent(
        EnvironmentSpecs(LARGE, DISCRETE),
        create_train_step(),
        dqn.EXPERIENCE,
        network=NetworkOptions(fc_layer_params=(8,)),
    )
    agent.initialize()
    data = example_data.sequences(agent, 8, 2)  # categories 0 and 1
    before = agent.policy.variables()[0].numpy()
    agent.train(data)
    changed = (agent.policy.variables()[0].numpy() != before).any(axis=1)
    assert changed[:2].any() and not changed[2:].any()


def test_ppo_normalizes_no_categories():
    agent = ppo.make_agent(EnvironmentSpecs(TAXI, DISCRETE), create_train_step(), ppo.EXPERIENCE, network=FEW)
    assert not [variable.name for variable in agent.policy.variables() if 'mean' in variable.name]
    both = {'position': NUMBERS['floats'], 'state': TAXI}
    agent = ppo.make_agent(EnvironmentSpecs(both, DISCRETE), create_train_step(), ppo.EXPERIENCE, network=FEW)
    agent.initialize()
    shapes = [variable.shape.as_list() for variable in agent.policy.variables()]
    assert shapes[0] == [503, 8] and shapes.count([3]) == 2, 'a mean and a variance of three floats'
    assert np.isfinite(agent.train(example_data.sequences(agent, 4, 9)).loss.numpy())


@pytest.mark.parametrize('name', NAMES)
def test_nested_observations_are_joined(name):
    for nest in ({'a': NUMBERS['floats'], 'b': LARGE}, (NUMBERS['floats'], bounded((2, 2), tf.uint8, 0, 255))):
        agent = ALGORITHMS[name].make(EnvironmentSpecs(nest, ALGORITHMS[name].specs.action))
        size = 3 + (encoder.EMBEDDING_SIZE if isinstance(nest, dict) else 4)
        assert [size, 8] in [variable.shape.as_list() for variable in agent.policy.variables()]


def test_nest_encoder_joins_each_kind():
    nest = {'camera': bounded((4, 4, 1), tf.uint8, 0, 255), 'kind': bounded((), tf.int64, 0, 2), 'v': NUMBERS['floats']}
    values = {
        'camera': tf.fill((2, 4, 4, 1), tf.constant(51, tf.uint8)),
        'kind': tf.constant([1, 2], tf.int64),
        'v': tf.constant([[1.0, 2, 3], [4, 5, 6]]),
    }
    joined = encoder.NestEncoder(nest, conv_layer_params=())(values)
    np.testing.assert_allclose(joined[0], [*[0.2] * 16, 0, 1, 0, 1, 2, 3])
    assert encoder.NestEncoder(nest)(values).shape == (2, 32 + 3 + 3), (
        'convolutions with strides 2 and 2, of 32 filters'
    )
    assert encoder.NestEncoder(nest, ((5, 2, 1),))(values).shape == (2, 3 * 3 * 5 + 3 + 3)


@pytest.mark.parametrize('name', NAMES)
def test_a_layer_of_ones_own_by_path(name):
    """PPO does not normalize what it takes."""
    algorithm = ALGORITHMS[name]
    nest = {'arm': {'speed': NUMBERS['floats']}, 'kind': TAXI}
    layers = {
        'arm.speed': tf.keras.Sequential([tf.keras.layers.Discretization([0.0, 0.5]), tf.keras.layers.Embedding(3, 7)])
    }
    agent = algorithm.make(EnvironmentSpecs(nest, algorithm.specs.action), layers={'preprocessing_layers': layers})
    shapes = [variable.shape.as_list() for variable in agent.policy.variables()]
    assert [3, 7] in shapes and [3 * 7 + 500, 8] in shapes and [3] not in shapes
    assert np.isfinite(agent.train(example_data.sequences(agent, 4, algorithm.length)).loss.numpy())


def test_a_layer_that_does_not_fit_is_named():
    nest = {'camera': bounded((4, 4, 1), tf.uint8, 0, 255), 'v': NUMBERS['floats']}
    layers = {'v': tf.keras.layers.Conv2D(4, 3, name='wide')}
    message = r"^got the observation 'v' of shape \(3,\), float32 for the layer 'wide', which does not take it; need .*"
    with pytest.raises(ValueError, match=message):
        dqn.make_agent(
            EnvironmentSpecs(nest, DISCRETE),
            create_train_step(),
            dqn.EXPERIENCE,
            network=NetworkOptions(preprocessing_layers=layers),
        )


@pytest.mark.parametrize('spec', [TAXI, LARGE])
def test_categories_in_bfloat16_are_near(spec):
    states = tf.constant([0, 1, 70, 499, 3, 3, 2, 250], tf.int64)
    with precision.use('float32'):
        exact = networks.QNetwork(spec, DISCRETE, NetworkOptions((16,)))
        exact.create_variables()
    with precision.use('bfloat16'):
        rough = networks.QNetwork(spec, DISCRETE, NetworkOptions((16,)))
        rough.create_variables()
    assert {variable.dtype for variable in rough.variables} == {tf.float32}
    for variable, value in zip(rough.variables, exact.variables, strict=True):
        variable.assign(value)
    np.testing.assert_allclose(rough(states)[0], exact(states)[0], atol=0.03)


def test_a_discrete_environment_is_solved():
    """The right one of two actions does not depend on the size of the state's number."""
    environment = gymnasium_env.make('tflearn_tests/Switches-v0', num_environments=32, seed=1)
    random, steps = np.random.default_rng(1), []
    tf.random.set_seed(1)
    agent = dqn.make_agent(
        environment.specs, create_train_step(), dqn.EXPERIENCE, optimizer=OptimizerOptions(1e-2), gamma=0.0
    )
    agent.initialize()
    before = environment.reset()
    for _ in range(40):
        action = random.integers(0, 2, 32)
        after = environment.step(action)
        steps.append(trajectory.from_transition(before, policy_step.PolicyStep(action), after))
        before = after
    environment.close()
    rows = tf.nest.map_structure(lambda *leaves: np.stack(leaves, axis=1), *steps)
    train = tf.function(agent.train, autograph=False)
    for _ in range(150):
        t = random.integers(0, 39)
        train(tf.nest.map_structure(lambda leaf, t=t: tf.constant(leaf[:, t : t + 2]), rows))
    states = np.arange(example_environments.Switches.NUM_STATES)
    right = agent.policy.action(ts.restart(tf.constant(states), len(states))).action.numpy()
    assert np.mean(right == [example_environments.Switches.right(state) for state in states]) > 0.95


@pytest.mark.parametrize(
    ('layer', 'message'),
    [
        (lambda: tf.keras.layers.CategoryEncoding(5), r'which returns \(5,\) for 2 of them; need a row for each'),
        (
            lambda: tf.keras.layers.IntegerLookup(vocabulary=[0], output_mode='multi_hot'),
            'need a row for each; a scalar',
        ),
        (
            lambda: tf.keras.layers.StringLookup(vocabulary=['a']),
            'which does not take it; need a layer that does: .*Cast',
        ),
        (
            lambda: _WithoutConfig(lambda x: x),
            'which cannot be copied; need a method get_config that returns the constr',
        ),
    ],
)
def test_checks_layers_of_a_scalar_with_more_than_one_row(layer, message):
    spec = {'k': tensor_spec.BoundedTensorSpec((), tf.int64, 0, 4)}
    with pytest.raises(ValueError, match=message) as caught:
        encoder.check_layers(spec, {'k': layer()})
    assert '\n' not in str(caught.value)
    taken = [tf.keras.layers.CategoryEncoding(5, 'one_hot'), tf.keras.layers.Embedding(5, 3)]
    for good in (*taken, tf.keras.Sequential([tf.keras.layers.Reshape((1,)), tf.keras.layers.CategoryEncoding(5)])):
        encoder.check_layers(spec, {'k': good})


class _WithoutConfig(tf.keras.layers.Layer):
    def __init__(self, function):
        super().__init__()
        self._function = function

    def call(self, inputs):
        return self._function(inputs)


SPEC = {'arm': tf.TensorSpec((3,), tf.float32), 'kind': tensor_spec.BoundedTensorSpec((), tf.int64, 0, 3, 'kind')}
OBSERVATION = {'arm': np.float32([[1, -2, 3]]), 'kind': np.int64([2])}


def test_layers_are_normalized_before_their_activation():
    network = mlp.make_network(SPEC, 'actor', (8,), 'gelu', layer_norm=True)
    features = network(OBSERVATION)
    kernel, bias, scale, offset = network.trainable_variables
    assert kernel.shape == (3 + 4, 8) and scale.shape == offset.shape == (8,)
    encoded = np.float32([[1, -2, 3, 0, 0, 1, 0]])
    dense = encoded @ kernel.numpy() + bias.numpy()
    normal = (dense - dense.mean()) / np.sqrt(dense.var() + 1e-3)
    np.testing.assert_allclose(features, tf.keras.activations.gelu(tf.constant(normal)), rtol=1e-4, atol=1e-5)


def test_training_drops_features_and_acting_does_not():
    network = encoder.own_network(
        lambda spec, name: mlp.make_network(spec, name, (200,), 'softplus', dropout=0.5), SPEC, 'actor'
    )
    kept, _ = network(OBSERVATION)
    trained, _ = network(OBSERVATION, training=True)
    np.testing.assert_array_equal(network(OBSERVATION)[0], kept)
    assert 50 < np.count_nonzero(trained.numpy() == 0) < 150 and np.all(kept.numpy() > 0)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'activation': 'best'}, "got activation='best'; need a name of Keras's activations, such as 'gelu'"),
        ({'kernel_initializer': 'best'}, "got kernel_initializer='best'; need a name of Keras's initializers"),
        ({'layer_norm': True, 'batch_norm': True}, 'got layer_norm and batch_norm; need one of them'),
        ({'dropout': 1.0}, 'got dropout=1.0; need a share'),
        ({'fc_layer_params': ()}, 'got fc_layer_params without a layer; need'),
        (
            {'preprocessing_layers': {'leg': tf.keras.layers.Dense(2)}},
            "got preprocessing_layers for 'leg'; need one of",
        ),
    ],
)
def test_rejects_what_does_not_fit(arguments, message):
    with pytest.raises(ValueError, match=f'^{message}'):
        mlp.make_network(SPEC, 'actor', **arguments)


SMALL = {'network': NetworkOptions(fc_layer_params=(8,)), 'noisy_sigma': 0.5, 'epsilon': 0.0}


def test_noise_has_the_papers_deviation_in_each_row():
    """Against numpy in float64: E[f(noise)^2] = E|noise| = sqrt(2 / pi) for each input and output."""
    noise = noisy.Noise(0.5)
    layer = noisy.NoisyDense(3, noise)
    one = np.array([[1.0, -2.0, 0.5, 3.0]], np.float32)
    rows = tf.repeat(one, 40_000, axis=0)
    plain = layer(rows)
    kernel, bias, kernel_sigma, bias_sigma = (np.float64(weight) for weight in layer.get_weights())
    np.testing.assert_allclose(kernel_sigma, 0.5 / np.sqrt(4))
    assert np.abs(kernel).max() <= np.abs(bias).max() + 0.5 <= 1.0
    np.testing.assert_allclose(plain, np.repeat(one @ kernel + bias, 40_000, axis=0), rtol=1e-5)
    with noise.drawn(lambda features: tf.random.normal(tf.shape(features))):
        drawn = np.float64(layer(rows))
    second = np.sqrt(2 / np.pi)
    variance = (second * (np.square(one) @ np.square(kernel_sigma)) + np.square(bias_sigma)) * second
    np.testing.assert_allclose(drawn.mean(axis=0), plain[0], atol=5 * np.sqrt(variance.max() / 40_000))
    np.testing.assert_allclose(drawn.var(axis=0), variance[0], rtol=0.1)
    assert np.abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.03, 'rows have noise of their own'
    np.testing.assert_array_equal(layer(rows), plain)


def test_sigma_has_a_bound():
    with pytest.raises(ValueError, match=r'got noisy_sigma=0.0; need a number above 0'):
        dqn.make_agent(example_data.DISCRETE, create_train_step(), Experience(), noisy_sigma=0.0)


def test_an_exported_collect_policy_keeps_the_noise_of_an_episode(tmp_path):
    """Each environment has noise of its own, and another one in its next episode."""
    agent = dqn.make_agent(example_data.DISCRETE, create_train_step(), Experience(), **SMALL)
    agent.initialize()
    PolicyExporter(agent.collect_policy, tmp_path / 'policy').export(1, {})
    exported = loader.load(tmp_path / 'policy' / '1')
    steps = tf.nest.map_structure(lambda spec: tf.zeros((500, *spec.shape), spec.dtype), agent.time_step_spec)
    first, noise = exported.action(steps._replace(step_type=tf.ones(500, tf.int32)), exported.initial_state(500))
    later, kept = exported.action(steps._replace(step_type=tf.ones(500, tf.int32)), noise)
    again, _ = exported.action(steps, kept)
    assert np.unique(first).size == 2, 'also from the middle of an episode on'
    np.testing.assert_array_equal(later, first)
    np.testing.assert_array_equal(kept, noise)
    assert not np.array_equal(again, first)


@pytest.mark.parametrize(
    ('distribution', 'dueling'),
    [pytest.param(None, False, marks=pytest.mark.slow), (distributional.Categorical(5, -1.0, 1.0), True)],
    ids=['dqn', 'c51'],
)
def test_the_collect_policy_and_the_loss_draw_noise_and_the_greedy_policy_does_not(distribution, dueling):
    changes = {'distribution': distribution, 'dueling': dueling} | SMALL
    agent = dqn.make_agent(example_data.DISCRETE, create_train_step(), Experience(), **changes)
    agent.initialize()
    data = example_data.sequences(agent, 64, 2)
    steps = agent.time_step_spec
    steps = tf.nest.map_structure(lambda spec: tf.zeros((500, *spec.shape), spec.dtype), steps)
    act = {policy: tf.function(policy.action, autograph=False) for policy in (agent.policy, agent.collect_policy)}
    greedy = [act[agent.policy](steps).action.numpy() for _ in range(2)]
    np.testing.assert_array_equal(*greedy)
    assert np.unique(greedy[0]).size == 1
    state = agent.collect_policy.get_initial_state(500)
    draws = [act[agent.collect_policy](steps, state).action.numpy() for _ in range(2)]
    assert np.unique(draws[0]).size == 2
    assert (draws[0] != draws[1]).any()
    losses = [float(agent.loss(data).loss) for _ in range(2)]
    agent.train_step_counter.assign_add(1)
    assert losses[0] == losses[1] != float(agent.loss(data).loss), 'each train step draws its own'
    sigmas = [variable for variable in agent._q_network.trainable_variables if 'sigma' in variable.name]
    assert len(sigmas) == 4 + 2 * dueling
    before = [variable.numpy() for variable in sigmas]
    tf.function(agent.train, autograph=False)(data)
    assert all((new.numpy() != old).any() for new, old in zip(sigmas, before, strict=True))
    assert not {id(v) for v in agent._q_network.variables} & {id(v) for v in agent._target_q_network.variables}
