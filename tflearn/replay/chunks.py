"""ChunkBuilder: rows of a batched environment -> chunks, the items of the replay tables.

A chunk holds consecutive rows of one environment. Every sequence of the experience lies within one chunk, marked by the
flag of its first row. A chunk begins with the last rows of the one before, so that no sequence is lost between two.

A chunk is one array of bytes: its id, then its rows. All copies and parts of a chunk have the same id, and no other
chunk has it, so a reader recognizes chunks that it has read even if environments repeat themselves.
"""

import time
from collections.abc import Callable

import numpy as np
from absl import logging

from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience, Slicing

ID_BYTES = 8
NEW, REPEATED = 1, 2  # flags

_FIRST, _LAST, _TERMINATED = 0, 2, 0.0
_EPISODES_TO_WARN, _EPISODES_TO_JUDGE = 10, 100  # before it is known how long episodes are
_UNUSED_SHARE = 0.01


def chunk_id(chunk: np.ndarray) -> int:
    """Returns the id of a chunk uint8 [ID_BYTES + bytes of its rows]."""
    return int.from_bytes(chunk[:ID_BYTES].tobytes(), 'little')


def chunk_rows(chunks: np.ndarray, row_bytes: int) -> np.ndarray:
    """Returns the rows of chunks uint8 [..., ID_BYTES + bytes of their rows]: a view uint8 [..., rows, row_bytes]."""
    rows = chunks[..., ID_BYTES:]
    return rows.reshape(*rows.shape[:-1], -1, row_bytes)


class UnusedSteps:
    """Counts the steps of episodes that give no sequence, on which nothing trains; warns of them.

    Attributes:
      num_steps: the number of these steps.
    """

    def __init__(self, slicing: Slicing):
        """Counts nothing yet."""
        self._slicing = slicing
        self.num_steps = 0
        self._all_steps = self._num_episodes = self._longest = self._warned_above = 0

    def add(self, lengths: np.ndarray, unused: np.ndarray) -> None:
        """Adds episodes that ended.

        Args:
          lengths: int [E], their steps.
          unused: bool [E], whether they gave no sequence.

        Raises:
          ValueError: if many episodes have ended, and none gave a sequence.
        """
        if not lengths.size:
            return
        self._num_episodes += len(lengths)
        self._all_steps += int(lengths.sum())
        if not unused.any():
            return
        self.num_steps += int(lengths[unused].sum())
        self._longest = max(self._longest, int(lengths[unused].max()))
        if self._num_episodes >= _EPISODES_TO_JUDGE and self.num_steps == self._all_steps:
            raise UserValueError(f'got {self._seen(self._num_episodes)}; {self._advice()}')
        share = self.num_steps / max(self._all_steps, 1)
        if self._num_episodes >= _EPISODES_TO_WARN and share > _UNUSED_SHARE and self.num_steps > self._warned_above:
            self._warned_above = 10 * self.num_steps
            logging.warning('%.2g of the steps are never trained on: %s; %s', share, self._seen(), self._advice())

    def _seen(self, num_episodes: int | None = None) -> str:
        which = 'episodes' if num_episodes is None else f'{num_episodes} episodes, all'
        return f'{which} of at most {self._longest} steps without a sequence of {self._slicing.sequence_length} rows'

    def _advice(self) -> str:
        return (
            f'need Slicing.sequence_length of at most {self._longest + 1}, or Slicing.pad_episodes=True for agents '
            'that leave boundary rows out (TD3, DDPG, TQC, DroQ, PPO, IMPALA, REINFORCE)'
        )


