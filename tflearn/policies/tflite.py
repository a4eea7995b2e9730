"""TFLite models of exported policies: of floats, or of 8-bit integers for small machines.

They take only observations, as 'serving_default' does. TFLite must have the policy's operations; it has no random
numbers, so the policy is usually a greedy one.
"""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserRuntimeError, UserValueError
from tflearn.policies import export_check, loaded_model, signatures

# The tolerances of a model: the least share of equal discrete actions, and the greatest difference of continuous ones,
# as a share of their range.
_LEAST_EQUAL = {'float32': 0.99, 'int8': 0.9}
_MOST_DIFFERENCE = {'float32': 1e-4, 'int8': 0.1}

Arrays = Mapping[str, np.ndarray]


def inputs(version: pathlib.Path) -> dict[str, tf.TensorSpec]:
    """Returns the specs of the inputs of a version's 'serving_default', by name."""
    named: dict[str, tf.TensorSpec] = _load(version).signatures[signatures.DEFAULT].structured_input_signature[1]
    return named


def convert(version: pathlib.Path, calibration: Arrays | None = None, signature: str = signatures.DEFAULT) -> bytes:
    """Converts an exported version.

    Args:
      calibration: typical inputs [N, ...] by name, from which int8 quantisation takes its ranges. The dtypes of inputs
        and outputs do not change. None keeps floats.
      signature: the function to convert.

    Raises:
      ValueError: if TFLite lacks an operation of the policy.
    """
    if export_check.has_low_precision(_load(version).signatures[signature]):
        raise UserValueError(
            f'got the policy {version}, which computes in bfloat16 or float16; TFLite needs float32; train with '
            "precision='float32'"
        )
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


def compare(model: bytes, version: pathlib.Path, given: Arrays, precision: str) -> dict[str, float]:
    """Compares a converted model with its version.

    Args:
      given: inputs [N, ...] by name.
      precision: 'float32' or 'int8'.

    Returns:
      By output: the share of equal values if it is discrete; else the greatest difference, as a share of the range of
      the values.

    Raises:
      RuntimeError: if they differ by more than the precision explains.
    """
    tensors = {name: tf.constant(value) for name, value in given.items()}
    exported = _load(version)
    expected = {name: value.numpy() for name, value in exported.signatures[signatures.DEFAULT](**tensors).items()}
    got = run(model, given)
    metrics = {}
    for name, values in expected.items():
        discrete = values.dtype.kind in 'iu'
        if discrete:
            metrics[name] = float(np.mean(values == got[name]))
        else:
            metrics[name] = float(np.max(np.abs(values - got[name])) / max(np.ptp(values), 1e-6))
        bound = (_LEAST_EQUAL if discrete else _MOST_DIFFERENCE)[precision]
        if (metrics[name] < bound) if discrete else not metrics[name] <= bound:
            what = 'a share of equal values of' if discrete else 'a greatest difference of'
            raise UserRuntimeError(
                f'got {name} of the TFLite model with {what} {metrics[name]:.3g}, compared with {version}; need '
                f'{bound}; calibrate with more observations, or keep floats'
            )
    return metrics


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


def _load(version: pathlib.Path) -> Any:
    with loaded_model.naming_damage(version):
        return tf.saved_model.load(str(version))


def _rows(arrays: Arrays) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of one."""
    for i in range(len(next(iter(arrays.values())))):
        yield {name: array[i : i + 1] for name, array in arrays.items()}
