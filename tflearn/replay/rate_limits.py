"""Experience -> Reverb rate limiter: who waits for whom, and why neither waits for ever."""

import reverb

from tflearn.experience import Experience


def error_buffer(experience: Experience) -> float:
    """How far samples may run ahead of inserts times the ratio, or behind [samples].

    Both sides are blocked at once only if the buffer is smaller than one insert's or one draw's step, so it is at
    least the ratio. It also has to hold what a learner has drawn beyond its current batch (a batch in the making and
    prefetched ones), or the learner would wait for inserts that wait for the learner: four batches, or a tenth of
    what the first draw waits for.
    """
    ratio = experience.samples_per_insert or 0.0
    return max(0.1 * ratio * experience.min_size, 4.0 * experience.per_replica_batch_size, 2.0 * ratio, 1.0)


def make(experience: Experience) -> reverb.rate_limiters.RateLimiter:
    """Returns the limiter of the experience's table (a queue brings its own: see `tables`)."""
    if experience.samples_per_insert is None:
        return reverb.rate_limiters.MinSize(experience.min_size)
    return reverb.rate_limiters.SampleToInsertRatio(
        samples_per_insert=experience.samples_per_insert,
        min_size_to_sample=experience.min_size,
        error_buffer=error_buffer(experience),
    )
