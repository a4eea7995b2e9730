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
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.environments import gymnasium_env
from tflearn.learner import precision
from tflearn.networks import encoder, networks
from tflearn.networks.critics import Critics
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')


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
    kernels = [variable.shape.as_list() for variable in agent.collect_policy.variables()]
    assert kernels[0] == first
    parts = {id(part): part for value in vars(agent).values() for part in _networks(value)}
    for part in parts.values():
        # A critic's first layer takes the action too.
        shapes = [variable.shape.as_list() for variable in part.variables]
        assert ([2, 502, 8] if isinstance(part, Critics) and first[0] == 500 else first) in shapes, part.name
    if first[0] == 500:
        info = agent.train(example_data.sequences(agent, 4, algorithm.length))
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
