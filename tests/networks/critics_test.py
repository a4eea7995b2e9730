import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.agents import example_data
from tflearn.core.train_step import Draws, create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.learner import precision
from tflearn.networks import critics as critics_lib
from tflearn.networks.critics import CriticOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.networks.targets import Targets

NETWORK = NetworkOptions((8, 4))
OBSERVATIONS = tf.random.stateless_uniform((6, 3), (1, 2), -1.0, 1.0)
ACTIONS = tf.random.stateless_uniform((6, 2), (3, 4), -2.0, 2.0)


DRAWS = Draws(create_train_step())
DRAWS.restart()


def make(specs=example_data.CONTINUOUS, network=NETWORK, **options):
    return critics_lib.make(specs.observation, specs.action, network, CriticOptions(**options))


@pytest.mark.parametrize('layer_norm', [False, True])
def test_each_critic_is_a_network_of_its_own(layer_norm):
    """Critic by critic in float64."""
    ensemble, _ = make(num=3, num_outputs=2, layer_norm=layer_norm)
    inputs = np.concatenate([OBSERVATIONS, ACTIONS], axis=1).astype(np.float64)
    layers = ensemble._layers
    expected = np.zeros((6, 3, 2))
    for critic in range(3):
        outputs = inputs
        for i, layer in enumerate(layers):
            outputs = outputs @ np.float64(layer.each(layer._kernels)[critic]) + np.float64(
                layer.each(layer._biases)[critic]
            )
            if i < len(layers) - 1:
                if layer_norm:
                    outputs = (outputs - outputs.mean(-1, keepdims=True)) / np.sqrt(
                        outputs.var(-1, keepdims=True) + 1e-5
                    )
                outputs = np.maximum(outputs, 0)
        expected[:, critic] = outputs
    np.testing.assert_allclose(ensemble(OBSERVATIONS, ACTIONS), expected, rtol=1e-4, atol=1e-5)
    assert len(ensemble.trainable_variables) == 6 + 4 * layer_norm
    spread = ensemble(OBSERVATIONS, ACTIONS).numpy().std(axis=1)
    assert (spread > 0.01).all(), 'critics begin with weights of their own'


def test_the_first_ones_can_be_computed_alone():
    ensemble, _ = make(num=3)
    first = ensemble(OBSERVATIONS, ACTIONS, num=1)
    np.testing.assert_allclose(first, ensemble(OBSERVATIONS, ACTIONS)[:, :1], rtol=1e-5)


def test_targets_follow_slowly():
    ensemble, following = make()
    targets = Targets([(ensemble, following)], 0.1)
    value = lambda: following(OBSERVATIONS, ACTIONS).numpy()  # noqa: E731
    assert (value() != ensemble(OBSERVATIONS, ACTIONS).numpy()).all()
    targets.copy()
    np.testing.assert_array_equal(value(), ensemble(OBSERVATIONS, ACTIONS))
    for variable in ensemble.trainable_variables:
        variable.assign_add(tf.ones_like(variable))
    before = [variable.numpy() for variable in following.variables]
    targets.update(create_train_step())
    for old, new in zip(before, following.variables, strict=True):
        np.testing.assert_allclose(new, old + 0.1, rtol=1e-5, atol=1e-6)


def test_dropout_is_by_the_draws():
    ensemble, _ = make(dropout_rate=0.5)
    plain = [ensemble(OBSERVATIONS, ACTIONS, training=True).numpy() for _ in range(2)]
    np.testing.assert_array_equal(*plain)
    first, second = (ensemble(OBSERVATIONS, ACTIONS, draws=DRAWS).numpy() for _ in range(2))
    assert (first != second).any()
    assert (first != plain[0]).any()


@pytest.mark.parametrize(('shared', 'encoders'), [(True, 1), (False, 3)])
def test_nests_and_networks_of_ones_own(shared, encoders):
    image = tensor_spec.BoundedTensorSpec((8, 8, 1), tf.uint8, 0, 255)
    nest = EnvironmentSpecs(
        {'camera': image, 'arm': example_data.CONTINUOUS.observation}, example_data.CONTINUOUS.action
    )
    observation = {'camera': tf.zeros((6, 8, 8, 1), tf.uint8), 'arm': OBSERVATIONS}
    ensemble, _ = make(nest, num=3, shared_encoder=shared)
    assert ensemble(observation, ACTIONS).shape == (6, 3, 1)
    assert len(ensemble.trainable_variables) == 6 + 4 * encoders
    own = NetworkOptions(
        (8, 4), make_network=lambda spec, name: tf.keras.Sequential([tf.keras.layers.Dense(5)], name=name)
    )
    ensemble, _ = make(network=own, num=3, shared_encoder=shared)
    assert ensemble(OBSERVATIONS, ACTIONS).shape == (6, 3, 1)
    assert len(ensemble.trainable_variables) == 6 + 2 * encoders


def test_discrete_actions_are_valued_together():
    ensemble, _ = make(example_data.DISCRETE)
    values = ensemble(OBSERVATIONS)
    assert values.shape == (6, 2, 2)
    chosen = tf.constant([0, 1, 0, 1, 1, 0], tf.int64)
    expected = [values[i, :, chosen[i]] for i in range(6)]
    np.testing.assert_array_equal(ensemble.of_actions(OBSERVATIONS, chosen), expected)


def test_bfloat16_layers_and_values_of_float32():
    """Values near 256 are 2 apart in bfloat16: errors between them would be lost."""
    tf.keras.utils.set_random_seed(3)
    with precision.use('bfloat16'):
        rough, _ = make()
    tf.keras.utils.set_random_seed(3)
    exact, _ = make()
    with precision.use('bfloat16'):
        got = rough(OBSERVATIONS, ACTIONS)
        (bias,) = rough._layers[-1]._biases
        bias.assign_add(tf.fill((2, 1), 256.0))
        assert (rough(OBSERVATIONS, ACTIONS).numpy() % 1 != 0).all()
    assert got.dtype == tf.float32 and {variable.dtype for variable in rough.variables} == {tf.float32}
    expected = exact(OBSERVATIONS, ACTIONS)
    np.testing.assert_allclose(got, expected, atol=0.05)
    assert (got.numpy() != expected.numpy()).any(), 'it did compute in bfloat16'


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'num': 0}, 'got num=0, num_outputs=1 of critics; need 1 or more'),
        ({'dropout_rate': 1.0}, 'got dropout_rate=1.0; need a number of at least 0 and below 1'),
    ],
)
def test_numbers_have_bounds(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize(('tau', 'period'), [(0.0, 1), (1.5, 1), (0.5, 0)])
def test_targets_have_bounds(tau, period):
    with pytest.raises(ValueError, match=f'got target_update_period={period}, target_update_tau={tau}; need'):
        Targets([make()], tau, period)
