"""Recorded episodes in the learner's memory: as demonstrations beside a run's own steps, or to clone."""

import time
from typing import Any

import tensorflow as tf
from absl import logging
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.types import Agent
from tflearn.data import columns
from tflearn.data.demonstrations import Demonstrations
from tflearn.data.reader import Dataset, EpisodeReader, find_directories
from tflearn.replay.storage import Storage
from tflearn.sampling import mix
from tflearn.sampling.episode_rows import EpisodeRows
from tflearn.sampling.loaded_episodes import LoadedEpisodes
from tflearn.sampling.mix import Mix
from tflearn.sampling.source import Source

# So that demonstrations are drawn independently of the run's own steps.
_DEMONSTRATIONS_SEED = 1 << 32


def with_demonstrations(
    source: Source,
    demonstrations: Demonstrations | None,
    storage: Storage,
    agent: Agent,
    seed: int,
    num_replicas: int = 1,
) -> Source:
    """Returns a source whose batches also have demonstrations; `source` itself if they should have none.

    Args:
      source: the source of the run's own items: a `RingSource`.
      demonstrations: the recorded episodes, which are read into memory.
      storage: the replay tables' layout.
      agent: the agent to train.
      seed: of the draws.
      num_replicas: the replicas of this process.

    Raises:
      ValueError: if the episodes do not have the columns that the agent needs, or do not fit into memory.
      RuntimeError: if more records are damaged than the data set allows.
    """
    if demonstrations is None or not demonstrations.are_drawn:
        return source
    batch_size, seed = storage.experience.per_replica_batch_size, seed + _DEMONSTRATIONS_SEED
    demonstrated = loaded(demonstrations.dataset, storage, batch_size * num_replicas, seed, 'demonstrations')
    share, steps = demonstrations.share, demonstrations.num_pretrain_steps
    shares = mix.demonstration_shares(agent.train_step_counter, batch_size, share, steps)
    return Mix([source, demonstrated], num_replicas, shares)


def weighted_spec(dataset: Dataset, data_spec: types.NestedTensorSpec) -> types.NestedTensorSpec:
    """Returns the spec of a Trajectory with the weights of the episodes, if the data sets have some.

    Raises:
      ValueError: if only some have them, or the agent's own policy info has no room.
    """
    if not columns.have_weights(find_directories(dataset)):
        return data_spec
    info = data_spec.policy_info or {}
    if not isinstance(info, dict):
        raise UserValueError(f'got data with weights for an agent with the policy info {info}; need a dict, or none')
    return data_spec._replace(policy_info={**info, columns.WEIGHT: tf.TensorSpec((), tf.float32)})


def loaded(dataset: Dataset, storage: Storage, batch_size: int, seed: int, name: str = 'data') -> LoadedEpisodes:
    """Returns all sequences of recorded episodes in memory, drawn uniformly.

    Args:
      dataset: the episodes; its weights have no meaning here.
      storage: the layout of a row, and how steps become items.
      batch_size: sequences of a batch, over all replicas of this process.
      seed: the seed of the draws.
      name: that of their position in the checkpoint.

    Raises:
      ValueError: if the data set does not have the columns of the spec, or holds no sequence, or does not fit into
        `Uniform.max_mirror_gb`.
      RuntimeError: if more records are damaged than the data set allows.
    """
    reader = EpisodeReader(dataset, storage.data_spec)
    most = max_rows(reader, storage)
    check_memory(storage.experience, num_bytes(most, storage))
    return in_memory(reader, storage, most, batch_size, seed, 'uniform', None, name)


def max_rows(reader: EpisodeReader, storage: Storage) -> int:
    """Returns the most rows that the sequences of a reader's episodes take."""
    return EpisodeRows(storage).max_rows(reader.num_steps, reader.num_episodes)


def num_bytes(rows: int, storage: Storage) -> int:
    """Returns the memory of rows, each with the offset of a sequence [bytes]."""
    return rows * (storage.layout.num_bytes + 8)


def fits(experience: Experience, size: int) -> bool:
    """Returns whether data of that size [bytes] may be in the learner's memory."""
    return size <= experience.replay.max_mirror_gb * 1e9


def check_memory(experience: Experience, size: int) -> None:
    """Raises a ValueError if data of that size [bytes] may not be in the learner's memory."""
    if not fits(experience, size):
        raise UserValueError(
            f"got Reading.storage='memory' for data that take {size / 1e9:.3g} GB; need at most "
            f"Uniform.max_mirror_gb={experience.replay.max_mirror_gb}; raise it, or take 'stream'"
        )


def in_memory(reader: EpisodeReader, storage: Storage, most: int, *settings: Any) -> LoadedEpisodes:
    """Reads the sequences of a reader's episodes; the settings are those of `LoadedEpisodes`."""
    start = time.monotonic()
    source = LoadedEpisodes(storage, reader.joined(), most, *settings)
    logging.info(
        'train on %d of %d episodes, in %d directories: %d sequences; read in %.1f s',
        reader.num_read,
        reader.num_episodes,
        len(reader.directories),
        source.size,
        time.monotonic() - start,
    )
    return source
