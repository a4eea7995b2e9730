"""What a train step takes and gives: an element's data, info and weights; figures by name, and those of each item."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tflearn.errors import UserValueError
from tflearn.experience import WEIGHTS


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
    """Returns the agent's further figure `name`, one number for each item, float32 [B]; nothing if there is no name.

    Raises:
      ValueError: if there is no such figure, or it is of another rank.
    """
    if name is None:
        return ()
    figures = dict(flatten_with_names(extra))
    if name not in figures or tf.convert_to_tensor(figures[name]).shape.rank != 1:
        shapes = {key: tf.convert_to_tensor(value).shape.as_list() for key, value in figures.items()}
        raise UserValueError(
            f'got an agent with the further figures {shapes}; need {name!r} with one number for each item; name '
            'another figure, or draw uniformly'
        )
    return (tf.cast(figures[name], tf.float32),)


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
