"""Experience -> rate limiters: when collectors and learner wait for each other, without a deadlock."""

import reverb

from tflearn.experience import Experience

# So that neither side waits for the other at every batch.
_SPARE_BATCHES = 4


def error_buffer(experience: Experience, sequences_per_chunk: float = 1.0) -> float:
    """Returns how far samples may be ahead of inserts times the ratio, or behind [samples].

    The side that is further ahead is blocked. If the buffer were smaller than the change of one insert or one batch,
    both sides could be blocked forever. So it is at least two inserts and some batches, or a tenth of the items needed
    before the first draw.

    Args:
      sequences_per_chunk: sequences that are inserted at once.
    """
    ratio = experience.replay.samples_per_insert or 0.0
    batches = float(_SPARE_BATCHES * experience.per_replica_batch_size)
    return max(0.1 * ratio * experience.replay.min_size, batches, 2.0 * ratio * sequences_per_chunk, 1.0)


def make(
    experience: Experience, sequences_per_chunk: float = 1.0, sequences_per_draw: float = 1.0
) -> reverb.rate_limiters.RateLimiter:
    """Returns the rate limiter of a table of chunks that the server draws from (a queue has its own: see `storage`).

    Args:
      sequences_per_chunk: sequences that begin in an item.
      sequences_per_draw: sequences that one draw of the item gives.
    """
    min_chunks = max(1, round(experience.replay.min_size / sequences_per_chunk))
    if experience.replay.samples_per_insert is None:
        return reverb.rate_limiters.MinSize(min_chunks)
    return reverb.rate_limiters.SampleToInsertRatio(
        samples_per_insert=experience.replay.samples_per_insert * sequences_per_chunk / sequences_per_draw,
        min_size_to_sample=min_chunks,
        error_buffer=max(1.0, error_buffer(experience, sequences_per_chunk) / sequences_per_draw),
    )
