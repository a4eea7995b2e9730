"""Host values: batches that the host makes for the replicas of this process, each of which gets its own part alone.

A tensor that all replicas are given is copied to each of them as a whole. So the host divides the batch, and the copy
of a part to its device begins as soon as the part is there, while the replicas may still be busy with the step before.
"""

from typing import Any

import tensorflow as tf
from tf_agents.utils import nest_utils

from tflearn.core.errors import UserValueError


def check_divides(spec: Any, num_parts: int) -> None:
    """Checks that the batch of each tensor can be divided among replicas.

    Args:
      spec: nest of tensor specs (or tensors) [N, ...], the batch for all replicas of this process.
      num_parts: the number of these replicas.

    Raises:
      ValueError: if a tensor has no batch dimension, one of unknown size, or one that does not divide; it names the
        tensor.
    """
    if num_parts == 1:
        return
    for name, leaf in nest_utils.flatten_with_joined_paths(spec):
        size = leaf.shape[0] if leaf.shape.rank else None
        if size is None or size % num_parts:
            raise UserValueError(
                f'got {name} of the shape {leaf.shape} in the batch for {num_parts} replicas; need a number of items '
                f'that {num_parts} divides; make the batch {_multiple(size, num_parts)} items, or use other replicas'
            )


def divided(strategy: tf.distribute.Strategy, element: Any, num_parts: int) -> Any:
    """Returns a batch as one value for each replica, for `strategy.run`. In cross-replica context.

    The parts are tensors on the devices of their replicas; for a TPU and for CPUs on the host.

    Args:
      strategy: the strategy of the replicas.
      element: nest of tensors [N, ...] on the host, the batch for all replicas of this process.
      num_parts: their number; replica i of this process gets part i, [N / num_parts, ...].

    Raises:
      ValueError: see `check_divides`.
    """
    if num_parts == 1:
        return element
    check_divides(element, num_parts)
    devices = [_first_stop(device) for device in strategy.extended.worker_devices]
    columns = []
    for column in tf.nest.flatten(element):
        with tf.device('CPU:0'):
            parts = tf.split(column, num_parts)
        columns.append([_on(device, part) for device, part in zip(devices, parts, strict=True)])
    values = [tf.nest.pack_sequence_as(element, list(own)) for own in zip(*columns, strict=True)]
    return strategy.experimental_distribute_values_from_function(
        lambda context: values[context.replica_id_in_sync_group % num_parts]
    )


def _first_stop(device: str) -> str | None:
    """Returns where a part goes as soon as it is there; None if it can stay.

    That is its replica's device, but for a TPU, whose memory only its own programs fill, the host of that device.
    """
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type == 'CPU':  # has the host's memory
        return None
    return spec.replace(device_type='CPU', device_index=0).to_string() if spec.device_type == 'TPU' else device


def _on(device: str | None, part: tf.Tensor) -> tf.Tensor:
    if device is None:
        return part
    with tf.device(device):
        return tf.identity(part)


def _multiple(size: int | None, num_parts: int) -> int:
    return num_parts if size is None else -(-size // num_parts) * num_parts
