"""TableCounts: the counts and limits of a replay table, whichever backend holds it; as JSON too."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

_COUNTS = ('size', 'max_size', 'inserts', 'samples')
_LIMITS = ('samples_per_insert', 'min_diff', 'max_diff')


@dataclasses.dataclass(frozen=True)
class TableCounts:
    """The state of a table.

    Attributes:
      size: items in it.
      max_size: items that it keeps.
      inserts: items ever inserted; the count survives a restart from a checkpoint.
      samples: items ever drawn; this count survives it too.
      samples_per_insert: the ratio that its rate limiter aims at.
      min_diff: `samples_per_insert` times inserts, minus samples, is at least this.
      max_diff: the same is at most this.
      signature: the `tf.TensorSpec` of each column of an item, by the column's name; not in JSON.
    """

    size: int
    max_size: int
    inserts: int
    samples: int
    samples_per_insert: float = 1.0
    min_diff: float = -math.inf
    max_diff: float = math.inf
    signature: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, int | float]:
        """Returns the counts and limits by name."""
        return {name: getattr(self, name) for name in (*_COUNTS, *_LIMITS)}

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> 'TableCounts':
        """Returns what `as_json` returned; raises KeyError, TypeError or ValueError if it is none."""
        size, max_size, inserts, samples = (int(fields[name]) for name in _COUNTS)
        ratio, min_diff, max_diff = (float(fields[name]) for name in _LIMITS)
        return cls(size, max_size, inserts, samples, ratio, min_diff, max_diff)


def summed(parts: Iterable[TableCounts]) -> TableCounts:
    """Returns the counts of a table of which several servers hold parts, at least one; its limits are the first's."""
    first, *others = parts
    sums = {name: sum(getattr(part, name) for part in (first, *others)) for name in _COUNTS}
    return dataclasses.replace(first, **sums)
