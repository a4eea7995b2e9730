import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tflearn.networks import encoder, mlp

SPEC = {'arm': tf.TensorSpec((3,), tf.float32), 'kind': tensor_spec.BoundedTensorSpec((), tf.int64, 0, 3, 'kind')}
OBSERVATION = {'arm': tf.constant([[1.0, -2.0, 3.0]]), 'kind': tf.constant([2], tf.int64)}


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
        ({'activation': 'best'}, "got activation='best'; need the name"),
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
