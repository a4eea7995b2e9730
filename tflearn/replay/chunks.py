"""ChunkBuilder: rows of a batched environment -> chunks, which the replay tables hold.

A chunk holds consecutive rows of one environment. Every sequence of the experience lies within one chunk, marked by the
flag of its first row. A chunk begins with the last rows of the one before, so that no sequence is lost between two.

A chunk is one array of bytes: its id, then its rows. All copies and parts of a chunk have the same id, and no other
chunk has it, so a reader recognizes chunks that it has read even if environments repeat themselves.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tflearn.core.experience import Experience
from tflearn.core.layout import ColumnLayout
from tflearn.core.resumable import Resumable
from tflearn.replay.sequence_rule import FIRST, LAST, SequenceRule, UnusedSteps, ends_episode, terminates

ID_BYTES = 8
NEW, REPEATED = 1, 2  # flags


def chunk_id(chunk: np.ndarray) -> int:
    """Returns the id of a chunk uint8 [ID_BYTES + bytes of its rows]."""
    return int.from_bytes(chunk[:ID_BYTES].tobytes(), 'little')


def chunk_rows(chunks: np.ndarray, row_bytes: int) -> np.ndarray:
    """Returns the rows of chunks uint8 [..., ID_BYTES + bytes of their rows]: a view uint8 [..., rows, row_bytes]."""
    rows = chunks[..., ID_BYTES:]
    return rows.reshape(*rows.shape[:-1], -1, row_bytes)


def pack(layout: ColumnLayout, trajectory: Any, policy_version: int, rows: np.ndarray | None = None) -> np.ndarray:
    """Packs a Trajectory of arrays [B, ...] by `Storage.layout`, as rows that begin no sequence."""
    size = len(trajectory.step_type)
    versions = np.full(size, policy_version, np.int64)
    return layout.pack({'begins': np.zeros(size, np.uint8), 'policy_version': versions, 'trajectory': trajectory}, rows)


def with_version(columns: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns data and info of the columns of rows: the trajectory, and its `policy_version`."""
    return columns['trajectory'], {'policy_version': columns['policy_version']}


