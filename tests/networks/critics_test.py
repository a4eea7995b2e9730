import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.agents import example_data
from tflearn.core import precision
from tflearn.core.train_step import Draws, create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks import critics as critics_lib
from tflearn.networks.critics import BatchNorm, CriticOptions, Targets
from tflearn.networks.networks import NetworkOptions

NETWORK = NetworkOptions((8, 4))
_GENERATOR = np.random.default_rng(2)
OBSERVATIONS = _GENERATOR.uniform(-1.0, 1.0, (6, 3)).astype(np.float32)
ACTIONS = _GENERATOR.uniform(-2.0, 2.0, (6, 2)).astype(np.float32)


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
    differ = value() != ensemble(OBSERVATIONS, ACTIONS).numpy()  # but where no unit of either is active
    assert differ.any(axis=0).all(), 'each critic has weights of its own'
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
    draws = Draws(create_train_step())
    draws.restart()
    first, second = (ensemble(OBSERVATIONS, ACTIONS, draws=draws).numpy() for _ in range(2))
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


def _numpy_norm(features, norm, critic, mean, variance):
    normal = (features - mean) / np.sqrt(variance + 1e-3)
    return normal * norm._scale[critic].numpy() + norm._shift[critic].numpy()


def test_batches_are_normalized_by_their_own_statistics_and_else_by_moving_averages():
    ensemble, _ = make(network=NetworkOptions(()), batch_norm=BatchNorm(momentum=0.75))
    (layer,) = ensemble._layers
    norm = layer._batch_norm
    norm._scale.assign([[1.0, 2.0, 3.0, 1.0, 1.0], [1.0] * 5])
    norm._shift.assign([[0.5] * 5, [0.0] * 5])
    inputs = np.concatenate([OBSERVATIONS, ACTIONS], axis=1)
    own = inputs.mean(0), inputs.var(0)

    def expected(critic, mean, variance):
        kernel = layer.each(layer._kernels)[critic].numpy()
        return _numpy_norm(inputs, norm, critic, mean, variance) @ kernel

    trained = ensemble(OBSERVATIONS, ACTIONS, training=True)
    for critic in range(2):
        np.testing.assert_allclose(trained[:, critic], expected(critic, *own), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(norm._mean[critic], 0.25 * own[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(norm._variance[critic], 0.75 + 0.25 * own[1], rtol=1e-5)
    moving = norm._mean[1].numpy(), norm._variance[1].numpy()
    np.testing.assert_allclose(ensemble(OBSERVATIONS, ACTIONS)[:, 1], expected(1, *moving), rtol=1e-4, atol=1e-5)
    first = ensemble(OBSERVATIONS, ACTIONS, num=1)
    np.testing.assert_allclose(first, ensemble(OBSERVATIONS, ACTIONS)[:, :1], rtol=1e-5, atol=1e-6)
    assert len(ensemble.trainable_variables) == 4, 'the averages are not trained'


@pytest.mark.parametrize(('max_ratio', 'max_shift'), [(100.0, 100.0), (1.0, 0.0)])
def test_after_the_warmup_batches_are_corrected_within_bounds(max_ratio, max_shift):
    """Without bounds the moving averages normalize them, with none of both their own statistics."""
    norm = BatchNorm(momentum=0.5, warmup_steps=1, max_ratio=max_ratio, max_shift=max_shift)
    ensemble, _ = make(network=NetworkOptions(()), batch_norm=norm)
    ensemble(OBSERVATIONS, ACTIONS, training=True)
    before = ensemble(OBSERVATIONS + 1.0, ACTIONS)
    inner = ensemble._layers[0]._batch_norm
    own = np.concatenate([OBSERVATIONS + 1.0, ACTIONS], axis=1)
    found = ensemble(OBSERVATIONS + 1.0, ACTIONS, training=True)
    if max_shift:
        np.testing.assert_allclose(found, before, rtol=1e-4, atol=1e-5)
    else:
        kernel = ensemble._layers[0].each(ensemble._layers[0]._kernels)[0].numpy()
        np.testing.assert_allclose(
            found[:, 0], _numpy_norm(own, inner, 0, own.mean(0), own.var(0)) @ kernel, rtol=1e-4, atol=1e-5
        )


def test_a_batch_that_is_not_finite_does_not_change_the_averages():
    ensemble, _ = make(batch_norm=BatchNorm())
    ensemble(OBSERVATIONS * np.nan, ACTIONS, training=True)
    assert all(np.isfinite(variable).all() for variable in ensemble.variables)


def test_gradients_flow_through_the_statistics_of_a_batch():
    """A feature's common shift changes nothing."""
    ensemble, _ = make(network=NetworkOptions(()), batch_norm=BatchNorm())
    shift = tf.Variable(tf.ones((1, 3)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(ensemble(OBSERVATIONS + shift, ACTIONS, training=True) ** 2)
    np.testing.assert_allclose(tape.gradient(loss, shift), np.zeros((1, 3)), atol=1e-4)
