"""TFLite models of exported policies: of floats, or of 8-bit integers for small machines.

TFLite must have the policy's operations; it has no random numbers, so the policy is usually a greedy one.
"""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.policies import signatures

Arrays = Mapping[str, np.ndarray]


def convert(version: pathlib.Path, calibration: Arrays | None = None, signature: str = signatures.DEFAULT) -> bytes:
    """Converts an exported version.

    Args:
      calibration: typical inputs [N, ...] by name, from which int8 quantisation takes its ranges. The dtypes of inputs
        and outputs do not change. None keeps floats.
      signature: the function to convert.

    Raises:
      ValueError: if TFLite lacks an operation of the policy.
    """
    converter = tf.lite.TFLiteConverter.from_saved_model(str(version), [signature])
    if calibration is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ((signature, row) for row in _rows(calibration))
    try:
        model: bytes = converter.convert()
    except Exception as error:  # the parts of the converter raise their own classes
        reason = ' '.join(str(error).split())[:300]
        raise UserValueError(
            f'got the policy {version}, which TFLite cannot compute ({reason}); need a policy of its operations only; '
            'choose a greedy one'
        ) from error
    return model


def run(model: bytes, given: Arrays, signature: str = signatures.DEFAULT) -> dict[str, np.ndarray]:
    """Returns the outputs of a converted model, by name, for inputs [N, ...] by name."""
    outputs: dict[str, np.ndarray] = interpreter(model).get_signature_runner(signature)(**given)
    return outputs


def interpreter(model: bytes) -> Any:
    """Returns an interpreter of a converted model: LiteRT's where it is installed. TensorFlow 2.20 warns of its own."""
    try:
        from ai_edge_litert import interpreter as litert
    except ModuleNotFoundError:
        return tf.lite.Interpreter(model_content=model)
    return litert.Interpreter(model_content=model)


def _rows(arrays: Arrays) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of one."""
    for i in range(len(next(iter(arrays.values())))):
        yield {name: array[i : i + 1] for name, array in arrays.items()}