class ChunkBuilder(Resumable):
    """Gathers rows [B, num_bytes] until chunks of C + L - 1 rows are full.

    L is the rows of the experience's items, C the number of rows of a chunk that may begin a sequence. Byte 0 of a row
    is its flag: NEW if a sequence begins here, REPEATED if an earlier part of the chunk had the flag already, else 0. A
    sequence never crosses the end of an episode, unless the experience lets it (see `SequenceRule`). A row of a rebuilt
    environment ends its episode like the boundary row of a truncated one, and begins no sequence.

    The steps are kept as they were packed, those of all environments together; a row is the index of its step, so that
    its bytes are copied once, into the chunk.

    Attributes:
      unused: the steps on which nothing trains.
    """

    _KEPT = (
        *('_steps', '_step', '_sources', '_flags', '_begin', '_end', '_num_flags', '_num_new', '_age', '_terminated'),
        *('_ids', '_next_id', 'unused'),
    )

    def __init__(
        self,
        experience: Experience,
        num_starts: int,
        num_environments: int,
        num_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Allocates memory for the rows.

        Args:
          num_starts: C.
          num_environments: B.
          num_bytes: the size of a row, its flag included [bytes].
        """
        slicing = experience.slicing
        self.unused = UnusedSteps(slicing)
        self._rule, self._cross = SequenceRule(slicing), slicing.cross_episodes
        self._length, self._history = self._rule.length, self._rule.history
        self._chunk_rows = num_starts + self._length - 1
        # An unfinished chunk has rows of so many steps at most, since each step adds a row to each chunk; and the next.
        self._steps = np.zeros((self._chunk_rows + 1, num_environments, num_bytes), np.uint8)
        self._step = 0  # where the next one is
        # The steps and flags of rows. Twice a chunk's size, so that they are moved to the front once per chunk.
        self._sources = np.zeros((num_environments, 2 * self._chunk_rows), np.int64)
        self._flags = np.zeros((num_environments, 2 * self._chunk_rows), np.uint8)
        self._begin = np.zeros(num_environments, np.int64)  # where the current chunk begins
        self._end = np.zeros(num_environments, np.int64)  # after its newest row
        self._num_flags = np.zeros(num_environments, np.int64)  # flags in the current chunk
        self._num_new = np.zeros(num_environments, np.int64)  # flags since the chunk's last part
        # Rows of the current episode, up to its boundary row; all rows if sequences cross episodes.
        self._age = np.zeros(num_environments, np.int64)
        self._terminated = np.zeros(num_environments, bool)
        # The newest rows without an episode, where sequences cross episodes: one of nothing else is left out.
        self._absent = np.zeros(num_environments, np.int64)
        self._clock = clock
        self._since = np.full(num_environments, clock())
        self._environments = np.arange(num_environments)
        # Each builder counts from a random number: with 2^62 of them, ids of independent builders do not collide.
        first_id = int(np.random.default_rng().integers(1 << 62))
        self._ids = np.arange(first_id, first_id + num_environments)
        self._next_id = first_id + num_environments

    @property
    def num_waiting(self) -> int:
        """The number of complete sequences that are in no chunk yet."""
        return int(self._num_flags.sum())

    @property
    def next_rows(self) -> np.ndarray:
        """Where the rows that `append` adds are to be written, uint8 [B, num_bytes]; their flags are ignored."""
        return self._steps[self._step]

    def append(self, step_type: np.ndarray, next_step_type: np.ndarray, discount: np.ndarray) -> list[np.ndarray]:
        """Adds one row of every environment, which was written to `next_rows`.

        Args:
          step_type: int [B], the rows' step types.
          next_step_type: int [B], the rows' next step types.
          discount: float [B], the rows' discounts; 0 if the episode was terminated.

        Returns:
          The chunks that are now full, each uint8 [ID_BYTES + bytes of its rows].
        """
        if self._cross:
            self._age += 1
            self._absent = np.where((step_type == FIRST) & (next_step_type == FIRST), self._absent + 1, 0)
            chunks = self._append(self._environments)
        else:
            chunks = self._begin_episodes(np.flatnonzero(step_type == FIRST)) if self._history else []
            self._age = np.where(step_type == FIRST, 1 + self._history, self._age + (self._age > 0))
            chunks += self._append(self._environments)
            ended = np.flatnonzero(ends_episode(step_type, next_step_type))
            if ended.size:
                chunks += self._end_episodes(ended, step_type == LAST)
            self._terminated = terminates(step_type, discount)
        self._step = (self._step + 1) % len(self._steps)
        return chunks

    def begin_with_next(self) -> None:
        """Makes the next row of each environment begin a sequence, where sequences cross episodes.

        Rows that are not yet in a complete sequence are dropped.
        """
        if self._cross:
            self._age[:] = 0

    def take_full(self) -> list[np.ndarray]:
        """Ends and returns the chunks that are full; `append` does so only with their environments' next rows."""
        return self._take(self._environments[self._end - self._begin == self._chunk_rows])

    def take_all(self) -> list[np.ndarray]:
        """Ends and returns all chunks in which a sequence begins, filled up with zeros."""
        return self._take(np.flatnonzero(self._num_flags))

    def parts_older_than(self, secs: float) -> list[np.ndarray]:
        """Returns unfinished chunks in which a sequence has waited longer than `secs`, filled up with zeros.

        They are continued: the chunk, or its next part, repeats all rows, with the flag REPEATED where this part has a
        flag.
        """
        now, waits = self._clock(), self._num_new > 0
        # The wait of an environment without a new sequence begins with its next one.
        self._since[~waits] = now
        late = np.flatnonzero(waits & (now - self._since > secs))
        if not late.size:
            return []
        parts = self._chunks(late)
        self._flags[late] = np.where(self._flags[late] > 0, REPEATED, 0)
        self._num_new[late], self._since[late] = 0, now
        return list(parts)

    def _begin_episodes(self, environments: np.ndarray) -> list[np.ndarray]:
        """Repeats the first rows of these environments' episodes as their history."""
        chunks: list[np.ndarray] = []
        for age in range(1, self._history + 1):
            self._age[environments] = age
            chunks += self._append(environments)
        return chunks

    def _end_episodes(self, environments: np.ndarray, last: np.ndarray) -> list[np.ndarray]:
        """Repeats the boundary rows of these environments as needed, so that each step is in a sequence."""
        age = self._age[environments]
        begun = age > 0
        missing = self._rule.repeats(age, begun & last[environments], self._terminated[environments])
        chunks: list[np.ndarray] = []
        # One row of all environments at a time, since a chunk may become full with each: those that need fewer rows
        # drop out.
        for i in range(missing.max()):
            repeated = environments[missing > i]
            self._age[repeated] += 1
            chunks += self._append(repeated)
        age_at_end = self._age[environments]
        begun &= age > 1 + self._history  # a row without an episode has no step
        self.unused.add((age - 1 - self._history)[begun], (age_at_end < self._length)[begun])
        self._flag(environments[self._rule.ends_one_more(age_at_end)])
        self._age[environments] = 0
        return chunks

    def _append(self, environments: np.ndarray) -> list[np.ndarray]:
        # Only now, since the end of an episode may have set a flag in a chunk that was full.
        end = self._end[environments]
        full = end - self._begin[environments] == self._chunk_rows
        chunks = []
        if full.any():
            chunks = self._take(environments[full])
            end = self._end[environments]
        self._sources[environments, end], self._flags[environments, end] = self._step, 0
        self._end[environments] = end + 1
        ends = self._rule.ends_sequence(self._age[environments]) & (self._absent[environments] < self._length)
        self._flag(environments[ends])
        return chunks

    def _flag(self, environments: np.ndarray) -> None:
        """Marks the sequences that end with the newest rows."""
        self._flags[environments, self._end[environments] - self._length] = NEW
        self._num_flags[environments] += 1
        self._num_new[environments] += 1

    def _take(self, environments: np.ndarray) -> list[np.ndarray]:
        """Ends these environments' chunks and begins the next ones. Returns the chunks that hold a sequence."""
        if not environments.size:
            return []
        flagged = environments[self._num_flags[environments] > 0]
        chunks = list(self._chunks(flagged)) if flagged.size else []
        self._begin[environments] = self._end[environments] - (self._length - 1)
        self._num_flags[environments] = self._num_new[environments] = 0
        self._since[environments] = self._clock()
        self._ids[environments] = self._next_id + np.arange(len(environments))
        self._next_id += len(environments)
        self._make_room(environments[self._begin[environments] + self._chunk_rows > self._flags.shape[1]])
        return chunks

    def _chunks(self, environments: np.ndarray) -> np.ndarray:
        """Returns copies of the chunks, uint8 [n, ID_BYTES + bytes of their rows]."""
        num_environments, num_bytes = self._steps.shape[1:]
        chunks = np.empty((len(environments), ID_BYTES + self._chunk_rows * num_bytes), np.uint8)
        chunks[:, :ID_BYTES] = self._ids[environments].astype('<i8')[:, None].view(np.uint8)
        rows, steps, i = chunk_rows(chunks, num_bytes), self._steps.reshape(-1, num_bytes), environments[:, None]
        places = self._begin[i] + np.arange(self._chunk_rows)
        for chunk, sources in zip(rows, self._sources[i, places] * num_environments + i, strict=True):
            steps.take(sources, axis=0, out=chunk, mode='clip')  # in the mode 'raise' it would copy twice
        rows[..., 0] = self._flags[i, places]
        if (missing := places >= self._end[i]).any():
            rows[missing] = 0
        return chunks

    def _make_room(self, environments: np.ndarray) -> None:
        """Moves the first rows of the next chunks to the front."""
        overlap = np.arange(self._length - 1)
        i = environments[:, None]
        begin = self._begin[i] + overlap
        self._sources[i, overlap], self._flags[i, overlap] = self._sources[i, begin], self._flags[i, begin]
        self._begin[environments], self._end[environments] = 0, self._length - 1
