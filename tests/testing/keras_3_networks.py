"""Networks of Keras 3 for `make_network`: a functional one, and a subclass that is a complete policy with its value."""

import keras

layers = keras.layers


def functional(spec, name):
    """Observation [B, n] -> features [B, 8]."""
    inputs = keras.Input(tuple(spec.shape))
    hidden = layers.Dropout(0.3)(layers.LayerNormalization()(layers.Dense(8, 'gelu')(inputs)))
    return keras.Model(inputs, layers.Dense(8, 'relu', kernel_regularizer='l2')(hidden), name=name)


class Subclass(keras.Model):
    """Observation [B, n] -> features; and the value too, if it has one."""

    def __init__(self, units, has_value=False, **kwargs):
        super().__init__(**kwargs)
        self.body, self.dropout = layers.Dense(8, 'relu'), layers.Dropout(0.3)
        self.norms = [layers.BatchNormalization(momentum=0.5), layers.LayerNormalization()]
        self.last, self.value = layers.Dense(units), layers.Dense(1) if has_value else None

    def call(self, inputs):
        features = self.body(inputs)
        for norm in self.norms:
            features = norm(features)
        features = self.dropout(features)
        outputs = self.last(features)
        return outputs if self.value is None else (outputs, self.value(features)[:, 0])
