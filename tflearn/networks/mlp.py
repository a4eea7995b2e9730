"""A fully connected network with normalization, dropout, any activation and initializer, for `make_network`."""

from collections.abc import Sequence

import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.networks import encoder


def make_network(
    spec: types.NestedTensorSpec,
    name: str,
    fc_layer_params: Sequence[int] = (256, 256),
    activation: str = 'relu',
    layer_norm: bool = False,
    batch_norm: bool = False,
    dropout: float = 0.0,
    kernel_initializer: str = 'glorot_uniform',
    conv_layer_params: encoder.ConvLayerParams | None = None,
    preprocessing_layers: encoder.Layers | None = None,
) -> tf.keras.Sequential:
    """Makes a network for `make_network` of any agent: the observation, encoded as by default, and layers.

    Args:
      spec: the observation's spec.
      name: the network's name.
      fc_layer_params: units of the fully connected layers.
      activation: Keras' name of their activation function, such as 'relu', 'tanh', 'gelu', 'swish'
        or 'elu'.
      layer_norm: whether to normalize what each layer computes, before its activation (Ba et al.
        2016, "Layer Normalization", arXiv 1607.06450).
      batch_norm: the same over a batch, by the statistics of all replicas; policies that act use
        moving averages (Ioffe and Szegedy 2015, arXiv 1502.03167). Not together with `layer_norm`.
      dropout: the share of each layer's outputs that are dropped in training (Srivastava et al.
        2014, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", JMLR 15), in [0,
        1). Policies that act drop none.
      kernel_initializer: Keras' name of what the layers' weights are at first, such as 'orthogonal'
        or 'he_normal'.
      conv_layer_params: (filters, kernel size, stride) of convolutions, for images [height, width,
        channels]; None has none for a single image, and `encoder.CONVOLUTIONS` for images in a
        nest.
      preprocessing_layers: Keras layers of one's own for leaves of the observation, by path.

    Raises:
      ValueError: for an activation or an initializer that Keras does not have, another share, both
        normalizations, no layer, or a path that no leaf has.
    """
    encoder.check_keras('activation', activation, tf.keras.activations, 'gelu')
    encoder.check_keras('kernel_initializer', kernel_initializer, tf.keras.initializers, 'orthogonal')
    if layer_norm and batch_norm:
        raise UserValueError('got layer_norm and batch_norm; need one of them')
    if not 0 <= dropout < 1:
        raise UserValueError(f'got dropout={dropout}; need a share from 0 to below 1')
    if not fc_layer_params:
        raise UserValueError('got fc_layer_params without a layer; need at least one')
    encoder.check_layers(spec, preprocessing_layers or {})
    layers = tf.keras.layers
    made: list[tf.keras.layers.Layer] = [encoder.NestEncoder(spec, conv_layer_params, preprocessing_layers)]
    for units in fc_layer_params:
        made += [
            layers.Dense(units, kernel_initializer=kernel_initializer),
            *([layers.LayerNormalization()] if layer_norm else []),
            *([layers.BatchNormalization(synchronized=True)] if batch_norm else []),
            layers.Activation(activation),
            *([layers.Dropout(dropout)] if dropout else []),
        ]
    return tf.keras.Sequential(made, name=name)
