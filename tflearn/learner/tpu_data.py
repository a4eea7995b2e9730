"""What a TPU refuses in the tensors that a train step is given."""

from typing import Any

import tensorflow as tf
from tf_agents.utils import nest_utils

from tflearn.core.errors import UserValueError


def refused_data(spec: Any, what: str = 'the data') -> list[str]:
    """Returns what a TPU refuses in tensors that a step is given, one line for each.

    Args:
      spec: nest of tensor specs.
      what: what they belong to, for the lines.
    """
    lines = []
    for name, leaf in nest_utils.flatten_with_joined_paths(spec, expand_composites=True):
        if leaf.dtype == tf.string:
            lines.append(f'got strings in {name} of {what}; need numbers on a TPU; leave them out, or encode them')
        if leaf.dtype == tf.float64:
            lines.append(f'got float64 in {name} of {what}; need float32 on a TPU; cast it where the data are made')
        if leaf.shape.rank is None or None in leaf.shape.as_list():
            lines.append(
                f'got the shape {leaf.shape} of {name} in {what}; need all dimensions known on a TPU; pad it, give '
                'every item the same sequence length, and batch with drop_remainder=True'
            )
    return lines


def check_for_tpu(spec: Any, what: str = 'the data') -> None:
    """Raises a ValueError if a TPU refuses tensors of this spec; it names the first reason.
    See `refused_data`.
    """
    if refusals := refused_data(spec, what):
        raise UserValueError(refusals[0])
