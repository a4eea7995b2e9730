"""The source of a queue's items: each batch once or several times, or in the minibatches of an iteration."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tflearn.core import agent_data, strategies
from tflearn.core.errors import UserValueError
from tflearn.core.types import Agent
from tflearn.replay.item_reader import ItemReader
from tflearn.replay.storage import Storage
from tflearn.sampling.minibatches import MinibatchSource
from tflearn.sampling.queue_source import QueueSource
from tflearn.sampling.source import Source


def make(
    addresses: Sequence[str],
    storage: Storage,
    agent: Agent,
    strategy: tf.distribute.Strategy,
    timeout_secs: float,
    seed: int,
    make_reader: Callable[..., ItemReader],
) -> Source:
    """Makes the source of batches for this process.

    Args:
      addresses: the addresses of the servers that share the queue, 'host:port'.
      storage: the queue's layout.
      agent: the agent to train.
      strategy: the strategy that the agent was made in.
      timeout_secs: how long to wait for data.
      seed: this worker's seed.
      make_reader: makes what reads the items at an address.

    Raises:
      ValueError: if several workers cannot prepare iterations together.
    """
    layout, experience = strategies.layout(strategy), storage.experience
    batch_size = experience.per_replica_batch_size * (layout.replicas // layout.workers)
    queue = QueueSource(addresses, storage, batch_size, timeout_secs, make_reader, seed)
    iteration = experience.replay.iteration
    if iteration is None:
        return queue
    if layout.workers > 1 and not agent_data.is_packaged(agent):
        raise UserValueError(
            f'got Queue.training=Iteration(...) with a {type(agent).__name__} on {layout.workers} workers, each '
            'of which would have normalizers of its own; need one worker'
        )
    of_sequences = getattr(agent, 'trains_on_sequences', False)
    return MinibatchSource(queue, agent_data.preparation(agent), iteration, strategy, seed, of_sequences)
