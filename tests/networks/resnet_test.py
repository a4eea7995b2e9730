import numpy as np
import tensorflow as tf

from tflearn.networks.resnet import ResNet


def test_bytes_are_scaled_and_the_copy_is_alike():
    layer = ResNet(filters=(4, 8), units=16)
    images = tf.random.stateless_uniform((3, 12, 10, 1), (1, 2), 0, 256, tf.int32)
    features = layer(tf.cast(images, tf.uint8))
    assert features.shape == (3, 16)
    np.testing.assert_allclose(features, layer(tf.cast(images, tf.float32) / 255), rtol=1e-5)
    assert len(layer.trainable_variables) == 2 * (2 * 5 + 1), 'five convolutions for each section, and a last layer'
    copy = ResNet.from_config(layer.get_config())
    assert copy(tf.cast(images, tf.uint8)).shape == (3, 16)
