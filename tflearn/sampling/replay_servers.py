"""The source of the items of replay servers: drawn by the learner from its own memory, or by the servers."""

from tflearn.replay.backend import Shards
from tflearn.replay.storage import Storage
from tflearn.sampling.mirror import ReplayMirror
from tflearn.sampling.sampler import PrioritizedSampler, ReplaySampler
from tflearn.sampling.source import Source


def make(
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
    if storage.experience.replay.prioritization:
        return PrioritizedSampler(shards.addresses, storage, batch_size, timeout_secs, seed)
    return ReplaySampler(shards.addresses[0], storage, batch_size, timeout_secs)
