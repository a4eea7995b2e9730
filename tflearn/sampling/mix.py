"""Mix: batches of several sources, with a share of the items from each."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.experience import Scheduled
from tflearn.core.settings import checked
from tflearn.core.types import DEMONSTRATED, WEIGHTS
from tflearn.sampling.source import Batch, Source

# Returns how many items of a replica's batch are of each source now, and the train steps for which that holds.
Shares = Callable[[], tuple[Sequence[int], int]]

_STEPS_PER_CALL = 200  # of training before collection, in a process that acts and trains alternately


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


@checked
def demonstration_shares(
    train_step: tf.Variable, batch_size: int, share: Scheduled = 0.0, num_pretrain_steps: int = 0
) -> Shares:
    """Returns the shares of a run's own items and of demonstrations in the batches of a `Mix`.

    During the first `num_pretrain_steps` train steps all items are demonstrations, and the run's own replay may be
    empty; after them at least one item is not.

    Args:
      train_step: the learner's train step.
      batch_size: items of one replica's batch.
      share: the share of demonstrations in a batch, or a schedule; it is rounded to items.
      num_pretrain_steps: train steps with demonstrations alone.
    """

    def shares() -> tuple[Sequence[int], int]:
        step = int(train_step.numpy())
        if step < num_pretrain_steps:
            return (0, batch_size), min(num_pretrain_steps - step, _STEPS_PER_CALL)
        now = share(tf.constant(step, tf.int64)) if callable(share) else share
        demonstrated = max(0, min(batch_size - 1, round(batch_size * float(now))))
        return (batch_size - demonstrated, demonstrated), sys.maxsize

    return shares


class Mix(Source):
    """A `Source` of several ones. Each batch has items of each of them, as many in each replica's part.

    Shares that may change are decided at each `grant`, so they stay the same during one call of the compiled program.
    The first source is then the run's own, whose items alone count as its samples and have policy versions.
    Datasets (`DatasetSource`) have batches of fixed shape, and shares that do not change. It ends where one of them
    ends.

    Attributes:
      sources: the sources, which are closed with it.
      max_draw_steps: the least of theirs.
      most_owed: train steps that can be taken at once, at most. A job may choose less.
    """

    _KEPT = ('_surplus',)

    def __init__(
        self,
        sources: Sequence[Source],
        num_replicas: int = 1,
        shares: Shares | None = None,
        counts: Callable[[], Mapping[str, Any]] = dict,
    ):
        """
        Args:
          sources: sources of the same data. Without `shares`, the batches of each hold its items for all replicas here.
          num_replicas: the replicas of this process; each gets equal parts of all sources.
          shares: how many items are of each source; None if that does not change.
          counts: returns further metrics.
        """
        self.sources, self._num_replicas, self._shares, self._counts = tuple(sources), num_replicas, shares, counts
        self.max_draw_steps = min(source.max_draw_steps for source in sources)
        self.reads_in_draws = any(source.reads_in_draws for source in sources)
        self.most_owed = sys.maxsize
        self._surplus = [0] * len(self.sources)
        self._per_batch: Sequence[int] = ()  # items of a replica's batch that are of each source, if they may change
        if shares:
            self.prioritization = self.sources[0].prioritization
            with tf.device('CPU:0'):
                self._sizes = tf.Variable([0] * len(self.sources), dtype=tf.int32, trainable=False)
            self._set_sizes()

    @property
    def error(self) -> Exception | None:
        """The first error of a source."""
        return next((source.error for source in self.sources if source.error), None)

    @property
    def ended(self) -> bool:
        """Whether the data of a source that has an end are over."""
        return any(source.ended for source in self.sources)

    @property
    def owed_steps(self) -> int:
        """See `Source`."""
        used, steps = self._set_sizes()
        return min(steps, self.most_owed, *(self.sources[i].owed_steps for i in used))

    def end_collection(self) -> None:
        """See `Source`."""
        for source in self.sources:
            source.end_collection()

    def metrics(self) -> dict[str, Any]:
        """Returns the sources' metrics, of the second, third, ... with the suffixes _1, _2, ...; and further ones.

        With shares that may change, those of the first source, and the share of the others in the newest batches.
        """
        if self._shares:
            return {**self.sources[0].metrics(), 'demonstration_share': sum(self._per_batch[1:]) / sum(self._per_batch)}
        own = {
            f'{name}_{i}' if i else name: value
            for i, source in enumerate(self.sources)
            for name, value in source.metrics().items()
        }
        return {**own, **self._counts()}

    def state(self) -> dict[str, Any]:
        """Returns the sources' states; of the second, third, ... with the suffixes _1, _2, ... if names are equal."""
        found: dict[str, Any] = {}
        for i, source in enumerate(self.sources):
            found |= {f'{name}_{i}' if name in found else name: state for name, state in source.state().items()}
        return found

    def content(self) -> dict[str, Any]:
        """See `Resumable`."""
        return {**super().content(), 'sources': [source.content() for source in self.sources]}

    def set_content(self, content: Mapping[str, Any]) -> None:
        """See `Resumable`."""
        super().set_content(content)
        for source, own in zip(self.sources, content['sources'], strict=True):
            source.set_content(own)

    def close(self) -> None:
        """See `Source`."""
        for source in self.sources:
            source.close()

    def grant(self, num_steps: int) -> int:
        """See `Source`: as many as all sources grant. What one grants beyond that is kept for the next call.

        It waits for a source only if these steps need its items.
        """
        used, steps = self._set_sizes()
        wanted = min(num_steps, steps)
        for i in used:
            self._surplus[i] = self._surplus[i] or self.sources[i].grant(wanted)
            wanted = min(wanted, self._surplus[i])
            if not wanted:
                return 0
        for i in used:
            self._surplus[i] -= wanted
        return wanted

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> tuple[Any, ...]:
        """See `Source`."""
        del batch_size
        counts = tf.unstack(self._sizes.read_value()) if self._shares else [None] * len(self.sources)
        pairs = zip(self.sources, counts, strict=True)
        drawn = tuple(source.draw(num_steps, seed, count) for source, count in pairs)
        if self.reads_in_draws:  # some of them may have fewer batches than the others
            count = self.num_drawn(drawn)
            for source, own in zip(self.sources, drawn, strict=True):
                source.put_back(own, count)
        return drawn

    def num_drawn(self, drawn: tuple[Any, ...]) -> tf.Tensor:
        """See `Source`. Returns the least of theirs."""
        pairs = zip(self.sources, drawn, strict=True)
        return tf.reduce_min([source.num_drawn(own) for source, own in pairs if source.reads_in_draws])

    def put_back(self, drawn: tuple[Any, ...], first: tf.Tensor, last: tf.Tensor | None = None) -> None:
        """See `Source`."""
        last = self.num_drawn(drawn) if last is None and self.reads_in_draws else last
        for source, own in zip(self.sources, drawn, strict=True):
            source.put_back(own, first, last)

    @property
    def waiting_secs(self) -> float:  # type: ignore[override]
        """See `Source`."""
        return max(source.waiting_secs for source in self.sources)

    @property
    def num_consumed(self) -> int:  # type: ignore[override]
        """See `Source`: each of the sources has a batch in each of the mix."""
        return self.sources[0].num_consumed

    @num_consumed.setter
    def num_consumed(self, count: int) -> None:
        for source in self.sources:
            source.num_consumed = count

    def batch(self, drawn: tuple[Any, ...], i: tf.Tensor) -> Batch:
        """See `Source`. Returns the items of all sources, in each replica's part in the order of the sources.

        With shares that may change, items of other sources than the first have the mean policy version of its items,
        and importance weights of 1, if there are any; and the info says which they are.
        """
        parts = [source.batch(own, i) for source, own in zip(self.sources, drawn, strict=True)]
        if len(parts) == 1:
            return parts[0]
        if self._shares:
            versions = parts[0][1]['policy_version']
            mean = tf.reduce_sum(versions) // tf.maximum(tf.size(versions, tf.int64), 1)
            parts[0][1][DEMONSTRATED] = tf.zeros(tf.shape(versions)[:1], tf.bool)
            for _, info in parts[1:]:
                shape = tf.shape(info['policy_version'])
                info |= {'policy_version': tf.fill(shape, mean), DEMONSTRATED: tf.ones(shape[:1], tf.bool)}
                if WEIGHTS in parts[0][1]:
                    info[WEIGHTS] = tf.ones(shape[:1])
        return tf.nest.map_structure(self._joined, *parts)

    def update(self, step: int, errors: np.ndarray) -> None:
        """See `Source`: the first source gets the errors of its items."""
        if self._shares:
            own, num_steps = self._per_batch[0], len(errors)
            parts = errors.reshape(num_steps, self._num_replicas, -1)
            self.sources[0].update(step, parts[:, :, :own].reshape(num_steps, -1))

    def _joined(self, *columns: tf.Tensor) -> tf.Tensor:
        shape = columns[0].shape[1:]
        parts = [tf.reshape(column, [self._num_replicas, -1, *shape]) for column in columns]
        size = sum(self._per_batch) * self._num_replicas if self._shares else sum(column.shape[0] for column in columns)
        return tf.reshape(tf.concat(parts, axis=1), [size, *shape])

    def _set_sizes(self) -> tuple[Sequence[int], int]:
        """Sets how many items the next batches have of each source. Returns those that have some, and for how long."""
        if not self._shares:
            return range(len(self.sources)), sys.maxsize
        counts, steps = self._shares()
        if counts != self._per_batch:
            self._per_batch = counts
            total = [count * self._num_replicas for count in counts]
            self.sources[0].batch_size = total[0]
            self._sizes.assign(total)
        return [i for i, count in enumerate(counts) if count], steps
