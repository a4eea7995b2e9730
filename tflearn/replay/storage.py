"""Storage: how a run's experience is stored in the replay server. All jobs derive it in the same way, so they agree.

TableSpec: what a table is, whichever backend makes it. Rate limits: when collectors and learner wait for each other,
without a deadlock. ReplayStatistics: a table's counts. TableHistory: the last known state of a server's tables.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.layout import ColumnLayout
from tflearn.core.table_counts import TableCounts
from tflearn.replay.chunks import ID_BYTES

# So that neither side waits for the other at every batch.
_SPARE_BATCHES = 4

REPLAY = 'replay'
STREAM = 'stream'
CHUNK_FORMAT = 'format=2'  # of mirrored tables, whose chunks begin with an id
MIRROR_SPARE_CHUNKS = 64  # chunks that a mirror has room for besides those that are drawn from
_MAX_CHUNK_BYTES = 512 * 1024
_MAX_DRAWN_CHUNK_BYTES = 128 * 1024  # the server draws a chunk for a few of its sequences
_MAX_CHUNKED_LENGTH = 8
_DRAWS_PER_CHUNK = 4
_MAX_STREAM_CHUNKS = 256
_MAX_STREAM_BYTES = 64 * 1024 * 1024
_MIN_STREAM_CHUNKS = 16
_MIRROR_SPARE = 1.25
_SMALL_SIZE = 256  # items of a replay without content


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
    order: Literal['queue', 'uniform', 'priority', 'scan'] = 'queue'
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


def rate_limits(
    experience: Experience, sequences_per_chunk: float = 1.0, sequences_per_draw: float = 1.0
) -> dict[str, Any]:
    """Returns the limits of a table of chunks that the server draws from (a queue has its own), for `TableSpec`.

    Args:
      sequences_per_chunk: sequences that begin in an item.
      sequences_per_draw: sequences that one draw of the item gives.
    """
    limits = {'min_size': max(1, round(experience.replay.min_size / sequences_per_chunk))}
    if experience.replay.samples_per_insert is None:
        return limits
    return limits | {
        'samples_per_insert': experience.replay.samples_per_insert * sequences_per_chunk / sequences_per_draw,
        'error_buffer': max(1.0, error_buffer(experience, sequences_per_chunk) / sequences_per_draw),
    }


@dataclasses.dataclass(frozen=True)
class Storage:
    """The tables of a run's experience and the layout of their items.

    An item is a chunk: consecutive rows of one environment, of which `num_starts` may begin a sequence (see `chunks`).
    Short sequences that are drawn uniformly, or by the learner, are in chunks of many, since Reverb's cost is per item;
    otherwise an item is one sequence, which can have a priority or a position in a queue.

    Attributes:
      data_spec: the spec of a Trajectory without outer dimensions (`collect_data_spec`).
    """

    experience: Experience
    data_spec: types.NestedTensorSpec

    @functools.cached_property
    def layout(self) -> ColumnLayout:
        """The layout of a row: whether a sequence begins here, the acting policy's version, the trajectory."""
        return ColumnLayout(
            {
                'begins': tf.TensorSpec((), tf.uint8, 'begins'),
                'policy_version': tf.TensorSpec((), tf.int64, 'policy_version'),
                'trajectory': self.data_spec,
            }
        )

    @property
    def num_starts(self) -> int:
        """Rows of a chunk that may begin a sequence."""
        return self._num_starts(self.mirrored)

    def _num_starts(self, mirrored: bool) -> int:
        replay, length = self.experience.replay, self.experience.slicing.sequence_length
        # Only independent draws of short sequences can share a chunk.
        are_independent = replay.learns_from_old_items and not replay.max_times_sampled
        if not are_independent or length > _MAX_CHUNKED_LENGTH or (replay.prioritization and not mirrored):
            return 1
        max_bytes = _MAX_CHUNK_BYTES if mirrored else _MAX_DRAWN_CHUNK_BYTES
        return max(1, min(self.experience.chunk_steps, max_bytes // self.layout.num_bytes))

    @property
    def chunk_shape(self) -> tuple[int, int]:
        """The number of rows of a chunk, and of bytes of a row."""
        return self.num_starts + self.experience.slicing.num_rows - 1, self.layout.num_bytes

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of an item's bytes: a chunk's rows; if the learner mirrors them, flat after the chunk's id."""
        return (ID_BYTES + math.prod(self.chunk_shape),) if self.mirrored else self.chunk_shape

    @property
    def sequences_per_chunk(self) -> float:
        """The number of sequences that begin in a chunk, if no episode ends in it."""
        return max(1.0, self.num_starts / self.experience.slicing.stride)

    @property
    def draws_per_chunk(self) -> int:
        """The number of rows that may begin a sequence and that are tried when the server draws a chunk."""
        return min(self.num_starts, _DRAWS_PER_CHUNK * self.experience.slicing.stride)

    @property
    def sequences_per_draw(self) -> float:
        """The number of sequences that the server draws with a chunk."""
        return max(1.0, self.draws_per_chunk / self.experience.slicing.stride)

    @property
    def signature(self) -> dict[str, tf.TensorSpec]:
        """The signature of an item."""
        text = f'{CHUNK_FORMAT} {self.layout.text}' if self.mirrored else self.layout.text
        return {'chunk': tf.TensorSpec(self.item_shape, tf.uint8, text)}

    @property
    def max_chunks(self) -> int:
        """The number of items that the replay table keeps."""
        return math.ceil(self.experience.replay.max_size / self.sequences_per_chunk)

    @property
    def num_bytes(self) -> int:
        """The memory of a full table before compression [bytes]."""
        return self.max_chunks * math.prod(self.item_shape)

    @property
    def mirror_rows(self) -> int:
        """The number of rows that a mirror of the table holds."""
        num_starts = self._num_starts(mirrored=True)
        num_chunks = math.ceil(self.experience.replay.max_size / max(1.0, num_starts / self.experience.slicing.stride))
        num_chunks = max(math.ceil(_MIRROR_SPARE * num_chunks), num_chunks + 2 * MIRROR_SPARE_CHUNKS)
        return num_chunks * (num_starts + self.experience.slicing.num_rows - 1)

    @property
    def mirror_bytes(self) -> int:
        """The memory of a mirror: its rows, and the offsets of the sequences [bytes]."""
        return self.mirror_rows * self.layout.num_bytes + 8 * self.experience.replay.max_size

    @property
    def mirrored(self) -> bool:
        """Whether the learner draws from its own mirror of the table."""
        replay = self.experience.replay
        if replay.sampling == 'server':
            return False
        if replay.sampling == 'learner':
            return True
        # Long sequences too: not all backends have servers that draw.
        can_be = replay.learns_from_old_items and not replay.max_times_sampled
        return can_be and self.mirror_bytes <= 1e9 * replay.max_mirror_gb

    @property
    def can_be_sharded(self) -> bool:
        """Whether items of several servers can be drawn as those of one: by the learner or by priority, or in order."""
        replay = self.experience.replay
        return self.mirrored or not replay.learns_from_old_items or replay.prioritization is not None

    @property
    def stream_chunks(self) -> int:
        """The number of items that wait for the mirror before writers are blocked.

        These items are ahead of the samples per insert, so there are no more than the rate limiter allows.
        """
        ratio = self.experience.replay.samples_per_insert
        most = min(_MAX_STREAM_CHUNKS, max(_MIN_STREAM_CHUNKS, _MAX_STREAM_BYTES // math.prod(self.chunk_shape)))
        if ratio is None:
            return most
        ahead = error_buffer(self.experience, self.sequences_per_chunk) / ratio / self.sequences_per_chunk
        return min(most, max(_MIN_STREAM_CHUNKS, math.ceil(ahead)))

    @property
    def table_names(self) -> tuple[str, ...]:
        """The names of the tables that a writer inserts its chunks into."""
        return (REPLAY, STREAM) if self.mirrored else (REPLAY,)

    def without_content(self) -> 'Storage':
        """Returns a storage whose batches are drawn in the same way, by a source with little memory: for a dry run."""
        replay: Any = self.experience.replay
        if replay.learns_from_old_items:
            size, sampling = min(replay.max_size, _SMALL_SIZE), 'learner' if self.mirrored else 'server'
            replay = dataclasses.replace(replay, max_size=size, min_size=1, sampling=sampling)
        return dataclasses.replace(self, experience=dataclasses.replace(self.experience, replay=replay))

    def make_tables(self) -> list[TableSpec]:
        """Returns the tables: the replay and, if the learner mirrors it, the stream of new items."""
        settings = self.experience.replay
        if not settings.learns_from_old_items:
            return [TableSpec(REPLAY, settings.max_size, self.signature)]
        # The learner computes the priorities, so that their exponent may follow a schedule; with a mirror it draws, and
        # limits the ratio.
        order: Literal['scan', 'priority', 'uniform'] = 'priority' if settings.prioritization else 'uniform'
        order = 'scan' if self.mirrored else order
        limits = (
            {} if self.mirrored else rate_limits(self.experience, self.sequences_per_chunk, self.sequences_per_draw)
        )
        replay = TableSpec(REPLAY, self.max_chunks, self.signature, order, settings.max_times_sampled, **limits)
        return [replay, TableSpec(STREAM, self.stream_chunks, self.signature)] if self.mirrored else [replay]


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
    min_size: int

    @classmethod
    def of(cls, table: TableCounts, storage: Storage) -> 'ReplayStatistics':
        """Returns the statistics of the replay table."""
        per_item = storage.sequences_per_chunk
        return cls(
            round(table.size * per_item),
            round(table.max_size * per_item),
            round(table.inserts * per_item),
            round(table.samples * storage.sequences_per_draw),
            storage.experience.replay.min_size,
        )

    @property
    def samples_per_insert(self) -> float | None:
        """Samples per insert beyond the items that the first draw needs, as it is limited; None before that."""
        beyond = self.inserts - self.min_size
        return self.samples / beyond if beyond > 0 else None

    def __str__(self) -> str:
        ratio = self.samples_per_insert
        text = f'none beyond the first {self.min_size}' if ratio is None else f'{ratio:.2f} samples per insert'
        return f'{self.size} of {self.max_size} sequences, {self.inserts} inserts, {self.samples} samples ({text})'


_UNLIMITED = 1e300  # Reverb's greatest float stands for no limit


class TableHistory:
    """The newest state of a server's tables, and when each of them was last written and read."""

    def __init__(self, storage: Storage, clock: Callable[[], float] = time.monotonic):
        self._storage, self._clock = storage, clock
        self._seen: dict[str, tuple[TableCounts, float | None, float | None]] = {}  # and when it was written, and read

    def update(self, tables: dict[str, TableCounts]) -> None:
        """Takes the counts of the server's tables, by name."""
        now, before = self._clock(), self._seen
        self._seen = {}
        for name, table in tables.items():
            known, written_at, read_at = before.get(name, (table, None, None))
            # There are fewer after a restart.
            written_at = written_at if table.inserts == known.inserts else now
            self._seen[name] = table, written_at, read_at if table.samples == known.samples else now

    def __str__(self) -> str:
        if not self._seen:
            return 'it has not answered before'
        return '; '.join(self._table(name) for name in self._storage.table_names if name in self._seen)

    def _table(self, name: str) -> str:
        table, written_at, read_at = self._seen[name]
        statistics = ReplayStatistics.of(table, self._storage)
        position = table.samples_per_insert * table.inserts - table.samples
        limits = [table.min_diff, table.max_diff]
        texts = ['-' if abs(limit) > _UNLIMITED or math.isinf(limit) else f'{limit:g}' for limit in limits]
        return (
            f'table {name}: {statistics}, limiter at {position:g} within [{", ".join(texts)}], last insert '
            f'{self._age(written_at)}, last sample {self._age(read_at)}'
        )

    def _age(self, at: float | None) -> str:
        return 'not seen' if at is None else f'{self._clock() - at:.0f} s ago'
