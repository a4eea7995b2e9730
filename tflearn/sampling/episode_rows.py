"""EpisodeRows: complete episodes -> packed rows, and the rows at which their sequences begin; or steps of a replay."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.experience import Slicing
from tflearn.core.waiting import LOG_EVERY_SECS
from tflearn.data.reader import EpisodeReader
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


def none_long_enough(slicing: Slicing) -> UserValueError:
    """Returns the error to raise for episodes without any sequence."""
    length = slicing.sequence_length
    return UserValueError(f'got no episode of {length} steps or more; need at least one Slicing.sequence_length')


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


def add_to_replay(
    write: Callable[[Any, int], None],
    episodes: EpisodeReader,
    spec: types.NestedTensorSpec,
    num_slots: int,
) -> None:
    """Adds all episodes, `num_slots` of them side by side, as if they came from as many environments.

    Args:
      write: is called with Trajectories of arrays [num_slots, ...] and the policy's version, which is 0.
      episodes: the episodes.
      spec: the spec of a Trajectory without outer dimensions.
      num_slots: the number of environments that `write` is made for.
    """
    found, logged_at = episodes.episodes(), time.monotonic()
    # A row that is in no episode: it begins no sequence.
    nothing = [np.zeros((1, *leaf.shape), leaf.dtype.as_numpy_dtype) for leaf in tf.nest.flatten(spec)]
    nothing = tf.nest.flatten(
        tf.nest.pack_sequence_as(spec, nothing)._replace(
            step_type=np.array([ts.StepType.MID]), next_step_type=np.array([ts.StepType.MID])
        )
    )
    slots: list[list[np.ndarray]] = [[leaf[:0] for leaf in nothing] for _ in range(num_slots)]
    while True:
        for i, leaves in enumerate(slots):
            if not len(leaves[0]) and (episode := next(found, None)) is not None:
                slots[i] = tf.nest.flatten(episode)
        left = [len(leaves[0]) for leaves in slots if len(leaves[0])]
        if not left:
            return
        num_rows = min(left)
        block = [
            np.stack([leaves[k][:num_rows] if len(leaves[k]) else np.repeat(empty, num_rows, 0) for leaves in slots], 1)
            for k, empty in enumerate(nothing)
        ]
        slots = [[leaf[num_rows:] for leaf in leaves] for leaves in slots]
        for t in range(num_rows):
            write(tf.nest.pack_sequence_as(spec, [column[t] for column in block]), 0)
        if time.monotonic() - logged_at > LOG_EVERY_SECS:
            logged_at = time.monotonic()
            logging.info('read %d of %d episodes', episodes.num_read, episodes.num_episodes)
