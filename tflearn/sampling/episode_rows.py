"""EpisodeRows: complete episodes -> packed rows, and the rows at which their sequences begin."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.replay.chunks import pack
from tflearn.replay.sequence_rule import FIRST, LAST, SequenceRule, UnusedSteps, ends_episode, ranges, terminates
from tflearn.replay.storage import Storage


class EpisodeRows:
    """Makes of episodes the same sequences that a `ChunkBuilder` makes of their steps, for all steps at once.

    Where sequences cross episodes, an episode is continued by the next one that is given with it.
    """

    def __init__(self, storage: Storage):
        """Takes the layout of the rows, and how steps become items (`Slicing`)."""
        slicing = storage.experience.slicing
        self._slicing, self._layout, self._rule = slicing, storage.layout, SequenceRule(slicing)
        self._unused = UnusedSteps(slicing)

    def max_rows(self, num_steps: int, num_episodes: int) -> int:
        """Returns how many rows episodes have at most, of `num_steps` environment steps in all."""
        return num_steps + num_episodes * (1 + self._rule.history + self._rule.length + self._slicing.stride)

    def __call__(self, episodes: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Packs episodes.

        Args:
          episodes: Trajectories of arrays [T, ...] of the storage's spec, each of one or several episodes from their
            FIRST rows on. They may end with a boundary row (LAST -> FIRST).

        Returns:
          The rows uint8 [N, num_bytes], and the rows that begin a sequence, int64 [S], in their order.

        Raises:
          ValueError: if many episodes were given, and all are too short for a sequence.
        """
        leaves = zip(*map(tf.nest.flatten, episodes), strict=True)
        columns = [column[0] if len(column) == 1 else np.concatenate(column) for column in leaves]
        joined = tf.nest.pack_sequence_as(episodes[0], columns)
        num_rows = len(joined.step_type)
        rows = pack(self._layout, joined, policy_version=0)
        if self._slicing.cross_episodes:
            return rows, np.arange(0, num_rows - self._rule.length + 1, self._slicing.stride, np.int64)
        begins = np.flatnonzero(joined.step_type == FIRST)
        ends = np.append(begins[1:], num_rows) - 1
        has_boundary = joined.step_type[ends] == LAST
        terminated = (ends > begins) & terminates(joined.step_type[ends - 1], joined.discount[ends - 1])
        history, ages = self._rule.history, self._rule.history + ends + 1 - begins
        repeats = self._rule.repeats(ages, has_boundary, terminated)
        ages += repeats
        if history or repeats.any():
            sources, index = ranges(ages)
            rows = rows[np.clip(begins[sources] - history + index, begins[sources], ends[sources])]
        self._unused.add(ends + 1 - begins - has_boundary, ages < self._rule.length)
        takes_end = ends_episode(joined.step_type[ends], joined.next_step_type[ends])
        sources, offsets = self._rule.offsets(ages, takes_end)
        return rows, (np.cumsum(ages) - ages)[sources] + offsets


def blocks(rows: EpisodeRows, episodes: Iterator[Any], num_rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields rows and starts (see `EpisodeRows`) of several Trajectories at a time: of about `num_rows` rows."""
    waiting: list[Any] = []
    count = 0
    for episode in episodes:
        waiting.append(episode)
        count += len(episode.step_type)
        if count >= num_rows:
            yield rows(waiting)
            waiting, count = [], 0
    if waiting:
        yield rows(waiting)
