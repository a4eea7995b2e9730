"""The source of a train job's batches: a replay server, chosen by its experience, or episodes in files."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tf_agents.typing import types

from tflearn.core import strategies
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience, Iteration, Prioritized, Queue, Reuse, Sampling, Uniform
from tflearn.core.types import Agent
from tflearn.data.demonstrations import Demonstrations
from tflearn.data.reader import Dataset, EpisodeReader, Part
from tflearn.jobs.train_settings import Reading
from tflearn.learner import agent_data
from tflearn.learner.minibatches import MinibatchSource
from tflearn.replay import backend
from tflearn.replay.reader import DirectReader, TableReader
from tflearn.replay.shards import Shards
from tflearn.replay.storage import Storage
from tflearn.sampling import mixed
from tflearn.sampling.episode_rows import EpisodeRows
from tflearn.sampling.episode_stream import EpisodeStream, FileSource
from tflearn.sampling.feed_source import FeedReader, FeedSource
from tflearn.sampling.hybrid import HybridSource
from tflearn.sampling.loaded_episodes import LoadedEpisodes
from tflearn.sampling.mirror import ReplayMirror
from tflearn.sampling.mixed import MixedSource
from tflearn.sampling.prioritized_mirror import PrioritizedMirror
from tflearn.sampling.queue_source import QueueSource
from tflearn.sampling.sampler import PrioritizedSampler, ReplaySampler

Source = ReplayMirror | ReplaySampler | QueueSource | MinibatchSource | MixedSource | HybridSource | FeedSource
# So that demonstrations are drawn independently of the run's own steps.
_DEMONSTRATIONS_SEED = 1 << 32
_SMALL_SIZE = 256


def make(
    addresses: Sequence[str],
    storage: Storage,
    agent: Agent,
    placement: tf.distribute.Strategy,
    timeout_secs: float,
    seed: int,
    weights: Sequence[float] = (),
    demonstrations: Demonstrations | None = None,
) -> Source:
    """Makes the source of batches for this process.

    Args:
      addresses: the replay servers' addresses, 'host:port'; without `weights` they share one replay.
      storage: the replay tables' layout.
      agent: the agent to train.
      placement: the strategy that the agent was made in.
      timeout_secs: how long to wait for data.
      seed: the run's seed; each worker draws differently.
      weights: the proportions in which batches mix the servers' items.
      demonstrations: recorded episodes that are in the batches too; None for none.

    Raises:
      ValueError: if a batch is too small for its shares, several workers cannot prepare iterations together, or the
        demonstrations cannot be used.
    """
    layout, experience = strategies.layout(placement), storage.experience
    seed += layout.worker
    logging.info('%s', layout.describe(experience.per_replica_batch_size))
    replicas_here = layout.replicas // layout.workers
    if weights:
        shares = mixed.sizes(experience.per_replica_batch_size, weights)
        seeds = range(seed, seed + len(shares) * layout.workers, layout.workers)
        sources = [
            _uniform(Shards((address,)), storage, share * replicas_here, timeout_secs, own_seed, layout)
            for address, share, own_seed in zip(addresses, shares, seeds, strict=True)
        ]
        return MixedSource(sources, replicas_here)
    batch_size = experience.per_replica_batch_size * replicas_here
    if isinstance(experience.replay, Prioritized):
        if not storage.mirrored:
            return PrioritizedSampler(addresses, storage, batch_size, timeout_secs, seed)
        share = Shards(tuple(addresses)).of_pipeline(layout.worker, layout.workers)
        return PrioritizedMirror(addresses, storage, batch_size, timeout_secs, seed, filled_from=share)
    if isinstance(experience.replay, Uniform):
        if demonstrations is not None:
            demonstrations.check_mirrored(storage.mirrored)
        fills = demonstrations is not None and demonstrations.fill_replay
        source = _uniform(Shards(tuple(addresses)), storage, batch_size, timeout_secs, seed, layout, fills)
        return with_demonstrations(source, demonstrations, storage, agent, seed, replicas_here)
    own = all(address.startswith(backend.IN_PROCESS) for address in addresses)
    make_reader = DirectReader if own else TableReader
    queue = QueueSource(addresses, storage, batch_size, timeout_secs, seed, make_reader)
    return _in_iterations(queue, storage, agent, placement, seed)


def _in_iterations(
    queue: QueueSource, storage: Storage, agent: Agent, placement: tf.distribute.Strategy, seed: int
) -> QueueSource | MinibatchSource:
    """Returns the source of a queue's batches, in iterations if the experience has them."""
    layout, replay = strategies.layout(placement), storage.experience.replay
    iteration = replay.training if isinstance(replay, Queue) else None
    if not isinstance(iteration, Iteration):
        return queue
    if layout.workers > 1 and not agent_data.is_packaged(agent):
        raise UserValueError(
            f'got Queue.training=Iteration(...) with a {type(agent).__name__} on {layout.workers} workers, each '
            'of which would have normalizers of its own; need one worker'
        )
    of_sequences = getattr(agent, 'trains_on_sequences', False)
    return MinibatchSource(queue, agent_data.preparation(agent), iteration, placement, seed, of_sequences)


