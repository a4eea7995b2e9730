"""The source of a run that trains on recorded episodes alone, and how they are read."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

import tensorflow as tf
from absl import logging
from tf_agents.typing import types

from tflearn.core import strategies
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.settings import PositiveInt, Range, checked_dataclass
from tflearn.data.reader import Dataset, EpisodeReader, Part
from tflearn.replay.storage import Storage
from tflearn.sampling import mix, recorded
from tflearn.sampling.episode_stream import EpisodeStream
from tflearn.sampling.loaded_episodes import LoadedEpisodes, OfEpisodes, Order
from tflearn.sampling.mix import Mix

_MOST_STEPS = 1_000  # train steps of a call, after which a job can save, export and validate


@checked_dataclass(frozen=True)
class Validation:
    """What is validated on, and how often; the metrics are `validation/loss` and those of the agent.

    Attributes:
      share: the share of whole episodes that are not trained on; 0 validates nothing. They are held in memory.
      interval_steps: train steps between two validations. One takes place after the learner's call that passes a
        multiple of it.
    """

    share: Annotated[float, Range(least=0, below=1)] = 0.0
    interval_steps: PositiveInt = 1_000


@checked_dataclass(frozen=True)
class Reading:
    """How a data set is read.

    Attributes:
      storage: where its sequences are: all of them in 'memory'; or a 'stream' of them, read from the files in each
        epoch while training goes on, with a window of episodes in memory. 'auto' is 'memory' if that takes at most
        `Uniform.max_mirror_gb`.
      order: 'uniform' draws from memory with replacement. With 'epochs' each sequence is drawn once in an epoch, in
        another order each time, as a stream always does.
      window_steps: environment steps of a stream's window, within which sequences are shuffled; None takes as many as
        need a quarter of `Uniform.max_mirror_gb`. While the next window is read, up to four are in memory.
      validation: which of its episodes are for validation, and how often.
    """

    storage: Literal['auto', 'memory', 'stream'] = 'auto'
    order: Order = 'uniform'
    window_steps: PositiveInt | None = None
    validation: Validation = Validation()


def from_files(
    dataset: Dataset,
    experience: Experience,
    data_spec: types.NestedTensorSpec,
    strategy: tf.distribute.Strategy,
    seed: int,
    reading: Reading = Reading(),
    max_epochs: int | None = None,
    weighs: bool = False,
) -> Mix:
    """Makes a source of batches of recorded episodes. Workers divide the episodes.

    Args:
      dataset: the episodes.
      experience: the run's experience settings, with `Uniform`.
      data_spec: the spec of a Trajectory without outer dimensions.
      strategy: the strategy that the agent was made in.
      seed: the seed of the order.
      reading: how they are read; those for validation are left out.
      max_epochs: passes over the data; None is no limit.
      weighs: see `LoadedEpisodes`.

    Raises:
      ValueError: if the data set does not have the columns of the spec, or holds no sequence, or too much for 'memory'.
      RuntimeError: if more records are damaged than the data set allows.
    """
    data_spec = recorded.weighted_spec(dataset, data_spec)
    layout, storage = strategies.layout(strategy), Storage(experience, data_spec)
    replicas_here = layout.replicas // layout.workers
    part = Part(reading.validation.share, pipeline=layout.worker, num_pipelines=layout.workers)
    readers = [EpisodeReader(each, data_spec, part=part) for each in dataset.parts()]
    shares = mix.sizes(experience.per_replica_batch_size, dataset.weights or [1.0])
    max_rows = [recorded.max_rows(reader, storage) for reader in readers]
    streams = _streams(experience, recorded.num_bytes(sum(max_rows), storage), reading)
    if streams:
        _check_stream(dataset)
    quarter = int(experience.replay.max_mirror_gb * 1e9 / 4 / storage.layout.num_bytes / len(readers))
    sources: list[OfEpisodes] = []
    for i, (reader, share, most) in enumerate(zip(readers, shares, max_rows, strict=True)):
        batch_size = share * replicas_here
        if streams:
            window = reading.window_steps or max(1, quarter)
            sources.append(EpisodeStream(storage, reader.shuffled, batch_size, window, seed + i, max_epochs))
        else:
            own = recorded.in_memory(reader, storage, most, batch_size, seed + i, reading.order, max_epochs)
            sources.append(own)
    for each in sources:
        each.weighs = weighs
    source = Mix(sources, replicas_here, counts=lambda: _counts(readers))
    source.most_owed = _MOST_STEPS
    return source


def validation_episodes(
    dataset: Dataset, experience: Experience, data_spec: types.NestedTensorSpec, share: float
) -> LoadedEpisodes:
    """Returns the sequences of the episodes that `from_files` leaves out; raises as it does."""
    data_spec = recorded.weighted_spec(dataset, data_spec)
    reader = EpisodeReader(dataclasses.replace(dataset, weights=()), data_spec, part=Part(share, validation=True))
    storage = Storage(experience, data_spec)
    try:
        found = LoadedEpisodes(storage, reader.joined(), None, experience.per_replica_batch_size)
    except UserValueError as error:
        raise UserValueError(
            f'got Validation.share={share}, by which {reader.num_read} of {reader.num_episodes} episodes are for '
            f'validation: {error}; raise the share'
        ) from error
    logging.info('validate on %d episodes: %d sequences', reader.num_read, found.size)
    return found


def _counts(readers: Sequence[EpisodeReader]) -> dict[str, float]:
    return {
        'data/episodes': float(sum(reader.num_read for reader in readers)),
        'data/damaged_records': float(sum(reader.num_damaged for reader in readers)),
    }


def _streams(experience: Experience, size: int, reading: Reading) -> bool:
    """Returns whether episodes, which take that memory [bytes], are read while training goes on."""
    if reading.storage == 'memory':
        recorded.check_memory(experience, size)
    if reading.storage != 'auto':
        return reading.storage == 'stream'
    if recorded.fits(experience, size):
        return False
    logging.info(
        'the data take %.3g GB, more than Uniform.max_mirror_gb=%g: they are read from the files in each epoch, in a '
        'shuffled order',
        size / 1e9,
        experience.replay.max_mirror_gb,
    )
    return True


def check(experience: Experience) -> None:
    """Raises a ValueError if the experience is not for episodes in files."""
    if not experience.replay.draws_uniformly:
        raise UserValueError(f'got Experience.replay={experience.replay!r} for episodes in files; need Uniform(...)')


def _check_stream(dataset: Dataset) -> None:
    if dataset.max_episodes is not None:
        raise UserValueError(
            f'got Dataset.max_episodes={dataset.max_episodes} for a stream, which reads the files in another order in '
            'each epoch; need None; make a smaller data set by tflearn data copy --max_episodes'
        )
