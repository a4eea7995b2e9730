"""Recorded episodes in a replay: read from files, added as if environments took their steps."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.errors import UserValueError
from tflearn.experience import Experience
from tflearn.replay.storage import Storage
from tflearn.sampling.local import LoadedReplay
from tflearn.waiting import LOG_EVERY_SECS

_NUM_SLOTS = 64  # episodes that are added side by side


class Episodes(Protocol):
    """Episodes in files, such as a `data.reader.EpisodeReader`.

    Attributes:
      num_steps: environment steps in all files, before any filter.
      num_episodes: episodes in all files, before any filter.
      num_read: episodes read since the beginning.
      directories: the data sets' directories.
    """

    num_read: int
    directories: list[Any]

    @property
    def num_steps(self) -> int: ...

    @property
    def num_episodes(self) -> int: ...

    def episodes(self) -> Iterator[Any]:
        """Yields Trajectories of arrays [T, ...]."""


def load(
    experience: Experience,
    spec: types.NestedTensorSpec,
    episodes: Episodes,
    seed: int,
    batch_size: int | None = None,
) -> LoadedReplay:
    """Returns a replay with all sequences of the episodes.

    Args:
      experience: the run's experience settings, with `Uniform`; its sizes and its ratio have no meaning here.
      spec: the spec of a Trajectory without outer dimensions.
      episodes: the episodes.
      seed: of the draws.
      batch_size: sequences of a batch; None is the experience's.

    Raises:
      ValueError: if they do not fit into `Uniform.max_mirror_gb`, or are all shorter than a sequence.
      RuntimeError: if more records are damaged than the data set allows.
    """
    replay = _make_replay(experience, spec, episodes, seed, batch_size or experience.per_replica_batch_size)
    start = time.monotonic()
    add(replay, episodes, spec)
    replay.finish()
    logging.info(
        'train on %d of %d recorded episodes, in %d directories: %d sequences; read in %.1f s',
        episodes.num_read,
        episodes.num_episodes,
        len(episodes.directories),
        replay.metrics()['replay_size'],
        time.monotonic() - start,
    )
    return replay


def _make_replay(
    experience: Experience, spec: types.NestedTensorSpec, episodes: Episodes, seed: int, batch_size: int
) -> LoadedReplay:
    """Returns an empty replay with room for all sequences of the episodes."""
    settings: Any = experience.replay
    # Boundary rows begin no sequence, but the copies that end an episode may.
    most = episodes.num_steps + episodes.num_episodes * experience.slicing.sequence_length
    replay = dataclasses.replace(settings, max_size=most, min_size=1, samples_per_insert=None, sampling='learner')
    storage = Storage(dataclasses.replace(experience, replay=replay), spec)
    if storage.mirror_bytes > settings.max_mirror_gb * 1e9:
        raise UserValueError(
            f'got {episodes.num_steps} steps, which take {storage.mirror_bytes / 1e9:.1f} GB of memory; need at most '
            f'Uniform.max_mirror_gb={settings.max_mirror_gb}; raise it, or read fewer episodes (Dataset.max_episodes)'
        )
    return LoadedReplay(storage, _NUM_SLOTS, batch_size, seed)


def add(
    write: Callable[[Any, int], None],
    episodes: Episodes,
    spec: types.NestedTensorSpec,
    num_slots: int = _NUM_SLOTS,
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
