"""Models of one batch size, for compilers that want every shape: `saved_model_cli aot_compile_cpu`, say."""

import pathlib

import tensorflow as tf

from tflearn.policies import signatures


def save(version: pathlib.Path, batch_size: int, output: pathlib.Path) -> None:
    """Saves 'serving_default' of an exported version, and nothing else of it, for one batch size.

    Args:
      version: its path.
      batch_size: of all inputs and outputs.
      output: the SavedModel's path.
    """
    module = tf.Module(name='policy')
    module.policy = tf.saved_model.load(str(version))
    serving = module.policy.signatures[signatures.DEFAULT]
    specs = {
        name: tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype, name)
        for name, spec in serving.structured_input_signature[1].items()
    }

    @tf.function(input_signature=[*specs.values()], autograph=False)
    def fixed(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return {name: tf.identity(value) for name, value in serving(**dict(zip(specs, tensors, strict=True))).items()}

    tf.saved_model.save(module, str(output), signatures={signatures.DEFAULT: fixed})
