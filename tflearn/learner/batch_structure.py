"""What a train step takes and gives: an element's data, info and weights; metrics by name, and those of each item."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tf_agents.utils import nest_utils

from tflearn.errors import UserValueError
from tflearn.types import WEIGHTS


def split(element: Any) -> tuple[Any, Any]:
    """Splits an element into data and info; a Trajectory is a tuple too, but not of two."""
    if type(element) is tuple and len(element) == 2:
        return element
    if hasattr(element, 'data') and hasattr(element, 'info'):  # a ReplaySample
        return element.data, element.info
    return element, ()


def own_part(whole: Any, num_parts: int) -> Any:
    """Returns this replica's share of an element for all `num_parts` replicas of this process. For a replica."""
    if num_parts == 1:
        return whole
    context = tf.distribute.get_replica_context()
    place = tf.cast(context.replica_id_in_sync_group, tf.int32) % num_parts

    def share(column: tf.Tensor) -> tf.Tensor:
        size = column.shape[0] // num_parts
        part = column[place * size : (place + 1) * size]
        return tf.ensure_shape(part, [size, *column.shape[1:]])

    return tf.nest.map_structure(share, whole)


def weights(info: Any, normalize: bool) -> tf.Tensor | None:
    """Returns the importance weights that info holds, if any. For a replica.

    Args:
      info: of the element.
      normalize: divide them by the greatest one of the global batch.
    """
    found = info.get(WEIGHTS) if isinstance(info, Mapping) else None
    if found is None or not normalize:
        return found
    greatest = tf.reduce_max(found)
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync > 1:
        greatest = tf.reduce_max(context.all_gather(greatest[None], axis=0))
    return found / greatest


def of_items(extra: Any, name: str | None) -> tuple[tf.Tensor, ...]:
    """Returns the agent's extra metric `name`, one number for each item, float32 [B]; nothing if there is no name.

    Raises:
      ValueError: if there is no such metric, or it is of another rank.
    """
    if name is None:
        return ()
    metrics = dict(flatten_with_names(extra))
    if name not in metrics or tf.convert_to_tensor(metrics[name]).shape.rank != 1:
        shapes = {key: tf.convert_to_tensor(value).shape.as_list() for key, value in metrics.items()}
        raise UserValueError(
            f'got an agent with the extra metrics {shapes}; need {name!r} with one number for each item; name '
            'another metric, or draw uniformly'
        )
    return (tf.cast(metrics[name], tf.float32),)


def flatten_with_names(values: Any, prefix: str = '') -> list[tuple[str, Any]]:
    """Returns the leaves of a nest with their paths."""
    if hasattr(values, '_asdict'):
        values = values._asdict()
    if isinstance(values, list | tuple):
        values = dict(enumerate(values))
    if not isinstance(values, Mapping):
        return [] if values is None else [(prefix, values)]
    return [
        leaf
        for key, value in values.items()
        for leaf in flatten_with_names(value, f'{prefix}/{key}' if prefix else str(key))
    ]


def is_number(dtype: tf.DType) -> bool:
    """Says whether a mean of it makes sense."""
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)


def is_whole(strategy: tf.distribute.Strategy, element: Any) -> tf.Tensor:
    """Says whether an optional element holds a batch for each replica here; an empty one would make the loss NaN."""
    if strategy.num_replicas_in_sync == 1:
        return element.has_value()
    return element.has_value() and _no_batch_empty(strategy, element.get_value())


def _no_batch_empty(strategy: tf.distribute.Strategy, element: Any) -> tf.Tensor:
    batches = strategy.experimental_local_results(tf.nest.flatten(element)[0])
    return tf.reduce_all([tf.size(batch) > 0 for batch in batches])


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
