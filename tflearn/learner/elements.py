"""An element's parts: data and info, weights, items' errors, leaves by name, what is not finite."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tf_agents.utils import nest_utils

from tflearn.core.errors import UserValueError
from tflearn.core.types import WEIGHTS


def split(element: Any) -> tuple[Any, Any]:
    """Splits an element into data and info; a Trajectory is a tuple too, but not of two."""
    if type(element) is tuple and len(element) == 2:
        return element
    if hasattr(element, 'data') and hasattr(element, 'info'):  # a ReplaySample
        return element.data, element.info
    return element, ()


def importance_weights(info: Any, normalize: bool) -> tf.Tensor | None:
    """Returns the importance weights in info, or None;
    `normalize` divides by the global batch's greatest.
    """
    found = info.get(WEIGHTS) if isinstance(info, Mapping) else None
    if found is None or not normalize:
        return found
    greatest = tf.reduce_max(found)
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync > 1:
        greatest = tf.reduce_max(context.all_gather(greatest[None], axis=0))
    return found / greatest


def item_errors(extra: Any, name: str | None) -> tuple[tf.Tensor, ...]:
    """Returns the agent's extra metric `name`, one number for each item, (float32 [B],);
    () if `name` is None.

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


def flatten_with_names(values: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of a nest that are not None, with their paths, such as 'a/0';
    in TF's order.
    """
    return [leaf for leaf in nest_utils.flatten_with_joined_paths(values) if leaf[1] is not None]


def is_number(dtype: tf.DType) -> bool:
    """Returns whether values of this dtype have a mean."""
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)


class NonfiniteColumns:
    """The columns with numbers that are not finite, of the batch whose loss is not finite;
    for the error's message.
    """

    def __init__(self) -> None:
        """None has been found yet."""
        self._names: list[str] = []
        # Of any size, as the columns are known in a graph only: a function of TensorFlow that makes
        # a variable is traced a second time.
        self._found = tf.Variable(tf.zeros([0], tf.bool), trainable=False, shape=[None])

    def record(self, element: Any) -> None:
        """Looks at a batch. For a graph."""
        data, _ = split(element)
        columns = [(name, leaf) for name, leaf in flatten_with_names(data) if leaf.dtype.is_floating]
        self._names = [name for name, _ in columns]
        if columns:
            self._found.assign(tf.stack([~tf.reduce_all(tf.math.is_finite(leaf)) for _, leaf in columns]))

    def names(self) -> list[str]:
        """Returns the columns that were found."""
        found = self._found.numpy().tolist()
        return [name for name, bad in zip(self._names, found, strict=False) if bad]
