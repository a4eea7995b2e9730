"""Makes the source of a job's batches: of replay servers, as the experience says, of a feed, or of files."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import tensorflow as tf
from absl import logging
from tf_agents.typing import types

from tflearn.core import agent_data, strategies
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience, Iteration, Prioritized, Queue, Sampling, Uniform
from tflearn.core.settings import PositiveInt, Range, checked_dataclass
from tflearn.core.types import Agent
from tflearn.data.demonstrations import Demonstrations
from tflearn.data.reader import Dataset, EpisodeReader, Part
from tflearn.replay import backend
from tflearn.replay.backend import Shards
from tflearn.replay.reader import DirectReader, TableReader
from tflearn.replay.storage import Storage
from tflearn.sampling import mix
from tflearn.sampling.episode_rows import EpisodeRows
from tflearn.sampling.episode_stream import EpisodeStream
from tflearn.sampling.feed_source import FeedReader, FeedSource
from tflearn.sampling.loaded_episodes import LoadedEpisodes, Order
from tflearn.sampling.minibatches import MinibatchSource
from tflearn.sampling.mirror import ReplayMirror
from tflearn.sampling.mix import Mix
from tflearn.sampling.queue_source import QueueSource
from tflearn.sampling.sampler import PrioritizedSampler, ReplaySampler
from tflearn.sampling.source import Source

# So that demonstrations are drawn independently of the run's own steps.
_DEMONSTRATIONS_SEED = 1 << 32
_SMALL_SIZE = 256
_MOST_FROM_FILES = 1_000  # train steps of a call, after which a job can save, export and validate


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


def make(
    addresses: Sequence[str],
    storage: Storage,
    agent: Agent,
    strategy: tf.distribute.Strategy,
    timeout_secs: float,
    seed: int,
    weights: Sequence[float] = (),
    demonstrations: Demonstrations | None = None,
    fed: bool = False,
) -> Source:
    """Makes the source of batches for this process.

    Args:
      addresses: the replay servers' addresses, 'host:port'; without `weights` they share one replay. Or a feed's.
      storage: the replay tables' layout.
      agent: the agent to train.
      strategy: the strategy that the agent was made in.
      timeout_secs: how long to wait for data.
      seed: the run's seed; each worker draws differently.
      weights: the proportions in which batches mix the servers' items.
      demonstrations: recorded episodes that are in the batches too; None for none.
      fed: whether a feed job at the address feeds this process.

    Raises:
      ValueError: if a batch is too small for its shares, several workers cannot prepare iterations together, or the
        demonstrations cannot be used.
    """
    layout, experience = strategies.layout(strategy), storage.experience
    seed += layout.worker
    logging.info('%s', layout.describe(experience.per_replica_batch_size))
    replicas_here = layout.replicas // layout.workers
    pipeline = layout.worker, layout.workers
    if weights:
        shares = mix.sizes(experience.per_replica_batch_size, weights)
        seeds = range(seed, seed + len(shares) * layout.workers, layout.workers)
        each = zip(addresses, shares, seeds, strict=True)
        given = (
            (Shards((address,)), storage, share * replicas_here, timeout_secs, own) for address, share, own in each
        )
        return Mix([of_replay(*of_table, pipeline) for of_table in given], replicas_here)
    batch_size, replay = experience.per_replica_batch_size * replicas_here, experience.replay
    if isinstance(replay, Queue):
        own = all(address.startswith(backend.IN_PROCESS) for address in addresses)
        reader = FeedReader if fed else DirectReader if own else TableReader
        queue = QueueSource(addresses, storage, batch_size, timeout_secs, seed, reader)
        if not isinstance(replay.training, Iteration):
            return queue
        _check_iteration(agent, layout.workers)
        of_sequences = getattr(agent, 'trains_on_sequences', False)
        return MinibatchSource(queue, agent_data.preparation(agent), replay.training, strategy, seed, of_sequences)
    if fed:
        return FeedSource(addresses[0], storage, replicas_here, timeout_secs)
    shards, fills = Shards(tuple(addresses)), False
    if demonstrations is not None:
        demonstrations.check_mirrored(storage.mirrored)
        fills = demonstrations.fill_replay
    source = of_replay(shards, storage, batch_size, timeout_secs, seed, pipeline, fills)
    return with_demonstrations(source, demonstrations, storage, agent, seed, replicas_here)


def _check_iteration(agent: Agent, num_workers: int) -> None:
    if num_workers > 1 and not agent_data.is_packaged(agent):
        raise UserValueError(
            f'got Queue.training=Iteration(...) with a {type(agent).__name__} on {num_workers} workers, each '
            'of which would have normalizers of its own; need one worker'
        )


def of_replay(
    shards: Shards,
    storage: Storage,
    batch_size: int,
    timeout_secs: float,
    seed: int,
    pipeline: tuple[int, int] = (0, 1),
    begins_filled: bool = False,
) -> Source:
    """Makes the source of a replay's items, which the learner draws from its own memory, or the servers draw.

    Args:
      shards: the replay servers.
      storage: the replay tables' layout.
      batch_size: sequences of a batch, over all replicas of this process.
      timeout_secs: how long to wait for data.
      seed: of the draws.
      pipeline: the index of this worker, and the number of workers. All of them read all streams, and fill their
        mirrors with the tables of their own shards.
      begins_filled: see `ReplayMirror`.
    """
    if storage.mirrored:
        own = shards.of_pipeline(*pipeline)
        return ReplayMirror(shards.addresses, storage, batch_size, timeout_secs, seed, begins_filled, own)
    if isinstance(storage.experience.replay, Prioritized):
        return PrioritizedSampler(shards.addresses, storage, batch_size, timeout_secs, seed)
    return ReplaySampler(shards.addresses[0], storage, batch_size, timeout_secs)


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


def of_one_replica(experience: Experience, num_replicas: int) -> Experience:
    """Returns the experience with which one replica alone has the batches of each of `num_replicas`.

    Raises:
      ValueError: if minibatches, which all replicas share, cannot be divided among them.
    """
    replay = experience.replay
    training = replay.training if isinstance(replay, Queue) else None
    if not isinstance(replay, Queue) or not isinstance(training, Iteration):
        return experience
    steps = training.minibatch_steps
    if steps % num_replicas:
        raise UserValueError(
            f'got Iteration.minibatch_steps={steps} for {num_replicas} replicas; need a number that {num_replicas} '
            f'divides, since each replica gets a batch of the same size; set it to {-(-steps // num_replicas)} times '
            f'{num_replicas}'
        )
    training = dataclasses.replace(training, minibatch_steps=steps // num_replicas)
    return dataclasses.replace(experience, replay=dataclasses.replace(replay, training=training))


def without_content(storage: Storage) -> Storage:
    """Returns a storage whose batches are drawn in the same way, by a source with little memory: for a dry run."""
    experience, replay = storage.experience, storage.experience.replay
    size = min(replay.max_size, _SMALL_SIZE)
    if isinstance(replay, Uniform | Prioritized):
        sampling: Sampling = 'learner' if storage.mirrored else 'server'
        replay = dataclasses.replace(replay, max_size=size, min_size=1, sampling=sampling)
    return dataclasses.replace(storage, experience=dataclasses.replace(experience, replay=replay))


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
    most = EpisodeRows(storage).max_rows(reader.num_steps, reader.num_episodes)
    _streams(storage.experience, most * (storage.layout.num_bytes + 8), Reading('memory'))
    return _loaded(reader, storage, most, batch_size, seed, 'uniform', None, name)


def _loaded(reader: EpisodeReader, storage: Storage, max_rows: int, *settings: Any) -> LoadedEpisodes:
    start = time.monotonic()
    source = LoadedEpisodes(storage, reader.joined(), max_rows, *settings)
    logging.info(
        'train on %d of %d episodes, in %d directories: %d sequences; read in %.1f s',
        reader.num_read,
        reader.num_episodes,
        len(reader.directories),
        source.size,
        time.monotonic() - start,
    )
    return source


def from_files(
    dataset: Dataset,
    experience: Experience,
    data_spec: types.NestedTensorSpec,
    strategy: tf.distribute.Strategy,
    seed: int,
    reading: Reading = Reading(),
    max_epochs: int | None = None,
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

    Raises:
      ValueError: if the data set does not have the columns of the spec, or holds no sequence, or too much for 'memory'.
      RuntimeError: if more records are damaged than the data set allows.
    """
    layout, storage = strategies.layout(strategy), Storage(experience, data_spec)
    replicas_here = layout.replicas // layout.workers
    part = Part(reading.validation.share, pipeline=layout.worker, num_pipelines=layout.workers)
    readers = [EpisodeReader(each, data_spec, part=part) for each in dataset.parts()]
    shares = mix.sizes(experience.per_replica_batch_size, dataset.weights or [1.0])
    max_rows = [EpisodeRows(storage).max_rows(reader.num_steps, reader.num_episodes) for reader in readers]
    streams = _streams(experience, sum(max_rows) * (storage.layout.num_bytes + 8), reading)
    if streams:
        _check_stream(dataset)
    quarter = int(_max_gb(experience) * 1e9 / 4 / storage.layout.num_bytes / len(readers))
    sources: list[Source] = []
    for i, (reader, share, most) in enumerate(zip(readers, shares, max_rows, strict=True)):
        batch_size = share * replicas_here
        if streams:
            window = reading.window_steps or max(1, quarter)
            sources.append(EpisodeStream(storage, reader.shuffled, batch_size, window, seed + i, max_epochs))
        else:
            sources.append(_loaded(reader, storage, most, batch_size, seed + i, reading.order, max_epochs))
    source = Mix(sources, replicas_here, counts=lambda: _counts(readers))
    source.most_owed = _MOST_FROM_FILES
    return source


