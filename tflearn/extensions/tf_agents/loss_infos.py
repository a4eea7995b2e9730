"""LossInfos of TF-Agents' agents, of which a learner returns one of scalars."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.utils import nest_utils

from tflearn.core import summary_tensors
from tflearn.learner.metrics import Reduction, StepMetrics


def with_summary(train: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that returns what `train` does, and the summary tensors that it makes, by tag."""

    def summarized(*args: Any, **kwargs: Any) -> Any:
        with summary_tensors.collecting() as tensors:
            return train(*args, **kwargs), tensors

    return summarized


class LossInfos:
    """LossInfos of all replicas as one vector of metrics, and one LossInfo of scalars from that."""

    def __init__(self, strategy: tf.distribute.Strategy, rules: Mapping[str, Reduction]):
        self._strategy = strategy
        self._layout = StepMetrics(rules, strategy.num_replicas_in_sync)
        self._like: Any = None

    @property
    def size(self) -> int:
        """The vector's length; known once `vector` has been traced."""
        return self._layout.size

    @property
    def is_traced(self) -> bool:
        """Whether `vector` has been traced."""
        return self._like is not None

    def vector(self, loss_info: Any, summary: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the metrics of a step, from what `strategy.run` returned, then its summary tensors."""
        self._like = loss_info._replace(loss=0, extra=tf.nest.map_structure(lambda _: 0, loss_info.extra))

        def of_replica(found: Any) -> Any:
            loss = tf.cast(tf.reduce_sum(found.loss), tf.float32)
            return self._layout.of_replica(loss, found.extra, ())

        metrics = self._layout.over_replicas(self._strategy, *self._strategy.run(of_replica, (loss_info,)))
        return tf.concat([metrics, *self._layout.of_summary(summary)], axis=0)

    def read_summary(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the summary tensors by tag."""
        return self._layout.read_summary(vector)

    def read(self, vector: np.ndarray) -> Any:
        """Returns a LossInfo of float32 scalars; extras that are not numbers are None."""
        sums, extra = self._layout.read(vector).sums, self._like.extra
        names = (f'extra/{name}' for name, _ in nest_utils.flatten_with_joined_paths(extra))
        values = [tf.constant(sums[name], tf.float32) if name in sums else None for name in names]
        loss = tf.constant(sums['loss'], tf.float32)
        return self._like._replace(loss=loss, extra=tf.nest.pack_sequence_as(extra, values))
