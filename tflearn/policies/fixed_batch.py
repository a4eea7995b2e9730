"""Models of one batch size, for compilers that need static shapes, such as `saved_model_cli aot_compile_cpu`."""

import os
import pathlib

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.files import numbered
from tflearn.policies import loaded_model, signatures


def save(version: pathlib.Path, batch_size: int, output: pathlib.Path) -> None:
    """Saves only the signature 'serving_default' of an exported version, for one batch size.

    Args:
      output: the SavedModel's path; it is written atomically.

    Raises:
      ValueError: if `output` exists.
    """
    if output.exists():
        raise UserValueError(f'got output={output}, which exists; need a new path; choose another')
    module = tf.Module(name='policy')
    with loaded_model.naming_damage(version):
        module.policy = tf.saved_model.load(str(version))
        serving = module.policy.signatures[signatures.DEFAULT]
        specs = {
            name: tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype, name)
            for name, spec in serving.structured_input_signature[1].items()
        }

    @tf.function(input_signature=[*specs.values()], autograph=False)
    def fixed(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return {name: tf.identity(value) for name, value in serving(**dict(zip(specs, tensors, strict=True))).items()}

    with numbered.writing(output) as written:
        tf.saved_model.save(module, str(written), signatures={signatures.DEFAULT: fixed})
        os.rename(written, output)