def fed(
    feed_address: str,
    storage: Storage,
    agent: Agent,
    placement: tf.distribute.Strategy,
    timeout_secs: float,
    seed: int,
) -> Source:
    """Makes the source of batches for a process that a feed job feeds; see `make`."""
    layout, experience = strategies.layout(placement), storage.experience
    logging.info('%s', layout.describe(experience.per_replica_batch_size))
    replicas_here = layout.replicas // layout.workers
    if not isinstance(experience.replay, Queue):
        return FeedSource(feed_address, storage, replicas_here, timeout_secs)
    batch_size, seed = experience.per_replica_batch_size * replicas_here, seed + layout.worker
    queue = QueueSource((feed_address,), storage, batch_size, timeout_secs, seed, make_reader=FeedReader)
    return _in_iterations(queue, storage, agent, placement, seed)


def for_feed(shards: Shards, storage: Storage, timeout_secs: float, seed: int) -> ReplayMirror | ReplaySampler:
    """Makes the source of a feed's worker: batches of a uniform replay for one replica."""
    batch_size = storage.experience.per_replica_batch_size
    if not storage.mirrored:
        return ReplaySampler(shards.control, storage, batch_size, timeout_secs)
    return ReplayMirror(shards.addresses, storage, batch_size, timeout_secs, seed, begins_filled=True)


def _uniform(
    shards: Shards,
    storage: Storage,
    batch_size: int,
    timeout_secs: float,
    seed: int,
    layout: strategies.ReplicaLayout,
    begins_filled: bool = False,
) -> ReplayMirror | ReplaySampler:
    if not storage.mirrored:
        return ReplaySampler(shards.control, storage, batch_size, timeout_secs)
    # All workers read all streams, and fill their mirrors with the tables of their own shards.
    filled_from = shards.of_pipeline(layout.worker, layout.workers)
    return ReplayMirror(shards.addresses, storage, batch_size, timeout_secs, seed, begins_filled, filled_from)


def with_demonstrations(
    source: Any,
    demonstrations: Demonstrations | None,
    storage: Storage,
    agent: Agent,
    seed: int,
    num_replicas: int = 1,
) -> Any:
    """Returns a source whose batches also have demonstrations; `source` itself if they should have none.

    Args:
      source: the source of the run's own items: an `OnlineSource`.
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
    batch_size = storage.experience.per_replica_batch_size
    offline = loaded(demonstrations.dataset, storage, batch_size * num_replicas, seed + _DEMONSTRATIONS_SEED)
    share, steps = demonstrations.share, demonstrations.num_pretrain_steps
    return HybridSource(source, offline, agent.train_step_counter, batch_size, num_replicas, share, steps)


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


def preprocessing(source: Source, agent: Agent) -> Callable[[Any], Any] | None:
    """Returns what the agent makes of its batches before it trains on them; None where they are prepared already."""
    return None if isinstance(source, MinibatchSource) else agent_data.preprocessing(agent)


def steps_per_call(source: Source, num_steps: int) -> int:
    """Returns the train steps of a call: a complete iteration, or `num_steps`."""
    return source.max_draw_steps if isinstance(source, MinibatchSource) else num_steps


def queue_of(source: Source) -> QueueSource | None:
    """Returns the queue that the batches come from; None if there is none."""
    queue = source.source if isinstance(source, MinibatchSource) else source
    return queue if isinstance(queue, QueueSource) else None


def items_per_version(source: Source, experience: Experience, num_replicas: int, publish_interval_steps: int) -> int:
    """Returns the maximum number of new items that all workers take between two publications of the weights.

    Args:
      source: the source of the batches, with a queue.
      experience: the run's experience settings.
      num_replicas: the number of replicas of all workers.
      publish_interval_steps: train steps between two publications.
    """
    training = experience.replay.training if isinstance(experience.replay, Queue) else None
    steps_per_batch = 1.0
    if isinstance(source, MinibatchSource):
        steps_per_batch = source.max_draw_steps
    elif isinstance(training, Reuse):
        steps_per_batch = training.times * (1 + training.replay_proportion)
    return math.ceil(publish_interval_steps / steps_per_batch) * experience.per_replica_batch_size * num_replicas


def set_newest_version(source: Source, policy_version: int) -> None:
    """Sets a queue's newest policy version, from which policy lags are counted."""
    if queue := queue_of(source):
        queue.newest_version = policy_version