def validation_episodes(
    dataset: Dataset, experience: Experience, data_spec: types.NestedTensorSpec, share: float
) -> LoadedEpisodes:
    """Returns the sequences of the episodes that `from_files` leaves out; raises as it does."""
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


def _streams(experience: Experience, num_bytes: int, reading: Reading) -> bool:
    """Returns whether episodes are read while training goes on."""
    limit = _max_gb(experience)
    fits = num_bytes <= limit * 1e9
    if reading.storage == 'memory' and not fits:
        raise UserValueError(
            f"got Reading.storage='memory' for data that take {num_bytes / 1e9:.3g} GB; need at most "
            f"Uniform.max_mirror_gb={limit}; raise it, or take 'stream'"
        )
    if reading.storage == 'auto' and not fits:
        logging.info(
            'the data take %.3g GB, more than Uniform.max_mirror_gb=%g: they are read from the files in each epoch, in '
            'a shuffled order',
            num_bytes / 1e9,
            limit,
        )
    return reading.storage == 'stream' or (reading.storage == 'auto' and not fits)


def check_files(experience: Experience) -> Uniform:
    """Returns the replay; raises ValueError if the experience is not for episodes in files."""
    if not isinstance(experience.replay, Uniform):
        raise UserValueError(f'got Experience.replay={experience.replay!r} for episodes in files; need Uniform(...)')
    return experience.replay


def _max_gb(experience: Experience) -> float:
    replay = experience.replay
    if isinstance(replay, Prioritized):
        return replay.max_mirror_gb
    return check_files(experience).max_mirror_gb


def _check_stream(dataset: Dataset) -> None:
    if dataset.max_episodes is not None:
        raise UserValueError(
            f'got Dataset.max_episodes={dataset.max_episodes} for a stream, which reads the files in another order in '
            'each epoch; need None; make a smaller data set by tflearn-data copy --max_episodes'
        )
