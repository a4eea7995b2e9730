"""TableCounts: the counts and limits of a replay table, whichever backend holds it; as JSON too."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from tflearn.core import settings
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Range

_COUNTS = ('size', 'max_size', 'inserts', 'samples')
_LIMITS = ('samples_per_insert', 'min_diff', 'max_diff')
_COUNT, _LIMIT = Annotated[int, Range(least=0, most=1 << 53)], Annotated[float, Range()]
_RULES = settings.rules({**dict.fromkeys(_COUNTS, _COUNT), **dict.fromkeys(_LIMITS, _LIMIT)})


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
        """Returns the counts and limits by name, without limits that are none:
        JSON has no infinity.
        """
        found = {name: getattr(self, name) for name in (*_COUNTS, *_LIMITS)}
        return {name: number for name, number in found.items() if math.isfinite(number)}

    @classmethod
    def parse(cls, fields: Any, table: str = 'a table') -> 'TableCounts':
        """Returns what `as_json` returned.

        Args:
          table: its name, for errors.

        Raises:
          ValueError or TypeError: if it is something else; it names the field.
        """
        if not isinstance(fields, Mapping) or not {*_COUNTS} <= fields.keys() <= _RULES.keys():
            got = ', '.join(sorted(fields)) if isinstance(fields, Mapping) else type(fields).__name__
            need = f'{", ".join(_COUNTS)}, and if limited {", ".join(_LIMITS)}'
            raise UserValueError(f'got {table} with {got!a:.200}; need {need}')
        settings.check(_RULES, f'{table}.', fields)
        return cls(**fields)


def summed(parts: Iterable[TableCounts]) -> TableCounts:
    """Returns the counts of a table of which several servers hold parts, at least one;
    its limits are the first's.
    """
    first, *others = parts
    sums = {name: sum(getattr(part, name) for part in (first, *others)) for name in _COUNTS}
    return dataclasses.replace(first, **sums)