def checkpointed(source: Any) -> dict[str, ReplayMirror | LoadedEpisodes]:
    """Returns the parts of the source that belong in a checkpoint. (If the server draws, the server counts.)"""
    if isinstance(source, HybridSource):
        return {**checkpointed(source.online), 'demonstrations': source.offline}
    sources = source.sources if isinstance(source, MixedSource) else [source]
    return {f'replay_{i}' if i else 'replay': one for i, one in enumerate(sources) if isinstance(one, ReplayMirror)}


def loaded(dataset: Dataset, storage: Storage, batch_size: int, seed: int) -> LoadedEpisodes:
    """Returns all sequences of recorded episodes in memory, drawn uniformly.

    Args:
      dataset: the episodes; its weights have no meaning here.
      storage: the layout of a row, and how steps become items.
      batch_size: sequences of a batch, over all replicas of this process.
      seed: the seed of the draws.

    Raises:
      ValueError: if the data set does not have the columns of the spec, or holds no sequence, or does not fit into
        `Uniform.max_mirror_gb`.
      RuntimeError: if more records are damaged than the data set allows.
    """
    reader = EpisodeReader(dataset, storage.data_spec)
    most = EpisodeRows(storage).max_rows(reader.num_steps, reader.num_episodes)
    _streams(storage.experience, most * (storage.layout.num_bytes + 8), Reading('memory'))
    return _loaded(reader, storage, most, batch_size, seed)


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
    placement: tf.distribute.Strategy,
    seed: int,
    reading: Reading = Reading(),
    validation_share: float = 0.0,
    max_epochs: int | None = None,
) -> FileSource:
    """Makes a source of batches of recorded episodes. Workers divide the episodes.

    Args:
      dataset: the episodes.
      experience: the run's experience settings, with `Uniform`.
      data_spec: the spec of a Trajectory without outer dimensions.
      placement: the strategy that the agent was made in.
      seed: the seed of the order.
      reading: how they are read.
      validation_share: the share of episodes that are left out, see `Part`.
      max_epochs: passes over the data; None is no limit.

    Raises:
      ValueError: if the data set does not have the columns of the spec, or holds no sequence, or too much for 'memory'.
      RuntimeError: if more records are damaged than the data set allows.
    """
    layout, storage = strategies.layout(placement), Storage(experience, data_spec)
    replicas_here = layout.replicas // layout.workers
    part = Part(validation_share, pipeline=layout.worker, num_pipelines=layout.workers)
    readers = [EpisodeReader(each, data_spec, part=part) for each in dataset.parts()]
    shares = mixed.sizes(experience.per_replica_batch_size, dataset.weights or [1.0])
    max_rows = [EpisodeRows(storage).max_rows(reader.num_steps, reader.num_episodes) for reader in readers]
    streams = _streams(experience, sum(max_rows) * (storage.layout.num_bytes + 8), reading)
    if streams:
        _check_stream(dataset)
    quarter = int(_max_gb(experience) * 1e9 / 4 / storage.layout.num_bytes / len(readers))
    sources: list[LoadedEpisodes | EpisodeStream] = []
    for i, (reader, share, most) in enumerate(zip(readers, shares, max_rows, strict=True)):
        batch_size = share * replicas_here
        if streams:
            window = reading.window_steps or max(1, quarter)
            sources.append(EpisodeStream(storage, reader.shuffled, batch_size, window, seed + i, max_epochs))
        else:
            sources.append(_loaded(reader, storage, most, batch_size, seed + i, reading.order, max_epochs))
    return FileSource(sources, replicas_here, lambda: _counts(readers))


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
    return check_files(experience).max_mirror_gb


def _check_stream(dataset: Dataset) -> None:
    if dataset.max_episodes is not None:
        raise UserValueError(
            f'got Dataset.max_episodes={dataset.max_episodes} for a stream, which reads the files in another order in '
            'each epoch; need None; make a smaller data set by tflearn-data copy --max_episodes'
        )