class ChunkBuilder:
    """Gathers rows [B, num_bytes] until chunks of C + L - 1 rows are full.

    L is the rows of the experience's items, C the number of rows of a chunk that may begin a sequence. Byte 0 of a row
    is its flag: NEW if a sequence begins here, REPEATED if an earlier part of the chunk had the flag already, else 0. A
    sequence never crosses the end of an episode; the episode's last observation is in the boundary row (LAST -> FIRST)
    that ends its last sequence. A truncated episode with fewer rows than a sequence gives no sequence, unless it is
    padded (`Slicing.pad_episodes`); see `unused`.

    In a row of an environment that was rebuilt (not LAST, but -> FIRST) only the observation counts, since its step
    never happened: it ends its episode like the boundary row of a truncated one, and begins no sequence.

    The first row of an episode is repeated as the history of its first sequences, if these need one, and the boundary
    row as what comes after the last ones (`Slicing.history_steps`, `future_steps`).

    Where the experience lets sequences cross episodes, the ends of episodes are ignored.

    Attributes:
      unused: the steps on which nothing trains.
    """

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
        self._length, self._stride, self._pad = slicing.num_rows, slicing.stride, slicing.pad_episodes
        self._cross = slicing.cross_episodes
        self._history, self._future = 0 if slicing.cross_episodes else slicing.history_steps, slicing.future_steps
        self._chunk_rows = num_starts + self._length - 1
        self._row_bytes = num_bytes
        # Twice a chunk's size, so that rows are moved to the front once per chunk, not once per row.
        self._rows = np.zeros((num_environments, 2 * self._chunk_rows, num_bytes), np.uint8)
        self._begin = np.zeros(num_environments, np.int64)  # where the current chunk begins
        self._end = np.zeros(num_environments, np.int64)  # after its newest row
        self._num_flags = np.zeros(num_environments, np.int64)  # flags in the current chunk
        self._num_new = np.zeros(num_environments, np.int64)  # flags since the chunk's last part
        # Rows of the current episode, up to its boundary row; all rows if sequences cross episodes.
        self._age = np.zeros(num_environments, np.int64)
        self._terminated = np.zeros(num_environments, bool)
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

    def append(
        self, rows: np.ndarray, step_type: np.ndarray, next_step_type: np.ndarray, discount: np.ndarray
    ) -> list[np.ndarray]:
        """Adds one row of every environment.

        Args:
          rows: uint8 [B, num_bytes]; their flags are 0.
          step_type: int [B], the rows' step types.
          next_step_type: int [B], the rows' next step types.
          discount: float [B], the rows' discounts; 0 if the episode was terminated.

        Returns:
          The chunks that are now full, each uint8 [ID_BYTES + bytes of its rows].
        """
        if self._cross:
            self._age += 1
            return self._append(self._environments, rows)
        chunks = self._begin_episodes(np.flatnonzero(step_type == _FIRST), rows) if self._history else []
        self._age = np.where(step_type == _FIRST, 1 + self._history, self._age + (self._age > 0))
        chunks += self._append(self._environments, rows)
        last = step_type == _LAST
        ended = np.flatnonzero(last | (next_step_type == _FIRST))
        if ended.size:
            chunks += self._end_episodes(ended, rows, last)
        self._terminated = ~last & (discount == _TERMINATED)
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
        self._since[~waits] = now
        late = np.flatnonzero(waits & (now - self._since > secs))
        if not late.size:
            return []
        parts = self._chunks(late)
        flags = self._rows[late, :, 0]
        self._rows[late, :, 0] = np.where(flags > 0, REPEATED, 0)
        self._num_new[late], self._since[late] = 0, now
        return list(parts)

    def _begin_episodes(self, environments: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
        """Repeats the first rows `rows` of these environments' episodes as their history."""
        chunks: list[np.ndarray] = []
        for age in range(1, self._history + 1):
            self._age[environments] = age
            chunks += self._append(environments, rows[environments])
        return chunks

    def _end_episodes(self, environments: np.ndarray, rows: np.ndarray, last: np.ndarray) -> list[np.ndarray]:
        """Repeats the boundary rows `rows` of these environments as needed, so that each step is in a sequence."""
        age = self._age[environments]
        missing = self._length - self._future - age
        if self._pad and self._stride == 1:
            missing = np.full(len(environments), self._length - self._history - 2)  # each step begins a sequence
        elif self._pad:
            missing = np.where(missing > 0, missing, missing % self._stride) + self._future
        else:
            # After termination nothing is bootstrapped, so the boundary row is repeated until each of the last steps
            # begins a sequence. After truncation that would change how far the bootstrapped value is discounted.
            missing = np.where(self._terminated[environments], self._length - self._history - 2, self._future)
        missing[(age == 0) | ~last[environments]] = 0
        chunks: list[np.ndarray] = []
        for i in range(missing.max()):
            repeated = environments[missing > i]
            self._age[repeated] += 1
            chunks += self._append(repeated, rows[repeated])
        excess = self._age[environments] - self._length
        begun = age > 0
        self.unused.add((age - 1 - self._history)[begun], (excess < 0)[begun])
        if not self._pad and self._stride > 1:  # the stride may have passed over the end
            self._flag(environments[(excess > 0) & (excess % self._stride > 0)])
        self._age[environments] = 0
        return chunks

    def _append(self, environments: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
        # Only now, since the end of an episode may have set a flag in a chunk that was full.
        end = self._end[environments]
        full = end - self._begin[environments] == self._chunk_rows
        chunks = []
        if full.any():
            chunks = self._take(environments[full])
            end = self._end[environments]
        self._rows[environments, end] = rows
        self._end[environments] = end + 1
        excess = self._age[environments] - self._length
        begins = excess >= 0 if self._stride == 1 else (excess >= 0) & (excess % self._stride == 0)
        self._flag(environments[begins])
        return chunks

    def _flag(self, environments: np.ndarray) -> None:
        """Marks the sequences that end with the newest rows."""
        self._rows[environments, self._end[environments] - self._length, 0] = NEW
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
        self._make_room(environments[self._begin[environments] + self._chunk_rows > self._rows.shape[1]])
        return chunks

    def _chunks(self, environments: np.ndarray) -> np.ndarray:
        """Returns copies of the chunks, uint8 [n, ID_BYTES + bytes of their rows]."""
        chunks = np.empty((len(environments), ID_BYTES + self._chunk_rows * self._row_bytes), np.uint8)
        chunks[:, :ID_BYTES] = self._ids[environments].astype('<i8')[:, None].view(np.uint8)
        for i, rows in zip(environments, chunk_rows(chunks, self._row_bytes), strict=True):
            begin, num_rows = self._begin[i], self._end[i] - self._begin[i]
            rows[:num_rows] = self._rows[i, begin : begin + num_rows]
            rows[num_rows:] = 0
        return chunks

    def _make_room(self, environments: np.ndarray) -> None:
        """Moves the first rows of the next chunks to the front."""
        overlap = np.arange(self._length - 1)
        moved = self._rows[environments[:, None], self._begin[environments][:, None] + overlap]
        self._rows[environments[:, None], overlap] = moved
        self._begin[environments], self._end[environments] = 0, self._length - 1
