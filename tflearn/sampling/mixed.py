"""MixedSource: batches of several tables, a fixed share of the items from each."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.types import BatchSource


def sizes(batch_size: int, weights: Sequence[float]) -> list[int]:
    """Divides the items of a batch by weights: each share is rounded, the sum is exact (largest remainders).

    Args:
      batch_size: items of one replica's batch.
      weights: above 0, one for each table.

    Raises:
      ValueError: if a weight is not above 0, or a table would get no item.
    """
    if not weights or any(not weight > 0 for weight in weights):
        raise UserValueError(f'got weights={tuple(weights)}; need numbers above 0, one for each table')
    exact = [batch_size * weight / sum(weights) for weight in weights]
    whole = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (whole[i] - exact[i], i))
    for i in by_remainder[: batch_size - sum(whole)]:
        whole[i] += 1
    if 0 in whole:
        raise UserValueError(
            f'got weights={tuple(weights)} for batches of {batch_size} items on each replica, of which a table '
            'would get none; need larger batches, or weights closer to each other'
        )
    return whole


class MixedSource:
    """A `BatchSource` of several ones. Each batch has the same number of items of each of them.

    Attributes:
      sources: the sources, which are closed with it.
      max_draw_steps: the least of theirs.
    """

    def __init__(self, sources: Sequence[BatchSource], num_replicas: int = 1):
        """
        Args:
          sources: sources of the same data; the batches of each hold its share of the items, for all replicas here.
          num_replicas: the replicas of this process; each gets equal parts of all sources.
        """
        self.sources, self._num_replicas = tuple(sources), num_replicas
        self.max_draw_steps = min(source.max_draw_steps for source in sources)
        self._surplus = [0] * len(self.sources)

    @property
    def error(self) -> Exception | None:
        """The first error of a source."""
        return next((source.error for source in self.sources if source.error), None)

    def metrics(self) -> dict[str, Any]:
        """Returns the sources' metrics; of the second, third, ... with the suffixes _1, _2, ..."""
        return {
            f'{name}_{i}' if i else name: value
            for i, source in enumerate(self.sources)
            for name, value in getattr(source, 'metrics', dict)().items()
        }

    def close(self) -> None:
        """See `BatchSource`."""
        for source in self.sources:
            source.close()

    def grant(self, num_steps: int) -> int:
        """See `BatchSource`: as many as all sources grant. What one grants beyond that is kept for the next call."""
        wanted = min(num_steps, self.max_draw_steps)
        for i, source in enumerate(self.sources):
            self._surplus[i] = self._surplus[i] or source.grant(wanted)
            wanted = min(wanted, self._surplus[i])
            if not wanted:
                return 0
        self._surplus = [surplus - wanted for surplus in self._surplus]
        return wanted

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor) -> tuple[Any, ...]:
        """See `BatchSource`."""
        return tuple(source.draw(num_steps, seed) for source in self.sources)

    def batch(self, drawn: tuple[Any, ...], i: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]:
        """See `BatchSource`. Returns the items of all sources, in each replica's part in the order of the sources."""
        if len(self.sources) == 1:
            return self.sources[0].batch(drawn[0], i)
        parts = [source.batch(own, i) for source, own in zip(self.sources, drawn, strict=True)]
        return tf.nest.map_structure(self._joined, *parts)

    def _joined(self, *columns: tf.Tensor) -> tf.Tensor:
        divided = [tf.split(column, self._num_replicas) for column in columns]
        return tf.concat([own[replica] for replica in range(self._num_replicas) for own in divided], axis=0)
