"""StepMetrics: all numbers that train steps tell, as one vector that is summed over the steps."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tflearn.learner.batch_structure import flatten_with_names, is_number

Reduction = Literal['mean', 'sum', 'max', 'min']

_REDUCTIONS = {'mean': tf.reduce_mean, 'sum': tf.reduce_sum, 'max': tf.reduce_max, 'min': tf.reduce_min}
_MAX_DEFERRED_SIZE = 1024

COUNT, LOSS = 0, 1  # places in the vector


class StepMetrics:
    """Where the loss, the agent's extra metrics and the data's own lie in a vector.

    An operation for each metric would cost more than a small train step does. So means and sums of small tensors are
    left for `read`, after the sum over the steps; then a step needs one concatenation and one addition for them all.
    """

    def __init__(self, rules: Mapping[str, Reduction], num_replicas: int, with_info: bool = True):
        """Learns the places when a step is traced.

        Args:
          rules: by the name of a metric. Of all others it is 'mean'; but 'sum' for the losses in a named tuple, as
            TF-Agents' agents return them: each scalar whose name ends with 'loss' is a replica's share of the global
            batch's, like the loss itself.
          num_replicas: of the strategy.
          with_info: whether the data's own metrics are wanted.
        """
        self._rules, self._num_replicas, self._with_info = rules, num_replicas, with_info
        self._sizes: dict[tuple[str, str], int] = {}
        self._summed: set[tuple[str, str]] = set()
        self._extremes: list[tuple[str, str]] = []

    @property
    def size(self) -> int:
        """Of the vector; known once a step was traced."""
        return 2 + sum(self._sizes.values()) + len(self._extremes)

    def of_replica(self, loss: tf.Tensor, extra: Any, info: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns a replica's metrics: those that are to be summed, float32 [n], and a [1] for each extreme one.

        Args:
          loss: scalar, this replica's share.
          extra: nest of the agent's extra metrics; what is no number is left out.
          info: nest of the data's own.
        """
        parts, extremes = [tf.constant([1.0 / self._num_replicas]), loss[None]], []
        self._extremes = []
        for kind, values in (('extra', extra), ('info', info if self._with_info else ())):
            for name, value in flatten_with_names(values):
                tensor = tf.convert_to_tensor(value)
                if not is_number(tensor.dtype):
                    continue
                tensor = tf.cast(tensor, tf.float32)
                is_share = kind == 'extra' and hasattr(extra, '_fields') and _is_loss(name, tensor)
                rule = self._rules.get(name, 'sum' if is_share else 'mean')
                if rule in ('max', 'min'):
                    extremes.append(_REDUCTIONS[rule](tensor)[None])
                    self._extremes.append((kind, name))
                    continue
                parts.append(self._linear((kind, name), tensor, rule))
        return tf.concat(parts, axis=0), extremes

    def _linear(self, place: tuple[str, str], tensor: tf.Tensor, rule: Reduction) -> tf.Tensor:
        size = tensor.shape.num_elements()
        if rule == 'sum':
            self._summed.add(place)
        if place not in self._sizes:
            self._sizes[place] = size if size and size <= _MAX_DEFERRED_SIZE else 1
        if size == self._sizes[place]:
            return tf.reshape(tensor, [-1])
        # Too large, of no fixed size, or traced before for another batch size.
        number = tf.reduce_mean(tensor) if rule == 'mean' else tf.reduce_sum(tensor) / self._sizes[place]
        return tf.fill([self._sizes[place]], number)

    def over_replicas(self, strategy: tf.distribute.Strategy, summed: Any, extremes: list[Any]) -> tf.Tensor:
        """Returns the vector of the whole step, from what `of_replica` gave on each replica."""
        vector = strategy.reduce(tf.distribute.ReduceOp.SUM, summed, axis=None)
        if not extremes:
            return vector
        if self._num_replicas > 1:
            extremes = [
                _REDUCTIONS[self._rules[name]](strategy.gather(part, axis=0))[None]
                for part, (_, name) in zip(extremes, self._extremes, strict=True)
            ]
        return tf.concat([vector, *extremes], axis=0)

    def read(self, vector: np.ndarray) -> tuple[int, float, dict[str, float], dict[str, float]]:
        """Reads a sum of vectors.

        Returns:
          How many vectors were summed; their losses, the agent's metrics and the data's, each summed over them.
        """
        found: dict[str, dict[str, float]] = {'extra': {}, 'info': {}}
        place = 2
        for (kind, name), size in self._sizes.items():
            total = float(vector[place : place + size].sum())
            found[kind][name] = total if (kind, name) in self._summed else total / (size * self._num_replicas)
            place += size
        for (kind, name), value in zip(self._extremes, vector[place:], strict=True):
            found[kind][name] = float(value)
        return round(float(vector[COUNT])), float(vector[LOSS]), found['extra'], found['info']


def _is_loss(name: str, tensor: tf.Tensor) -> bool:
    return tensor.shape.rank == 0 and name.endswith('loss')
