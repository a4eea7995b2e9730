"""Statistics of the replay table: size, inserts, samples and their ratio."""

import dataclasses
from typing import Any

from tflearn.replay.storage import Storage


@dataclasses.dataclass(frozen=True)
class ReplayStatistics:
    """Counts of sequences since the table was made; they survive a restart of the server from its checkpoint.

    If an item holds several sequences, the counts assume that each row that may begin a sequence does so. That is not
    true for the last rows of an episode, nor for all rows that a collector sends when it ends.
    """

    size: int
    max_size: int
    inserts: int
    samples: int

    @classmethod
    def of(cls, info: Any, storage: Storage) -> 'ReplayStatistics':
        """Returns the statistics of the replay table's `reverb.TableInfo`."""
        limiter = info.rate_limiter_info
        per_item = storage.sequences_per_chunk
        return cls(
            round(info.current_size * per_item),
            round(info.max_size * per_item),
            round(limiter.insert_stats.completed * per_item),
            round(limiter.sample_stats.completed * storage.sequences_per_draw),
        )

    @property
    def samples_per_insert(self) -> float:
        return self.samples / self.inserts if self.inserts else 0.0

    def ratio_since_filled(self, min_size: int) -> float | None:
        """Returns the samples per insert beyond `min_size`, which the rate limiter limits; None before that."""
        beyond = self.inserts - min_size
        return self.samples / beyond if beyond > 0 else None

    def __str__(self) -> str:
        return (
            f'{self.size} of {self.max_size} sequences, {self.inserts} inserts, {self.samples} samples '
            f'({self.samples_per_insert:.2f} samples per insert)'
        )
