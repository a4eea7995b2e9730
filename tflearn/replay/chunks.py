"""ChunkBuilder: rows of a batched environment -> chunks, the items of the replay tables.

A chunk is a run of rows of one environment. Every sequence of the experience lies within one chunk: the flag of its
first row says so. So that no sequence is lost between two chunks, a chunk begins with the last rows of the one before.
"""

import time

import numpy as np

from tflearn.experience import Experience

_LAST, _TERMINATED = 2, 0.0


class ChunkBuilder:
    """Gathers rows [B, num_bytes] until chunks [C + L - 1, num_bytes] are full.

    L is the experience's sequence length, C the number of rows of a chunk that may begin a sequence. Byte 0 of a row
    is its flag: not 0 if a sequence begins here, and then random, so that two chunks differ even if environments did
    the same. A sequence never crosses the end of an episode; the episode's last observation is in the boundary row
    (LAST -> FIRST) that ends its last sequence. A truncated episode of fewer rows than a sequence makes none.
    """

    def __init__(self, experience: Experience, num_starts: int, num_environments: int, num_bytes: int):
        """Makes room for the rows.

        Args:
          experience: gives sequence length and stride.
          num_starts: C.
          num_environments: B.
          num_bytes: of a row, its flag included.
        """
        self._length, self._stride = experience.sequence_length, experience.stride
        self._num_starts = num_starts
        self._rows = np.zeros((num_environments, num_starts + self._length - 1, num_bytes), np.uint8)
        self._num_rows = np.zeros(num_environments, np.int64)
        # Rows of the current episode; none before its first, and a boundary row ends it.
        self._age = np.zeros(num_environments, np.int64)
        self._terminated = np.zeros(num_environments, bool)
        self._since = np.full(num_environments, time.monotonic())
        self._environments = np.arange(num_environments)
        self._random = np.random.default_rng()

    def append(self, rows: np.ndarray, step_type: np.ndarray, discount: np.ndarray) -> list[np.ndarray]:
        """Takes in one row of every environment.

        Args:
          rows: uint8 [B, num_bytes].
          step_type: int [B], of the rows.
          discount: float [B], of the rows; 0 if the episode was terminated.

        Returns:
          The chunks that are full now.
        """
        first, boundary = step_type == 0, step_type == _LAST
        self._age = np.where(first, 1, np.where(self._age > 0, self._age + 1, 0))
        chunks = self._append(self._environments, rows)
        for i in np.flatnonzero(boundary):
            # After termination nothing is bootstrapped, so repeating the boundary row lets each last step begin a
            # sequence too. After truncation it would change how far the bootstrapped value is discounted.
            for _ in range(self._length - 2 if self._terminated[i] and self._age[i] else 0):
                self._age[i] += 1
                chunks += self._append(self._environments[i : i + 1], rows[i : i + 1])
            excess = self._age[i] - self._length
            if excess > 0 and excess % self._stride:  # the stride stepped over the end
                self._flag(self._environments[i : i + 1])
            self._age[i] = 0
        self._terminated = ~boundary & (discount == _TERMINATED)
        return chunks

    def take_older_than(self, secs: float) -> list[np.ndarray]:
        """Returns chunks of what has waited longer than `secs`, filled up with zeros."""
        late = (self._num_rows >= self._length) & (time.monotonic() - self._since > secs)
        return self._take(np.flatnonzero(late))

    def _append(self, environments: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
        # Only now: the end of an episode may have put a flag on a row of a chunk that was full.
        full = environments[self._num_rows[environments] == self._rows.shape[1]]
        chunks = self._take(full) if full.size else []
        self._rows[environments, self._num_rows[environments]] = rows
        self._rows[environments, self._num_rows[environments], 0] = 0
        self._num_rows[environments] += 1
        excess = self._age[environments] - self._length
        begins = environments[(excess >= 0) & (excess % self._stride == 0)]
        if begins.size:
            self._flag(begins)
        return chunks

    def _flag(self, environments: np.ndarray) -> None:
        """Marks the sequences that end with the newest rows."""
        flags = self._random.integers(1, 256, len(environments), np.uint8)
        self._rows[environments, self._num_rows[environments] - self._length, 0] = flags

    def _take(self, environments: np.ndarray) -> list[np.ndarray]:
        chunks = []
        overlap = self._length - 1
        for i in environments:
            num_rows, rows = self._num_rows[i], self._rows[i]
            chunk = np.zeros_like(rows)
            chunk[:num_rows] = rows[:num_rows]
            if chunk[:, 0].any():
                chunks.append(chunk)
            rows[:overlap] = chunk[num_rows - overlap : num_rows]
            self._num_rows[i] = overlap
        self._since[environments] = time.monotonic()
        return chunks
