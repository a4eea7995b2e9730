"""TensorFlow Serving's messages, which the extra `serving` installs,
and arrays as TensorFlow's TensorProto and back.

Input is checked before memory is allocated for it.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core import extras
from tflearn.extensions.serving.served_version import InvalidRequest

with extras.needed_by('serving'):
    import prometheus_client as prometheus_client
    from tensorflow_serving.apis import get_model_metadata_pb2 as get_model_metadata_pb2
    from tensorflow_serving.apis import get_model_status_pb2 as get_model_status_pb2
    from tensorflow_serving.apis import model_service_pb2_grpc as model_service_pb2_grpc
    from tensorflow_serving.apis import predict_pb2 as predict_pb2
    from tensorflow_serving.apis import prediction_service_pb2_grpc as prediction_service_pb2_grpc


OUTCOMES = '/tflearn.serving.OutcomeService/Record'  # takes and answers a google.protobuf.Struct
# The field of each dtype, and the dtype as which numpy reads it: it would convert mixed integers to floats.
_FIELDS = {
    **dict.fromkeys((tf.int8, tf.int16, tf.int32, tf.uint8, tf.uint16), 'int_val'),
    **dict.fromkeys((tf.float16, tf.bfloat16), 'half_val'),
    tf.float32: 'float_val',
    tf.float64: 'double_val',
    tf.int64: 'int64_val',
    tf.uint32: 'uint32_val',
    tf.uint64: 'uint64_val',
    tf.bool: 'bool_val',
    tf.string: 'string_val',
}
_READ_AS = {
    **{field: dtype.as_numpy_dtype for dtype, field in _FIELDS.items()},
    **dict.fromkeys(('int_val', 'half_val'), np.int32),
}


def shape_of(name: str, proto: Any, rank: int | None = None) -> tuple[int, ...]:
    """Returns the shape of a TensorProto.

    Args:
      rank: the required number of dimensions, which is checked before they are read; None accepts
        any.

    Raises:
      InvalidRequest: if the shape is unknown or has another rank.
    """
    if rank is not None and len(proto.tensor_shape.dim) != rank:
        raise InvalidRequest(f'got {name} of rank {len(proto.tensor_shape.dim)}; need rank {rank}')
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or any(size < 0 for size in shape):
        raise InvalidRequest(f'got {name} of an unknown shape; need a tensor_shape with all sizes')
    return shape


def to_array(name: str, proto: Any, dtype: tf.DType) -> np.ndarray:
    """Returns the values of a TensorProto whose shape was checked.

    Args:
      proto: a TensorProto with tensor_content or values; the last value is repeated for all that
        are missing.

    Raises:
      InvalidRequest: if the dtype or the number of values is wrong.
    """
    if proto.dtype != dtype.as_datatype_enum:
        raise InvalidRequest(f'got {name} of {_dtype_name(proto.dtype)}; need {dtype.name}')
    if dtype not in _FIELDS:
        raise InvalidRequest(f'got {name} of {dtype.name}; need numbers or strings')
    shape = shape_of(name, proto)
    count = math.prod(shape)
    wanted = np.dtype(dtype.as_numpy_dtype)
    if proto.tensor_content and dtype != tf.string:
        if len(proto.tensor_content) != count * wanted.itemsize:
            raise InvalidRequest(
                f'got {name} with {len(proto.tensor_content)} bytes of tensor_content; need {count * wanted.itemsize} '
                f'for {list(shape)} of {dtype.name}'
            )
        stored = np.frombuffer(proto.tensor_content, np.uint8 if dtype == tf.bool else wanted).reshape(shape)
        return stored != 0 if dtype == tf.bool else stored
    given = getattr(proto, _FIELDS[dtype])
    if not (0 < len(given) <= count or len(given) == count):
        raise InvalidRequest(f'got {name} with {len(given)} values in {_FIELDS[dtype]}; need {count} for {list(shape)}')
    values = np.array(given, _READ_AS[_FIELDS[dtype]])
    values = _cast(name, values, dtype)
    if len(values) == 1:  # no memory for each of them
        return np.broadcast_to(values.reshape(()), shape)
    array = np.full(count, values[-1:] if count else 0, values.dtype)
    array[: len(values)] = values
    return array.reshape(shape)


def fill(proto: Any, array: np.ndarray, content: bool = False) -> None:
    """Writes an array into an empty TensorProto.

    Args:
      content: whether to write tensor_content, which is faster for many values; else values, as
        TensorFlow Serving does.
    """
    dtype = tf.as_dtype(array.dtype)
    proto.dtype = dtype.as_datatype_enum
    for size in array.shape:
        proto.tensor_shape.dim.add().size = size
    if content and array.size and dtype != tf.string:
        proto.tensor_content = array.tobytes()
        return
    field = _FIELDS[dtype]
    values = array.view(np.uint16) if field == 'half_val' else array
    getattr(proto, field).extend(values.ravel().tolist())


def _cast(name: str, array: np.ndarray, dtype: tf.DType) -> np.ndarray:
    wanted = dtype.as_numpy_dtype
    if _FIELDS[dtype] == 'half_val':  # the field holds their bits
        _check_range(name, array, np.uint16)
        return array.astype(np.uint16).view(wanted)
    if dtype.is_integer and array.size:
        _check_range(name, array, wanted)
    return array.astype(wanted)


def _check_range(name: str, array: np.ndarray, wanted: Any) -> None:
    limits = np.iinfo(wanted)
    if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
        raise InvalidRequest(f'got {name} with values from {array.min()} to {array.max()}; need {limits.dtype.name}')


def _dtype_name(number: int) -> str:
    try:
        return tf.as_dtype(number).name
    except TypeError:
        return f'the unknown dtype {number}'
