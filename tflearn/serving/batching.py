"""Batches of requests: the settings, and TensorFlow's batch operation."""

import collections
import dataclasses
import itertools
import weakref
from collections.abc import Callable, Sequence

import tensorflow as tf

from tflearn.core.settings import NonNegativeInt, PositiveInt, checked_dataclass
from tflearn.policies.loaded_model import ModelFunction


@checked_dataclass(frozen=True)
class BatchOptions:
    """How requests become batches. The names are those of TensorFlow Serving.

    Attributes:
      max_batch_size: the largest number of rows of a batch; a larger request is computed separately.
      batch_timeout_micros: how long an incomplete batch waits for more requests, in microseconds; with 0 it waits only
        for a free thread.
      num_batch_threads: the number of batches that are computed at the same time.
      max_enqueued_batches: the number of batches that may wait; further requests get RESOURCE_EXHAUSTED.
    """

    max_batch_size: PositiveInt = 64
    batch_timeout_micros: NonNegativeInt = 0
    num_batch_threads: PositiveInt = 1
    max_enqueued_batches: PositiveInt = 100

    def serving_config(self) -> str:
        """Returns these settings as TensorFlow Serving's --batching_parameters_file."""
        return ''.join(f'{name} {{ value: {value} }}\n' for name, value in dataclasses.asdict(self).items())


# TensorFlow never frees a queue, so those of unloaded versions are used again. A deque's ends are thread-safe.
_free_queues: collections.deque[str] = collections.deque()
_queue_numbers = itertools.count()


def program(function: ModelFunction, options: BatchOptions | None) -> Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]:
    """Returns a loaded function as one thread-safe operation on its inputs.

    Args:
      function: the function; for batches, all its inputs and outputs have a leading batch dimension.
      options: the options of batches; None computes each call separately.
    """
    if options is None:
        return function.outputs
    dtypes = [output.dtype for output in function.definition.outputs]
    attributes = dataclasses.asdict(options)
    queue = _take_queue(function)

    def in_batches(inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if inputs[0].shape[0] > options.max_batch_size:
            return function.outputs(inputs)
        return tf.raw_ops.BatchFunction(
            in_tensors=inputs,
            captured_tensors=function.weights,
            f=function.definition,
            Tout=dtypes,
            shared_name=repr(options),  # one pool of threads for all functions
            batching_queue=queue,  # calls of one queue share batches, so each set of weights needs its own
            **attributes,
        )

    return in_batches


def _take_queue(function: ModelFunction) -> str:
    """Returns the name of a queue that belongs to the function until the function is freed."""
    try:
        queue = _free_queues.popleft()
    except IndexError:
        queue = f'queue_{next(_queue_numbers)}'
    weakref.finalize(function, _free_queues.append, queue)
    return queue
