"""TableSpec: what a table of a replay server is, whichever backend makes it."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import tensorflow as tf

from tflearn.core.errors import UserValueError


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """The settings of a table. Where more items come than fit, the oldest is removed; a queue blocks writers instead.

    Attributes:
      name: the table's name.
      max_size: the number of items that it keeps.
      signature: the spec of each column of an item, by the column's name.
      order: how items are drawn; 'queue' gives each once, oldest first; 'scan' gives none: all are read at once.
      max_times_sampled: an item that was drawn this often is removed; 0 is no limit.
      min_size: items needed before the first draw.
      samples_per_insert: how often an item is drawn on average; None is no limit.
      error_buffer: how far samples may be ahead of inserts times that ratio, or behind [samples].
    """

    name: str
    max_size: int
    signature: Mapping[str, tf.TensorSpec]
    order: Literal['queue', 'fifo', 'uniform', 'priority', 'scan'] = 'queue'
    max_times_sampled: int = 0
    min_size: int = 1
    samples_per_insert: float | None = None
    error_buffer: float = 0.0

    def __post_init__(self) -> None:
        ratio = self.samples_per_insert
        if ratio is not None and self.error_buffer < max(1.0, ratio):
            raise UserValueError(
                f'got error_buffer={self.error_buffer:g} for {ratio:g} samples per insert; need at least the greater '
                'of that and 1, or writers and readers wait for each other'
            )


def signature_text(spec: tf.TensorSpec) -> str:
    """Returns an item's spec as text, in which all that its readers and writers must agree on is."""
    return f'{spec.dtype.name}{list(spec.shape)} {spec.name or ""}'.strip()
