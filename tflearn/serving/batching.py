"""Batches of requests: the settings, TensorFlow's own batch operation, and the same for TensorFlow Serving."""

import collections
import dataclasses
import itertools
import weakref
from collections.abc import Callable, Sequence

import tensorflow as tf

from tflearn.errors import UserValueError
from tflearn.policies.loaded_model import ModelFunction


@dataclasses.dataclass(frozen=True)
class BatchOptions:
    """How requests that come at the same time become one batch. The names are those of TensorFlow Serving.

    Attributes:
      max_batch_size: rows of a batch; a larger request is computed by itself.
      batch_timeout_micros: how long an incomplete batch waits for more, in microseconds; 0 takes what has come by the
        time that a thread is free.
      num_batch_threads: batches that are computed at the same time.
      max_enqueued_batches: batches that may wait; what comes beyond is refused as RESOURCE_EXHAUSTED.
    """

    max_batch_size: int = 64
    batch_timeout_micros: int = 0
    num_batch_threads: int = 1
    max_enqueued_batches: int = 100

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            least = 0 if name == 'batch_timeout_micros' else 1
            if value < least:
                raise UserValueError(f'got {name}={value}; need at least {least}')

    def serving_config(self) -> str:
        """Returns these settings as TensorFlow Serving's --batching_parameters_file."""
        return ''.join(f'{name} {{ value: {value} }}\n' for name, value in dataclasses.asdict(self).items())


# TensorFlow keeps a queue for ever, so those of unloaded versions are taken again: a deque's ends are thread-safe.
_free_queues: collections.deque[str] = collections.deque()
_queue_numbers = itertools.count()


def program(function: ModelFunction, options: BatchOptions | None) -> Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]:
    """Returns a loaded function as one operation on its inputs. May be called by many threads at a time.

    Args:
      function: in batches its inputs and outputs have a leading batch dimension.
      options: of the batches; None computes each call by itself.

    Returns:
      A function from inputs to outputs, as `ModelFunction.outputs`.
    """
    if options is None:
        return function.outputs
    dtypes = [output.dtype for output in function.definition.outputs]
    attributes = dataclasses.asdict(options)
    queue = _take_queue(function)

    def together(inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if inputs[0].shape[0] > options.max_batch_size:
            return function.outputs(inputs)
        return tf.raw_ops.BatchFunction(
            in_tensors=inputs,
            captured_tensors=function.weights,
            f=function.definition,
            Tout=dtypes,
            shared_name=repr(options),  # one pool of threads for all functions
            batching_queue=queue,  # calls of one queue share batches, so it must belong to these weights alone
            **attributes,
        )

    return together


def _take_queue(function: ModelFunction) -> str:
    """Returns the name of a queue that is the function's as long as the function is there."""
    try:
        queue = _free_queues.popleft()
    except IndexError:
        queue = f'queue_{next(_queue_numbers)}'
    weakref.finalize(function, _free_queues.append, queue)
    return queue
