"""Recorded episodes in a replay: read from files, added as if environments took their steps."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core.waiting import LOG_EVERY_SECS
from tflearn.data.reader import EpisodeReader


def add(
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
