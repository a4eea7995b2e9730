"""What a learner may be fed: checked once, before anything is compiled."""

from typing import Any

import tensorflow as tf
from tf_agents.utils import nest_utils

from tflearn.errors import UserValueError


def refuse_unknown_shapes(element_spec: Any) -> None:
    """Refuses what XLA cannot compile once for all: dimensions that are not known before the data come, and strings.

    Args:
      element_spec: of a dataset or of a distributed iterator.

    Raises:
      ValueError: naming the first tensor that is not fixed, and its dimension.
    """
    for name, spec in nest_utils.flatten_with_joined_paths(element_spec, expand_composites=True):
        if spec.dtype == tf.string:
            raise UserValueError(
                f'got strings in {name} of the data; need numbers on a TPU or with XLA; leave them out in the dataset'
            )
        if spec.shape.rank is None or None in spec.shape.as_list():
            raise UserValueError(
                f'got the shape {spec.shape} of {name} in the data; need all dimensions known on a TPU or with XLA; '
                'give every item the same sequence length, batch with drop_remainder=True, and end the dataset with '
                '.repeat() (for several replicas, one that may end has batches of unknown size)'
            )


def refuse_finite(dataset: tf.data.Dataset) -> None:
    """Refuses a dataset that may end, for several replicas.

    One that may end costs a reduction over all replicas for each batch, makes the batch size unknown, and when it ends
    amid a step the replicas without data get empty batches: their means are NaN, and the step is taken.

    Args:
      dataset: of one input pipeline.

    Raises:
      ValueError: if TensorFlow does not know that it is endless.
    """
    cardinality = int(dataset.cardinality())
    if cardinality != tf.data.INFINITE_CARDINALITY:
        size = 'unknown size' if cardinality == tf.data.UNKNOWN_CARDINALITY else f'{cardinality} elements'
        raise UserValueError(
            f'got a dataset of {size}; need an endless one for several replicas; end it with .repeat()'
        )
