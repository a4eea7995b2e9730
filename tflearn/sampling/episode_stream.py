"""EpisodeStream: sequences of episodes that are read while training goes on, in a shuffled order, as batches.

For data that do not fit into memory. Episodes fill a *window*: rows in memory, of which each sequence is given once, in
a random order. The next window is read meanwhile. With each batch it is known where its window began, so a resumed run
reads that window again, passes over what was given, and goes on exactly.
"""

import collections
import concurrent.futures
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.core import background
from tflearn.replay.storage import Storage
from tflearn.sampling import episode_rows
from tflearn.sampling.episode_rows import EpisodeRows
from tflearn.sampling.loaded_episodes import OfEpisodes, block_rows
from tflearn.sampling.ring_buffer import RingColumns
from tflearn.sampling.source import advance

# (seed, epoch, (files, records of the next file) that are passed over) -> (the same after some episodes, these).
ReadEpisodes = Callable[[int, int, tuple[int, int]], Iterator[tuple[tuple[int, int], Any]]]

_MAX_RING_BYTES = 256 << 20
_PARTS = 4  # of the ring, which are written one by one
_MAX_PART_BYTES = 4 << 20  # memory of this size is used again, larger arrays are of new memory each time
_MAX_BATCHES = 4096
_CLOSE_SECS = 60.0


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a window begins.

    Attributes:
      epoch: passes over the data before.
      number: windows of this epoch before.
      files: files of this epoch, in its order, that are read.
      records: records of the next file that are read.
      sequences: sequences in all windows before, of all epochs.
    """

    epoch: int = 0
    number: int = 0
    files: int = 0
    records: int = 0
    sequences: int = 0


# Where it begins, rows uint8 [N, num_bytes] in memory, and those that begin a sequence, in the order in which they are
# given.
Window = tuple[Position, np.ndarray, np.ndarray]


class EpisodeStream(OfEpisodes):
    """A `Source` of episodes that are read again in each epoch. Its position belongs in the checkpoint.

    Each sequence is given once in an epoch. `close` ends its threads.

    Attributes:
      max_read_ahead: batches that are ready before they are needed, at most.
    """

    def __init__(
        self,
        storage: Storage,
        read: ReadEpisodes,
        batch_size: int,
        window_rows: int,
        seed: int = 0,
        max_epochs: int | None = None,
    ):
        """Allocates memory for batches; reads nothing before the first `grant`.

        Args:
          storage: the layout of a row, and how steps become items.
          read: reads the episodes of an epoch from a position on: Trajectories of arrays [T, ...], each of one or
            several episodes.
          batch_size: sequences of a batch, over all replicas of this process.
          window_rows: rows of a window; it ends with the Trajectory that fills it. Up to four times as many are in
            memory.
          seed: the seed of the order; that of a checkpoint takes precedence.
          max_epochs: passes over the data; the last batch may have sequences of one more.
        """
        self._rows, self._read, self._batch_size = EpisodeRows(storage), read, batch_size
        self._window_rows, self._seed, self._max_epochs = window_rows, seed, max_epochs
        self._slicing, self._block_rows = storage.experience.slicing, block_rows(storage)
        self._length = self._slicing.num_rows
        self._batch_rows = batch_size * self._length
        batch_bytes = self._batch_rows * storage.layout.num_bytes
        part = min(_MAX_BATCHES // _PARTS, _MAX_RING_BYTES // batch_bytes // _PARTS, window_rows // self._batch_rows)
        self.max_read_ahead = self._capacity = _PARTS * max(1, part)
        self._part = max(1, min(part, _MAX_PART_BYTES // batch_bytes))
        self._columns = RingColumns(storage.layout, self._capacity * self._batch_rows)
        self.max_draw_steps = min(self._capacity, self._columns.max_draw_steps(self._batch_rows))
        with tf.device('CPU:0'):
            self._drawn = tf.Variable(0, dtype=tf.int64, trainable=False)  # batches
            self._wanted = tf.Variable(tf.int64.max, trainable=False)  # sequences of all epochs
        self._positions = collections.deque([Position()])  # of the windows that are not given completely
        self._changed = threading.Condition()  # guards the attributes below
        self._written = self._released = 0  # batches
        self._closed = False
        self._thread: background.Thread | None = None

    @property
    def epochs(self) -> float:
        """The passes over the data that are complete."""
        return float(self._current().epoch)

    def metrics(self) -> dict[str, float]:
        """Returns the epochs so far."""
        return {'data/epochs': self.epochs}

    def serialize(self) -> str:
        """Returns the position as JSON."""
        position = dataclasses.asdict(self._current())
        return json.dumps(
            {'seed': self._seed, 'window_rows': self._window_rows, 'batches': self._num_batches(), 'position': position}
        )

    def deserialize(self, string_value: str) -> None:
        """Restores the position of a checkpoint, before the first `grant`; logs it if the windows were others."""
        saved = json.loads(string_value)
        self._seed = saved['seed']
        self._expect(saved, {'window_rows': self._window_rows})
        if 'position' in saved:
            self._positions = collections.deque([Position(**saved['position'])])
            self._drawn.assign(saved['batches'])

    def state(self) -> dict[str, Any]:
        """See `Source`."""
        return {'data': self}

    def grant(self, num_steps: int) -> int:
        """See `Source`: as many as are read by now; waits for the first of them."""
        drawn = self._num_batches()
        with self._changed:
            if self._thread is None and not self._closed:
                self._written = drawn
                self._thread = background.Thread(target=self._run, name='episode_stream')
                self._thread.start()
            self._released = drawn
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self._error or self._available(drawn) > 0 or self.ended)
            return 0 if self._closed else max(0, min(num_steps, self._available(drawn)))

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> Any:
        """See `Source`; the seed has no meaning, since the stream has its own order."""
        del seed, batch_size
        with tf.device('CPU:0'):
            count = tf.cast(num_steps, tf.int64)
            numbers = advance(self._drawn, count) + tf.range(count)
            rows = tf.range(self._batch_rows, dtype=tf.int64)
            rows = tf.reshape(rows, [1, self._batch_size, self._length])
            rows = self._columns.draw((numbers % self._capacity)[:, None, None] * self._batch_rows + rows)
            numbers = numbers[:, None] * self._batch_size + tf.range(self._batch_size, dtype=tf.int64)
            return rows, tf.cast(numbers < self._wanted.read_value(), tf.float32)

    def close(self) -> None:
        """See `Source`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECS)

    def _num_batches(self) -> int:
        return int(self._drawn.numpy())

    def _available(self, drawn: int) -> int:
        return (self._written if self._limit is None else min(self._written, self._limit)) - drawn

    def _current(self) -> Position:
        """Returns where the window of the next sequence begins."""
        drawn = self._num_batches() * self._batch_size
        while len(self._positions) > 1 and self._positions[1].sequences <= drawn:
            self._positions.popleft()
        return self._positions[0]

    def _run(self) -> None:
        """Writes batches to the ring until it is closed, or `max_epochs` are written."""
        try:
            with concurrent.futures.ThreadPoolExecutor(1, 'episode_reader') as pool:
                self._write_windows(pool)
        except Exception as error:  # the training thread raises it
            with self._changed:
                self._error = None if self._closed else error
                self._changed.notify_all()

    def _write_windows(self, pool: concurrent.futures.Executor) -> None:
        first = self._positions[0]
        windows = self._windows(first)
        given = first.sequences  # of all windows, by now
        skipped = self._written * self._batch_size - given  # sequences of the first window
        waiting = np.empty((0, self._columns.num_bytes), np.uint8)  # rows of sequences that are in no batch yet
        start, coming = time.monotonic(), pool.submit(next, windows)
        while True:
            position, window, starts = coming.result()
            if position is first:
                logging.info('read a window of %d sequences in %.1f s', len(starts), time.monotonic() - start)
            else:
                self._positions.append(position)
            if self._stops_before(position):
                return
            coming = pool.submit(next, windows)
            starts, skipped = starts[skipped:], max(0, skipped - len(starts))
            while len(starts):
                missing = self._part * self._batch_size - len(waiting) // self._length
                taken, starts = starts[:missing], starts[missing:]
                rows = window.take((taken[:, None] + np.arange(self._length)).reshape(-1), axis=0)
                waiting = np.concatenate([waiting, rows]) if len(waiting) else rows
                end = len(waiting) // self._batch_rows * self._batch_rows
                if end and not self._write(waiting[:end]):
                    return
                waiting = waiting[end:]

    def _stops_before(self, position: Position) -> bool:
        """Sets the limit when the last epoch is over. Returns whether nothing more is needed."""
        with self._changed:
            if self._max_epochs is not None and self._limit is None and position.epoch >= self._max_epochs:
                self._wanted.assign(position.sequences)  # before a batch is written that has more
                self._limit = -(-position.sequences // self._batch_size)
                self._changed.notify_all()
            return self._closed or (self._limit is not None and self._written >= self._limit)

    def _write(self, rows: np.ndarray) -> bool:
        """Writes batches to the ring when there is room. Returns whether it goes on."""
        count = len(rows) // self._batch_rows
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._written + count <= self._released + self._capacity)
            if self._closed:
                return False
        slot = self._written % self._capacity * self._batch_rows
        fitting = self._capacity * self._batch_rows - slot
        self._columns.write(slot, rows[:fitting])
        self._columns.write(0, rows[fitting:])
        with self._changed:
            self._written += count
            self._changed.notify_all()
            return self._limit is None or self._written < self._limit

    def _windows(self, position: Position) -> Iterator[Window]:
        """Yields the windows from a position on, until it is closed."""
        while not self._closed:
            begins, epoch = position.sequences, position.epoch
            for window in self._windows_of_epoch(position):
                yield window
                position = dataclasses.replace(window[0], sequences=window[0].sequences + len(window[2]))
            if position.sequences == begins and not (position.files or position.records or self._closed):
                raise episode_rows.none_long_enough(self._slicing)
            position = Position(epoch + 1, sequences=position.sequences)

    def _windows_of_epoch(self, position: Position) -> Iterator[Window]:
        after = (position.files, position.records)

        def episodes() -> Iterator[Any]:
            nonlocal after
            for position_after, episode in self._read(self._seed, position.epoch, after):
                after = position_after
                yield episode

        blocks: list[tuple[np.ndarray, np.ndarray]] = []
        num_rows = 0
        for rows, starts in episode_rows.blocks(self._rows, episodes(), min(self._block_rows, self._window_rows)):
            if self._closed:
                return
            blocks.append((rows, num_rows + starts))
            num_rows += len(rows)
            if num_rows >= self._window_rows:
                window = self._window(position, blocks)
                yield window
                position = dataclasses.replace(
                    position,
                    number=position.number + 1,
                    files=after[0],
                    records=after[1],
                    sequences=position.sequences + len(window[2]),
                )
                blocks, num_rows = [], 0
        if blocks:
            yield self._window(position, blocks)

    def _window(self, position: Position, blocks: list[tuple[np.ndarray, np.ndarray]]) -> Window:
        rows, starts = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        order = np.random.default_rng([self._seed, position.epoch, position.number])
        return position, rows, order.permutation(starts)
