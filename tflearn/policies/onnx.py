"""ONNX models of functions of exported policies, by tf2onnx; needs the extra onnx.

An input and an output of ONNX cannot have the same name, so the policy states that a function
returns begin with `NEXT` in a model.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core import extras
from tflearn.core.errors import UserValueError

_environment = dict(os.environ)
with extras.needed_by('an ONNX model'):
    import onnx
    import onnxruntime
    import tf2onnx.convert  # which tf2onnx itself imports when it is first used
# tf2onnx sets TensorFlow's log level for this process, and for all that it starts from now on.
os.environ.clear()
os.environ.update(_environment)

NEXT = 'next_'
_OPSET = 18  # of December 2022


def convert(function: Callable[..., Mapping[str, tf.Tensor]], specs: Mapping[str, tf.TensorSpec]) -> bytes:
    """Converts a function of named tensors, which draws no numbers.

    Args:
      specs: the function's inputs by name. Those that it does not use are left out of the model.

    Raises:
      ValueError: if ONNX lacks an operation of the function.
    """

    @tf.function(input_signature=[*specs.values()], autograph=False)
    def renamed(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = function(**dict(zip(specs, tensors, strict=True)))
        return {f'{NEXT}{name}' if name in specs else name: tf.identity(value) for name, value in outputs.items()}

    handlers: dict[str, Any] = {'BroadcastArgs': (_broadcast_args, [])}
    proto, _ = tf2onnx.convert.from_function(
        renamed, input_signature=[*specs.values()], opset=_OPSET, custom_op_handlers=handlers
    )
    model: bytes = proto.SerializeToString()
    try:
        onnx.checker.check_model(proto)
        _session(model)
    except Exception as error:  # both libraries have their own classes
        reason = ' '.join(str(error).split())[:300]
        raise UserValueError(f'got a policy that ONNX cannot compute ({reason}); choose TFLite') from error
    return model


def run(model: bytes, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the outputs of a converted model, by the function's own names,
    for inputs [N, ...] by name.
    """
    session = _session(model)
    outputs = [each.name for each in session.get_outputs()]
    values = session.run(outputs, {each.name: given[each.name] for each in session.get_inputs()})
    return {name.removeprefix(NEXT): value for name, value in zip(outputs, values, strict=True)}


def _session(model: bytes) -> Any:
    return onnxruntime.InferenceSession(model, providers=['CPUExecutionProvider'])


def _broadcast_args(graph: Any, node: Any, name: str, args: Any) -> None:
    """Makes TensorFlow's BroadcastArgs, the shape of two tensors together,
    which tf2onnx does not know.

    TensorFlow Probability has it where a distribution without parameters of its own is drawn from.
    """
    output, int64 = node.output[0], onnx.TensorProto.INT64
    dtype, shape = graph.get_dtype(output), graph.get_shape(output)
    shapes = [graph.make_node('Cast', [given], attr={'to': int64}).output[0] for given in node.input]
    graph.remove_node(node.name)
    first = graph.make_node('ConstantOfShape', shapes[:1])
    both = graph.make_node('Expand', [first.output[0], shapes[1]])
    found = graph.make_node('Shape', both.output)
    graph.make_node('Cast', found.output, attr={'to': dtype}, outputs=[output], shapes=[shape], dtypes=[dtype])
