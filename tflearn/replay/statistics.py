"""What the replay table says of itself: fill, inserts, draws and their ratio."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class ReplayStatistics:
    """Counts since the table was made; they survive a restart of the server from its checkpoint.

    Attributes:
      size: items now in the table.
      max_size: items it can hold.
      inserts: items inserted.
      samples: items drawn.
    """

    size: int
    max_size: int
    inserts: int
    samples: int

    @classmethod
    def of(cls, info: Any) -> 'ReplayStatistics':
        """Reads a `reverb.TableInfo`."""
        limiter = info.rate_limiter_info
        return cls(info.current_size, info.max_size, limiter.insert_stats.completed, limiter.sample_stats.completed)

    @property
    def samples_per_insert(self) -> float:
        return self.samples / self.inserts if self.inserts else 0.0

    def ratio_since_filled(self, min_size: int) -> float | None:
        """Samples per insert beyond the first fill, the figure that the rate limiter holds; None before that."""
        beyond = self.inserts - min_size
        return self.samples / beyond if beyond > 0 else None

    def __str__(self) -> str:
        return (
            f'{self.size} of {self.max_size} items, {self.inserts} inserts, {self.samples} samples '
            f'({self.samples_per_insert:.2f} samples per insert)'
        )
