"""Exports a Keras model as a SavedModel whose inputs and outputs have names."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tflearn.policies.signatures import flat_dict


def export(model: Any, input_spec: Any, path: str) -> None:
    """Writes a model as a SavedModel.

    Args:
      model: maps a nest of tensors [B, ...] to a tensor, or to several by name.
      input_spec: the spec of its input, without the batch. Of a dict the signature has an input for each tensor, by
        name; a single one is 'x'. So it is with the outputs; a single one is 'y'.
      path: the directory, which is created.
    """
    specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec((None, *leaf.shape), leaf.dtype), input_spec)
    named = flat_dict(specs) if isinstance(specs, Mapping) else {'x': specs}

    def predict(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        given = tf.nest.pack_sequence_as(specs, [inputs[name] for name in named])
        outputs = model(given, training=False)
        return flat_dict(outputs) if isinstance(outputs, Mapping) else {'y': outputs}

    module = tf.Module()
    module.model = model
    concrete = tf.function(predict, autograph=False).get_concrete_function(
        **{name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in named.items()}
    )
    tf.saved_model.save(module, path, signatures={'serving_default': concrete})
