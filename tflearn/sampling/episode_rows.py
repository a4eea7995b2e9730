"""EpisodeRows: complete episodes -> packed rows, and the rows at which their sequences begin."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.replay.storage import Storage


class EpisodeRows:
    """Makes of episodes the same sequences that a `ChunkBuilder` makes of their steps, for all steps at once.

    Where sequences cross episodes, an episode is continued by the next one that is given with it.
    """

    def __init__(self, storage: Storage):
        """Takes the layout of the rows, and how steps become items (`Slicing`)."""
        slicing = storage.experience.slicing
        self._slicing, self._layout, self._length = slicing, storage.layout, slicing.num_rows
        self._history = 0 if slicing.cross_episodes else slicing.history_steps

    def max_rows(self, num_steps: int, num_episodes: int) -> int:
        """Returns how many rows episodes have at most, of `num_steps` environment steps in all."""
        return num_steps + num_episodes * (1 + self._history + self._length + self._slicing.stride)

    def __call__(self, episodes: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Packs episodes.

        Args:
          episodes: Trajectories of arrays [T, ...] of the storage's spec, each from its FIRST row on. They may end with
            a boundary row (LAST -> FIRST).

        Returns:
          The rows uint8 [N, num_bytes], and the rows that begin a sequence, int64 [S], in their order.
        """
        lengths = [len(episode.step_type) for episode in episodes]
        columns = [np.concatenate(leaves) for leaves in zip(*map(tf.nest.flatten, episodes), strict=True)]
        joined = tf.nest.pack_sequence_as(episodes[0], columns)
        num_rows = sum(lengths)
        rows = self._layout.pack(
            {'begins': np.zeros(num_rows, np.uint8), 'policy_version': np.zeros(num_rows, np.int64)}
            | {'trajectory': joined}
        )
        if self._slicing.cross_episodes:
            return rows, np.arange(0, num_rows - self._length + 1, self._slicing.stride, np.int64)
        begin, end, starts, sources, repeats = 0, 0, [], [], False
        for episode, length in zip(episodes, lengths, strict=True):
            missing, takes_end = self._end(episode)
            number = self._history + length + missing
            starts.append(end + self._starts(number, takes_end))
            repeats |= number > length
            sources.append((begin, length, missing))
            begin, end = begin + length, end + number
        if repeats:
            rows = rows[np.concatenate([self._source(*source) for source in sources])]
        return rows, np.concatenate(starts)

    def _end(self, episode: Any) -> tuple[int, bool]:
        """Returns how often the boundary row is repeated, and whether a sequence ends with the last row in any case."""
        step_type, slicing = episode.step_type, self._slicing
        last = step_type[-1] == ts.StepType.LAST
        if not last:
            return 0, episode.next_step_type[-1] == ts.StepType.FIRST
        age = self._history + len(step_type)
        missing = self._length - slicing.future_steps - age
        if slicing.pad_episodes:
            return (missing if missing > 0 else missing % slicing.stride) + slicing.future_steps, True
        # See `ChunkBuilder`: after a termination nothing is bootstrapped.
        terminated = len(step_type) > 1 and step_type[-2] != ts.StepType.LAST and episode.discount[-2] == 0
        return (self._length - self._history - 2 if terminated else slicing.future_steps), True

    def _starts(self, num_rows: int, takes_end: bool) -> np.ndarray:
        """Returns the rows of an episode that begin a sequence."""
        stride, excess = self._slicing.stride, num_rows - self._length
        starts = np.arange(0, excess + 1, stride, np.int64)
        if takes_end and not self._slicing.pad_episodes and excess > 0 and excess % stride:
            return np.append(starts, excess)  # the stride has passed over the end
        return starts

    def _source(self, begin: int, length: int, missing: int) -> np.ndarray:
        """Returns the packed rows that are an episode's rows, with what is repeated."""
        end = begin + length - 1
        return np.clip(np.arange(begin - self._history, end + missing + 1), begin, end)


def blocks(rows: EpisodeRows, episodes: Iterator[Any], num_rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields rows and starts (see `EpisodeRows`) of several episodes at a time: of about `num_rows` rows."""
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
