"""The structure of batches and metrics: importance weights; metrics by name; checks of a dataset."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tflearn.core import strategies
from tflearn.core.errors import UserValueError
from tflearn.core.types import WEIGHTS
from tflearn.learner import tpu_rules


def weights(info: Any, normalize: bool) -> tf.Tensor | None:
    """Returns the importance weights in info, or None; `normalize` divides by the global batch's greatest."""
    found = info.get(WEIGHTS) if isinstance(info, Mapping) else None
    if found is None or not normalize:
        return found
    greatest = tf.reduce_max(found)
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync > 1:
        greatest = tf.reduce_max(context.all_gather(greatest[None], axis=0))
    return found / greatest


def of_items(extra: Any, name: str | None) -> tuple[tf.Tensor, ...]:
    """Returns the agent's extra metric `name`, one number for each item, (float32 [B],); () if `name` is None.

    Raises:
      ValueError: if there is no such metric, or it has another rank.
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
    """Returns whether values of this dtype have a mean."""
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)


def is_complete(strategy: tf.distribute.Strategy, element: Any) -> tf.Tensor:
    """Returns whether an optional element has a batch for each replica here; an empty one would make the loss NaN."""
    if strategy.num_replicas_in_sync == 1:
        return element.has_value()
    return tf.cond(
        element.has_value(), lambda: _no_batch_empty(strategy, element.get_value()), lambda: tf.constant(False)
    )


def _no_batch_empty(strategy: tf.distribute.Strategy, element: Any) -> tf.Tensor:
    batches = strategy.experimental_local_results(tf.nest.flatten(element)[0])
    return tf.reduce_all([tf.size(batch) > 0 for batch in batches])


def check_dataset(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy) -> None:
    """Checks that a strategy can train on the dataset of an input pipeline.

    Several workers need an endless one: each would see its own end, and wait for the others forever. A TPU also needs
    fixed shapes, and numbers only.

    Raises:
      ValueError: naming what the dataset has and what it needs.
    """
    tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    cardinality = int(dataset.cardinality())
    if (tpu or strategies.layout(strategy).workers > 1) and cardinality != tf.data.INFINITE_CARDINALITY:
        size = 'unknown size' if cardinality == tf.data.UNKNOWN_CARDINALITY else f'{cardinality} elements'
        raise UserValueError(
            f'got a dataset of {size}; need an endless one for several workers or a TPU; end it with .repeat()'
        )
    if tpu:
        tpu_rules.check(dataset.element_spec)
