"""Where train steps run: a name -> a tf.distribute strategy."""

import tensorflow as tf


def make(name: str) -> tf.distribute.Strategy:
    """Makes a strategy.

    Args:
      name: 'default' is one replica on the first device; 'mirrored' is one replica on each GPU of this machine;
        'mirrored:N' is N replicas on the first N logical devices (GPUs if there are any, else CPUs).

    Raises:
      ValueError: if the name is unknown, or the machine has fewer devices than it asks for.
    """
    kind, _, count = name.partition(':')
    if name == 'default':
        return tf.distribute.get_strategy()
    if kind != 'mirrored' or (count and not count.isdigit()) or count == '0':
        raise ValueError(f"got strategy={name!r}; need 'default', 'mirrored' or 'mirrored:N' with N from 1")
    gpus = tf.config.list_logical_devices('GPU')
    devices = [device.name for device in gpus or tf.config.list_logical_devices('CPU')]
    if count and int(count) > len(devices):
        raise ValueError(f'got strategy={name!r}; this machine has {len(devices)} device(s): {", ".join(devices)}')
    # CPUs of one process share their memory; collectives would allow for one group size a process only.
    cross_device_ops = None if gpus else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(devices[: int(count)] if count else devices, cross_device_ops)
