"""Recorded data as datasets for a `Learner`:
functions of an `InputContext`, whose position checkpoints hold.

    from tflearn.api import datasets

    dataset_fn = datasets.of_episodes(Dataset(['data/expert']), experience, agent.collect_data_spec)
    tflearn.Learner(agent, dataset_fn, tflearn.RunDir('runs/bc')).run(1_000)

Each returns batches for one replica, of which each item comes once in an epoch, in another order
each time. Several input pipelines (workers, hosts) divide the items. All but `of_tfrecord` hold
their items in memory: episodes that do not fit there are streamed by `tflearn train-offline`.
"""

import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.experience import Experience
from tflearn.data import arrays, conversion
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.environments import spaces
from tflearn.replay.chunks import with_version
from tflearn.replay.storage import Storage
from tflearn.sampling import episode_rows
from tflearn.sampling.loaded_episodes import block_rows
from tflearn.sampling.source import DatasetFn


def of_arrays(items: Any, batch_size: int, seed: int = 0, epochs: int | None = None) -> DatasetFn:
    """Returns a function of datasets of items in memory.

    Args:
      items: a nest of arrays [N, ...], such as `Examples`.
      batch_size: items of one replica's batch.
      seed: the seed of the order.
      epochs: passes over the items; None has no limit, which several workers need.
    """
    with tf.device('CPU:0'):
        columns = tf.nest.map_structure(tf.constant, items)
    num_items = len(tf.nest.flatten(columns)[0])

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        # Of indices alone, so that little is shuffled, and saved with the position.
        mine = tf.data.Dataset.range(context.input_pipeline_id, num_items, context.num_input_pipelines)
        chosen = mine.shuffle(num_items, seed=seed).repeat(epochs).batch(batch_size, drop_remainder=True)
        return chosen.map(lambda indices: tf.nest.map_structure(lambda column: tf.gather(column, indices), columns))

    return dataset_fn


def of_episodes(
    dataset: Dataset,
    experience: Experience,
    data_spec: types.NestedTensorSpec,
    seed: int = 0,
    epochs: int | None = None,
) -> DatasetFn:
    """Returns a function of datasets of the sequences of episodes in files of tflearn.

    Args:
      dataset: the episodes; its weights have no meaning here.
      experience: how steps become items, and the size of a batch.
      data_spec: the spec of a Trajectory without outer dimensions: the agent's `collect_data_spec`.
      seed: see `of_arrays`.
      epochs: see `of_arrays`.

    Raises:
      ValueError: if the data set does not have the columns of the spec, or holds no sequence.
      RuntimeError: if more records are damaged than the data set allows.
    """
    storage, found, num_rows = Storage(experience, data_spec), [], 0
    episodes = EpisodeReader(dataset, data_spec).joined()
    for rows, starts in episode_rows.blocks(episode_rows.EpisodeRows(storage), episodes, block_rows(storage)):
        found.append((rows, num_rows + starts))
        num_rows += len(rows)
    all_rows, all_starts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if not len(all_starts):
        raise episode_rows.none_long_enough(experience.slicing)
    with tf.device('CPU:0'):
        memory, offsets = tf.constant(all_rows), tf.range(experience.slicing.num_rows, dtype=tf.int64)
    begins = of_arrays(all_starts, experience.per_replica_batch_size, seed, epochs)

    def sequences(starts: tf.Tensor) -> Any:
        return with_version(storage.layout.unpack(tf.gather(memory, starts[:, None] + offsets)))

    return lambda context: begins(context).map(sequences)


def of_rlds(path: str, *settings: Any, **more: Any) -> DatasetFn:
    """Returns a function of datasets of episodes in RLDS or Minari;
    the settings are those of `of_episodes`.
    """
    with tempfile.TemporaryDirectory() as directory:
        converted = pathlib.Path(directory, 'episodes')
        conversion.convert(Dataset([path]), converted, conversion.TFLEARN, spaces)
        return of_episodes(Dataset([str(converted)]), *settings, **more)


def of_steps(
    observation: Any,
    action: Any,
    reward: np.ndarray,
    experience: Experience,
    data_spec: types.NestedTensorSpec,
    seed: int = 0,
    epochs: int | None = None,
    **columns: Any,
) -> DatasetFn:
    """Returns a function of datasets of steps in arrays [N, ...];
    `columns` are more ones, see `arrays.from_arrays`.
    """
    with tempfile.TemporaryDirectory() as directory:
        arrays.from_arrays(directory, observation, action, reward, **columns)
        return of_episodes(Dataset([directory]), experience, data_spec, seed, epochs)


def of_tfrecord(
    paths: Sequence[str],
    parse: Callable[[tf.Tensor], Any],
    batch_size: int,
    seed: int = 0,
    epochs: int | None = None,
    shuffled: int = 10_000,
) -> DatasetFn:
    """Returns a function of datasets of records in files, which are read while training goes on.

    Args:
      paths: the files. Input pipelines divide them; if there are fewer, their records.
      parse: a record -> an item, in operations of TensorFlow.
      batch_size: see `of_arrays`.
      seed: see `of_arrays`.
      epochs: see `of_arrays`.
      shuffled: records among which the next one is drawn.
    """

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        share = context.num_input_pipelines, context.input_pipeline_id
        files = tf.data.Dataset.from_tensor_slices(list(paths))
        divides_files = len(paths) >= share[0]
        records = (files.shard(*share) if divides_files else files).interleave(tf.data.TFRecordDataset)
        records = records if divides_files else records.shard(*share)
        shuffled_records = records.shuffle(shuffled, seed=seed).repeat(epochs)
        return shuffled_records.map(parse).batch(batch_size, drop_remainder=True)

    return dataset_fn
