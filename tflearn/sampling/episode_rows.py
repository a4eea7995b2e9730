"""EpisodeRows: complete episodes -> packed rows, and the rows at which their sequences begin."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.replay.chunks import UnusedSteps
from tflearn.replay.storage import Storage

_FIRST, _LAST = int(ts.StepType.FIRST), int(ts.StepType.LAST)


class EpisodeRows:
    """Makes of episodes the same sequences that a `ChunkBuilder` makes of their steps, for all steps at once.

    Where sequences cross episodes, an episode is continued by the next one that is given with it.
    """

    def __init__(self, storage: Storage):
        """Takes the layout of the rows, and how steps become items (`Slicing`)."""
        slicing = storage.experience.slicing
        self._slicing, self._layout, self._length = slicing, storage.layout, slicing.num_rows
        self._history = 0 if slicing.cross_episodes else slicing.history_steps
        self._unused = UnusedSteps(slicing)

    def max_rows(self, num_steps: int, num_episodes: int) -> int:
        """Returns how many rows episodes have at most, of `num_steps` environment steps in all."""
        return num_steps + num_episodes * (1 + self._history + self._length + self._slicing.stride)

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
        rows = self._layout.pack(
            {'begins': np.zeros(num_rows, np.uint8), 'policy_version': np.zeros(num_rows, np.int64)}
            | {'trajectory': joined}
        )
        if self._slicing.cross_episodes:
            return rows, np.arange(0, num_rows - self._length + 1, self._slicing.stride, np.int64)
        begins = np.flatnonzero(joined.step_type == _FIRST)
        ends = np.append(begins[1:], num_rows) - 1
        repeats, takes_end = self._ends(joined, begins, ends)
        lengths = self._history + ends + 1 - begins + repeats
        if self._history or repeats.any():
            sources, index = _ranges(lengths)
            rows = rows[np.clip(begins[sources] - self._history + index, begins[sources], ends[sources])]
        stride, excess = self._slicing.stride, lengths - self._length
        has_boundary = joined.step_type[ends] == _LAST
        self._unused.add(ends + 1 - begins - has_boundary, excess < 0)
        # Where the stride passes over the end, one more sequence ends there.
        passes_over = takes_end & (not self._slicing.pad_episodes) & (excess > 0) & (excess % stride > 0)
        sources, index = _ranges(np.where(excess < 0, 0, excess // stride + 1 + passes_over))
        return rows, (np.cumsum(lengths) - lengths)[sources] + np.minimum(index * stride, excess[sources])

    def _ends(self, joined: Any, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns for each episode how often its boundary row is repeated, int64 [E]; and whether a sequence ends with
        its last row in any case, bool [E]."""
        slicing, step_type = self._slicing, joined.step_type
        has_boundary = step_type[ends] == _LAST
        takes_end = has_boundary | (joined.next_step_type[ends] == _FIRST)
        if slicing.pad_episodes and slicing.stride == 1:
            repeats = np.full(len(ends), self._length - self._history - 2)
        elif slicing.pad_episodes:
            missing = self._length - slicing.future_steps - (self._history + ends + 1 - begins)
            repeats = np.where(missing > 0, missing, missing % slicing.stride) + slicing.future_steps
        else:
            # See `ChunkBuilder`: after a termination nothing is bootstrapped.
            terminated = (ends > begins) & (step_type[ends - 1] != _LAST) & (joined.discount[ends - 1] == 0)
            repeats = np.where(terminated, self._length - self._history - 2, slicing.future_steps)
        return np.where(has_boundary, repeats, 0), takes_end


def _ranges(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns for ranges of these lengths, one after the other: the number of each element's range, and its index."""
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    return numbers, np.arange(len(numbers)) - (np.cumsum(lengths) - lengths)[numbers]


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
