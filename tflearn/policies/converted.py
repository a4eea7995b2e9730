"""Models of exported policies in other formats, of one function with flat names:
ONNX, and TFLite (LiteRT).

TFLite models are of floats, or of 8-bit integers for small machines. TFLite must have the policy's
operations; it has no random numbers, so the policy is usually a greedy one.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import policy_saver
from tf_agents.specs import tensor_spec

from tflearn.core.errors import UserRuntimeError, UserValueError
from tflearn.files import messages
from tflearn.files.run_dir import read_json
from tflearn.policies import export_check, loaded_model, signatures, versions
from tflearn.policies.exporter import ACTION_MASK

ONNX, TFLITE, INT8 = 'onnx', 'tflite', 'tflite_int8'
# The ends of the names of the files.
SUFFIXES = {ONNX: '.onnx', TFLITE: '.tflite', INT8: '_int8.tflite'}

# The tolerances of a model: the least share of equal discrete values, and the greatest difference
# of continuous ones, as a share of their range; of floats, and of integers.
_LEAST_EQUAL = {True: 0.9, False: 0.99}
_MOST_DIFFERENCE = {True: 0.1, False: 1e-4}
_STEPS_BEFORE = 8  # by which a policy state has seen something

Arrays = Mapping[str, np.ndarray]


class Converted:
    """A model of one function of an exported version."""

    def __init__(self, version: pathlib.Path, format: str, signature: str = signatures.DEFAULT):
        """Converts nothing yet.

        Args:
          version: a complete version.
          format: of `SUFFIXES`.
          signature: the function's name: 'serving_default' takes observations and policy states,
            any other one the complete time step.

        Raises:
          ImportError: if a package of the extra onnx is missing.
          ValueError: if the version has no such function, or one that the format cannot have.
        """
        if format == ONNX:
            _onnx()
        self._version, self._format, self._signature = version, format, signature
        with loaded_model.naming_damage(version):
            self._exported = tf.saved_model.load(str(version))
        if signature not in self._exported.signatures:
            found = ', '.join(sorted(self._exported.signatures))
            raise UserValueError(f'got signature={signature!r}; need one of the policy {version}: {found}')
        self._function = self._exported.signatures[signature]
        self.inputs: dict[str, tf.TensorSpec] = self._function.structured_input_signature[1]
        if export_check.has_low_precision(self._function):
            raise UserValueError(
                f'got the policy {version}, which computes in bfloat16 or float16; {format} needs float32; train with '
                "precision='float32'"
            )
        if format == ONNX and loaded_model.is_stochastic(self._function):
            raise UserValueError(
                f'got the policy {version}, which draws its actions; need a greedy one for {format}, or the signature '
                "'distribution'"
            )

    def convert(self, calibration: Arrays) -> bytes:
        """Returns the model.

        Args:
          calibration: typical inputs [N, ...] by name, from which int8 quantization takes its
            ranges. The dtypes of inputs and outputs do not change.

        Raises:
          ValueError: if the format lacks an operation of the policy.
        """
        if self._format == ONNX:
            return _onnx().convert(self._function, self.inputs)
        return convert_tflite(self._version, calibration if self._format == INT8 else None, self._signature)

    def run(self, model: bytes, given: Arrays) -> Arrays:
        """Returns the outputs of the model, by name, for inputs [N, ...] by name."""
        if self._format == ONNX:
            return _onnx().run(model, given)
        return run_tflite(model, given, self._signature)

    def expected(self, given: Arrays) -> dict[str, np.ndarray]:
        """Returns the outputs of the version itself."""
        outputs = self._function(**{name: tf.constant(value) for name, value in given.items()})
        return {name: value.numpy() for name, value in outputs.items()}

    def completed(self, observations: Arrays) -> dict[str, np.ndarray]:
        """Returns inputs [N, ...] with these observations: of steps within episodes.

        Policy states are those that the policy has after some of the other observations.
        """
        size = len(next(iter(observations.values())))
        given = dict(observations)
        if signatures.INITIAL_STATE in self._exported.signatures:
            state = self._exported.signatures[signatures.INITIAL_STATE](batch_size=tf.constant(size))
            for i in range(_STEPS_BEFORE):
                seen = {name: tf.constant(np.roll(values, i + 1, axis=0)) for name, values in observations.items()}
                step = self._exported.signatures[signatures.DEFAULT](**seen, **state)
                state = {name: step[name] for name in state}
            given |= {name: values.numpy() for name, values in state.items()}
        return signatures.completed(given, self.inputs)

    def random_observations(self, size: int) -> dict[str, np.ndarray]:
        """Draws observations [size, ...] by name, within their bounds; every action is legal."""
        rng = np.random.default_rng(0)
        specs = tensor_spec.from_pbtxt_file(str(self._version / policy_saver.POLICY_SPECS_PBTXT))
        leaves = signatures.flat(signatures.to_plain(specs['collect_data_spec'].observation), 'observation')
        drawn = {name: export_check.draw(spec, rng, size) for name, spec in leaves}
        mask = (read_json(self._version / versions.METADATA, messages.Metadata) or {}).get(ACTION_MASK)
        if mask:  # a policy fails where nothing is legal
            drawn['observation_' + re.sub(r'\W', '_', mask)][:] = 1
        return drawn

    def compare(self, model: bytes, given: Arrays) -> dict[str, float]:
        """Compares a model with the version.

        Args:
          given: inputs [N, ...] by name.

        Returns:
          By output: the share of equal values if it is discrete; else the greatest difference, as a
          share of the range of the values.

        Raises:
          RuntimeError: if they differ by more than the format explains.
        """
        got, metrics = self.run(model, given), {}
        for name, values in self.expected(given).items():
            discrete = values.dtype.kind in 'iu'
            if discrete:
                metrics[name] = float(np.mean(values == got[name]))
            else:
                metrics[name] = float(np.max(np.abs(values - got[name])) / max(np.ptp(values), 1e-6))
            bound = (_LEAST_EQUAL if discrete else _MOST_DIFFERENCE)[self._format == INT8]
            if (metrics[name] < bound) if discrete else not metrics[name] <= bound:
                what = 'a share of equal values of' if discrete else 'a greatest difference of'
                raise UserRuntimeError(
                    f'got {name} of the {self._format} model with {what} {metrics[name]:.3g}, compared with '
                    f'{self._version}; need {bound}; calibrate with more observations, or keep floats'
                )
        return metrics


def _onnx() -> Any:
    from tflearn.policies import onnx  # it needs an extra

    return onnx


def convert_tflite(
    version: pathlib.Path, calibration: Mapping[str, np.ndarray] | None = None, signature: str = signatures.DEFAULT
) -> bytes:
    """Converts an exported version.

    Args:
      calibration: typical inputs [N, ...] by name, from which int8 quantisation takes its ranges.
        The dtypes of inputs and outputs do not change. None keeps floats.
      signature: the function to convert.

    Raises:
      ValueError: if TFLite lacks an operation of the policy.
    """
    converter = tf.lite.TFLiteConverter.from_saved_model(str(version), [signature])
    if calibration is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ((signature, row) for row in _batches_of_one(calibration))
    try:
        model: bytes = converter.convert()
    except Exception as error:  # the parts of the converter raise their own classes
        reason = ' '.join(str(error).split())[:300]
        raise UserValueError(
            f'got the policy {version}, which TFLite cannot compute ({reason}); need a policy of its operations only; '
            'choose a greedy one'
        ) from error
    return model


def run_tflite(
    model: bytes, given: Mapping[str, np.ndarray], signature: str = signatures.DEFAULT
) -> dict[str, np.ndarray]:
    """Returns the outputs of a converted model, by name, for inputs [N, ...] by name."""
    outputs: dict[str, np.ndarray] = tflite_interpreter(model).get_signature_runner(signature)(**given)
    return outputs


def tflite_interpreter(model: bytes) -> Any:
    """Returns an interpreter of a converted model: LiteRT's where it is installed.
    TensorFlow 2.20 warns of its own.
    """
    try:
        from ai_edge_litert import interpreter as litert
    except ModuleNotFoundError:
        return tf.lite.Interpreter(model_content=model)
    return litert.Interpreter(model_content=model)


def _batches_of_one(arrays: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of one."""
    for i in range(len(next(iter(arrays.values())))):
        yield {name: array[i : i + 1] for name, array in arrays.items()}
