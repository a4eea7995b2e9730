"""The source of a train job's batches, chosen by its experience."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.data.reader import EpisodeReader
from tflearn.distribute import strategies
from tflearn.errors import UserValueError
from tflearn.experience import Experience, Iteration, Prioritized, Queue, Reuse, Uniform
from tflearn.jobs.train_settings import Demonstrations
from tflearn.learner import agent_data
from tflearn.learner.minibatches import MinibatchSource
from tflearn.replay.storage import Storage
from tflearn.sampling import mixed, recorded
from tflearn.sampling.hybrid import HybridSource
from tflearn.sampling.mirror import ReplayMirror
from tflearn.sampling.mixed import MixedSource
from tflearn.sampling.queue_source import QueueSource
from tflearn.sampling.sampler import PrioritizedSampler, ReplaySampler
from tflearn.types import Agent

Source = ReplayMirror | ReplaySampler | QueueSource | MinibatchSource | MixedSource | HybridSource
# So that demonstrations are drawn independently of the run's own steps.
_DEMONSTRATIONS_SEED = 1 << 32


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
      addresses: the replay servers' addresses, 'host:port'; without `weights` only a queue can have several.
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
        sources = [
            _uniform(address, storage, share * replicas_here, timeout_secs, seed + i * layout.workers)
            for i, (address, share) in enumerate(zip(addresses, shares, strict=True))
        ]
        return MixedSource(sources, replicas_here)
    batch_size = experience.per_replica_batch_size * replicas_here
    if isinstance(experience.replay, Prioritized):
        return PrioritizedSampler(addresses[0], storage, batch_size, timeout_secs)
    if isinstance(experience.replay, Uniform):
        if demonstrations is not None:
            demonstrations.check_mirrored(storage.mirrored)
        fills = demonstrations is not None and demonstrations.fill_replay
        source = _uniform(addresses[0], storage, batch_size, timeout_secs, seed, fills)
        return with_demonstrations(source, demonstrations, storage, agent, seed, replicas_here)
    queue = QueueSource(addresses, storage, batch_size, timeout_secs, seed)
    iteration = experience.replay.training
    if not isinstance(iteration, Iteration):
        return queue
    if layout.workers > 1 and not agent_data.is_packaged(agent):
        raise UserValueError(
            f'got Queue.training=Iteration(...) with a {type(agent).__name__} on {layout.workers} workers, each '
            'of which would have normalizers of its own; need one worker'
        )
    of_sequences = getattr(agent, 'trains_on_sequences', False)
    return MinibatchSource(queue, agent_data.preparation(agent), iteration, placement, seed, of_sequences)


def _uniform(
    address: str, storage: Storage, batch_size: int, timeout_secs: float, seed: int, begins_filled: bool = False
) -> ReplayMirror | ReplaySampler:
    if storage.mirrored:
        return ReplayMirror(address, storage, batch_size, timeout_secs, seed, begins_filled)
    return ReplaySampler(address, storage, batch_size, timeout_secs)


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
    reader = EpisodeReader(demonstrations.dataset, storage.data_spec)
    offline = recorded.load(
        storage.experience, storage.data_spec, reader, seed + _DEMONSTRATIONS_SEED, batch_size * num_replicas
    )
    share, steps = demonstrations.share, demonstrations.num_pretrain_steps
    return HybridSource(source, offline, agent.train_step_counter, batch_size, num_replicas, share, steps)


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


def checkpointed(source: Source) -> dict[str, ReplayMirror]:
    """Returns the parts of the source that belong in a checkpoint. (If the server draws, the server counts.)"""
    own: Any = source.online if isinstance(source, HybridSource) else source
    sources = own.sources if isinstance(own, MixedSource) else [own]
    return {f'replay_{i}' if i else 'replay': one for i, one in enumerate(sources) if isinstance(one, ReplayMirror)}
