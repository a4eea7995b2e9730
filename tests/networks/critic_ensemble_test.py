import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.agents import example_data
from tflearn.core.train_step import Draws, create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.critic_ensemble import CriticEnsemble, Critics

ENCODING = {'conv_layer_params': None, 'preprocessing_layers': None, 'make_network': None}
OBSERVATIONS = tf.random.stateless_uniform((6, 3), (1, 2), -1.0, 1.0)
ACTIONS = tf.random.stateless_uniform((6, 2), (3, 4), -2.0, 2.0)


DRAWS = Draws(create_train_step())
DRAWS.restart()


def make(specs=example_data.CONTINUOUS, tau=0.1, encoding=ENCODING, **options):
    return CriticEnsemble(specs, Critics(fc_layer_params=(8, 4), **options), encoding, tau)


@pytest.mark.parametrize('layer_norm', [False, True])
def test_each_critic_is_a_network_of_its_own(layer_norm):
    """Critic by critic in float64."""
    ensemble = make(num=3, num_outputs=2, layer_norm=layer_norm)
    inputs = np.concatenate([OBSERVATIONS, ACTIONS], axis=1).astype(np.float64)
    layers = ensemble._critics[0]._layers
    expected = np.zeros((6, 3, 2))
    for critic in range(3):
        outputs = inputs
        for i, layer in enumerate(layers):
            outputs = outputs @ np.float64(layer._kernel[critic]) + np.float64(layer._bias[critic])
            if i < len(layers) - 1:
                if layer_norm:
                    outputs = (outputs - outputs.mean(-1, keepdims=True)) / np.sqrt(
                        outputs.var(-1, keepdims=True) + 1e-5
                    )
                outputs = np.maximum(outputs, 0)
        expected[:, critic] = outputs
    np.testing.assert_allclose(ensemble.values(OBSERVATIONS, ACTIONS, False, DRAWS), expected, rtol=1e-4, atol=1e-5)
    assert len(ensemble.trainable_variables) == 6 + 4 * layer_norm
    spread = ensemble.values(OBSERVATIONS, ACTIONS, False, DRAWS).numpy().std(axis=1)
    assert (spread > 0.01).all(), 'critics begin with weights of their own'


def test_targets_follow_slowly():
    ensemble = make(num=2)
    value = lambda: ensemble.target_values(OBSERVATIONS, ACTIONS, DRAWS).numpy()  # noqa: E731
    assert (value() != ensemble.values(OBSERVATIONS, ACTIONS, False, DRAWS).numpy()).all()
    ensemble.copy_to_targets()
    np.testing.assert_array_equal(value(), ensemble.values(OBSERVATIONS, ACTIONS, False, DRAWS))
    for variable in ensemble.trainable_variables:
        variable.assign_add(tf.ones_like(variable))
    before = [variable.numpy() for variable in ensemble._targets[0].variables]
    ensemble.update_targets()
    for old, new in zip(before, ensemble._targets[0].variables, strict=True):
        np.testing.assert_allclose(new, old + 0.1, rtol=1e-5, atol=1e-6)


def test_dropout_is_drawn_while_training_and_in_targets():
    ensemble = make(dropout_rate=0.5)
    ensemble.copy_to_targets()
    plain = [ensemble.values(OBSERVATIONS, ACTIONS, False, DRAWS).numpy() for _ in range(2)]
    np.testing.assert_array_equal(*plain)
    for drawn in (
        lambda: ensemble.values(OBSERVATIONS, ACTIONS, True, DRAWS),
        lambda: ensemble.target_values(OBSERVATIONS, ACTIONS, DRAWS),
    ):
        first, second = drawn().numpy(), drawn().numpy()
        assert (first != second).any()
        assert (first != plain[0]).any()


def test_nests_and_networks_of_ones_own():
    image = tensor_spec.BoundedTensorSpec((8, 8, 1), tf.uint8, 0, 255)
    nest = EnvironmentSpecs(
        {'camera': image, 'arm': example_data.CONTINUOUS.observation}, example_data.CONTINUOUS.action
    )
    observation = {'camera': tf.zeros((6, 8, 8, 1), tf.uint8), 'arm': OBSERVATIONS}
    assert make(nest, num=3).values(observation, ACTIONS, False, DRAWS).shape == (6, 3, 1)
    own = {**ENCODING, 'make_network': lambda spec, name: tf.keras.Sequential([tf.keras.layers.Dense(5)], name=name)}
    ensemble = make(encoding=own)
    assert ensemble.values(OBSERVATIONS, ACTIONS, False, DRAWS).shape == (6, 2, 1)
    assert len(ensemble.trainable_variables) == 8


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'num': 0}, 'got num=0, num_outputs=1 of critics; need 1 or more'),
        ({'dropout_rate': 1.0}, 'got dropout_rate=1.0; need a number of at least 0 and below 1'),
        ({'tau': 0.0}, 'got target_update_tau=0.0'),
    ],
)
def test_numbers_have_bounds(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
