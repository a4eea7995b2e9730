"""Experience -> who waits for whom, and why neither waits for ever."""

import reverb

from tflearn.experience import Experience

# So that neither side has to wait for the other at each batch.
_SPARE_BATCHES = 4


def error_buffer(experience: Experience, sequences_per_chunk: float = 1.0) -> float:
    """How far samples may run ahead of inserts times the ratio, or behind [samples].

    Whoever is ahead by more is held back. Were the buffer smaller than what one insert or one batch changes, both sides
    would be held back at once, for ever; so it is at least two inserts and some batches, or a tenth of what the first
    draw waits for.

    Args:
      experience: the run's experience settings.
      sequences_per_chunk: that are inserted at once.
    """
    ratio = experience.samples_per_insert or 0.0
    batches = float(_SPARE_BATCHES * experience.per_replica_batch_size)
    return max(0.1 * ratio * experience.min_size, batches, 2.0 * ratio * sequences_per_chunk, 1.0)


def make(
    experience: Experience, sequences_per_chunk: float = 1.0, sequences_per_draw: float = 1.0
) -> reverb.rate_limiters.RateLimiter:
    """Returns the limiter of a table of chunks that the server draws from (a queue brings its own: see `storage`).

    Args:
      experience: the run's experience settings.
      sequences_per_chunk: how many begin in an item.
      sequences_per_draw: how many of them a draw of the item yields.
    """
    min_chunks = max(1, round(experience.min_size / sequences_per_chunk))
    if experience.samples_per_insert is None:
        return reverb.rate_limiters.MinSize(min_chunks)
    return reverb.rate_limiters.SampleToInsertRatio(
        samples_per_insert=experience.samples_per_insert * sequences_per_chunk / sequences_per_draw,
        min_size_to_sample=min_chunks,
        error_buffer=max(1.0, error_buffer(experience, sequences_per_chunk) / sequences_per_draw),
    )
