"""EpisodeWriter: complete episodes -> files of TFRecords. EpisodeRecorder (not that of `actors`):
steps -> episodes.
"""

import bisect
import collections
import dataclasses
import itertools
import math
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs
from tflearn.data import columns
from tflearn.data.columns import Column
from tflearn.data.records import FIRST, LAST, Encoder, Records
from tflearn.data.shards import SUFFIX, find_shards

_MIN_ROWS = 64  # that a recorder has room for
_MAX_BYTES = 4 << 20  # of rows that it takes together


@dataclasses.dataclass
class Numbers:
    """What is known of numbers, however many there were;
    those that are missing (NaN) or infinite are only counted.
    """

    least: float = math.inf
    greatest: float = -math.inf
    total: float = 0.0
    count: int = 0
    missing: int = 0
    infinite: int = 0

    def add(self, values: np.ndarray) -> None:
        """Adds an array of numbers or booleans."""
        if values.dtype.kind == 'f' and not (finite := np.isfinite(values)).all():
            missing, finite_less = int(np.count_nonzero(np.isnan(values))), int(np.count_nonzero(~finite))
            self.missing, self.infinite = self.missing + missing, self.infinite + finite_less - missing
            values = values[finite]
        if values.size:
            self.least, self.greatest = min(self.least, float(values.min())), max(self.greatest, float(values.max()))
            self.total, self.count = self.total + float(values.sum(dtype=np.float64)), self.count + values.size

    @property
    def mean(self) -> float:
        """The mean of the finite ones; NaN if there is none."""
        return self.total / self.count if self.count else math.nan

    def __str__(self) -> str:
        numbers = f'from {self.least:g} to {self.greatest:g}, mean {self.mean:.4g}' if self.count else 'no numbers'
        others = ((self.missing, 'missing (NaN)'), (self.infinite, 'infinite'))
        return ', '.join([numbers, *(f'{count} {name}' for count, name in others if count)])


class EpisodeWriter:
    """Writes episodes to files that appear whole.
    A data set may have several writers of different names.

    A file is begun under a hidden name and renamed when it is full, or with `close`. What a writer
    that was killed had begun is lost, and removed by the next one of the same name.

    Attributes:
      encoder: makes records of episodes.
      num_episodes: episodes in complete files and in the one that is being written, of all sessions
        of this writer.
      num_steps: the same for environment steps, without boundary rows.
      returns: the sums of rewards of the episodes.
      before_close: functions that `close` calls first: they write what their callers hold.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        specs: EnvironmentSpecs,
        stored: Sequence[Column] | None = None,
        name: str = 'data',
        metadata: Mapping[str, Any] | None = None,
        compress: bool = False,
        file_bytes: int = 64 << 20,
    ):
        """Creates the directory and its description; the first file is made with the first episode.

        Args:
          directory: the data set's directory; episodes are added to what it holds.
          specs: the environment's specs.
          stored: the columns of a step; None takes those of a policy that records nothing, see
            `columns.data_spec`.
          name: the writer's name: letters, digits, _ and dots.
          metadata: what is known of the data, for the description.
          compress: compress files with gzip. After a damaged byte the rest of such a file cannot be
            read.
          file_bytes: the size at which a file is full [bytes before compression].

        Raises:
          ValueError: if the data set has other columns, or the name has other characters.
        """
        if not re.fullmatch(r'[\w.]+', name):
            raise UserValueError(f'got name={name!r}; need letters, digits, _ and dots')
        self._directory, self._name, self._file_bytes = directory, name, file_bytes
        self._compress = compress
        stored = tuple(stored or columns.columns_of(columns.data_spec(specs)))
        self.encoder = Encoder(stored)
        columns.describe(directory, specs, stored, metadata or {})
        for left in directory.glob(f'.{name}-*{SUFFIX}*'):
            left.unlink()
        mine = [shard for shard in find_shards(directory) if shard.writer == name]
        self._number = max((shard.number for shard in mine), default=-1) + 1
        self.num_episodes = sum(shard.episodes for shard in mine)
        self.num_steps = sum(shard.steps for shard in mine)
        self.returns = Numbers()
        self.before_close: list[Callable[[], None]] = []
        self._writer: tf.io.TFRecordWriter | None = None
        self._episodes = self._steps = self._bytes = 0  # in the file that is being written
        self._held: list[Sequence[np.ndarray]] = []
        self._longest = 0  # of them [rows]

    def write(self, episode: Any) -> None:
        """Adds one episode.

        Args:
          episode: a Trajectory of arrays [T, ...], or its leaves. It may end with a boundary row
            (LAST -> FIRST).

        Raises:
          ValueError: if it does not fit the spec.
        """
        self.write_records(self.encoder(episode))

    def write_all(self, arrays: Sequence[np.ndarray], begins: np.ndarray, ends: np.ndarray) -> None:
        """Adds several episodes: the rows from `begins` to `ends` of arrays,
        see `Encoder.encode`.
        """
        self.write_records(self.encoder.encode(arrays, begins, ends))

    def write_records(self, records: Records) -> None:
        """Adds episodes that `encoder` has made."""
        self._append(records.data, records.num_steps, records.num_episodes)
        self.returns.add(np.array(records.totals))

    def write_together(self, leaves: Sequence[np.ndarray]) -> None:
        """Adds one episode, of which a reader has checked the columns; short ones share a record.

        It may wait for others until `close`, and counts from then on.

        Args:
          leaves: the arrays [T, ...] of all columns.
        """
        longest = max(self._longest, len(leaves[0]))
        if self._held and len(self._held) >= self.encoder.most_together(longest):
            self._write_held()
            longest = len(leaves[0])
        self._held.append(leaves)
        self._longest = longest

    def _write_held(self) -> None:
        """Writes the episodes that wait for others."""
        if self._held:
            ends = np.cumsum([len(leaves[0]) for leaves in self._held])
            arrays = [np.concatenate(column) for column in zip(*self._held, strict=True)]
            self.write_records(self.encoder.encode_together(arrays, np.r_[0, ends[:-1]], ends))
        self._held, self._longest = [], 0

    def _append(self, records: Sequence[bytes], num_steps: Sequence[int], num_episodes: Sequence[int]) -> None:
        """Adds records to the file that is being written,
        and those that come when it is full to the next one.
        """
        end = 0
        while end < len(records):
            if self._writer is None:
                options = tf.io.TFRecordOptions(compression_type='GZIP' if self._compress else '')
                self._writer = tf.io.TFRecordWriter(str(self._begun), options)
            begin, sizes = end, list(itertools.accumulate(map(len, records[end:]), initial=self._bytes))
            # The record with which the file is full is its last one.
            end = min(len(records), begin + bisect.bisect_left(sizes, self._file_bytes, lo=1))
            # Of short records the method of this class, which only calls that of its base, takes half of the time.
            base: Any = super(tf.io.TFRecordWriter, self._writer)
            collections.deque(map(base.write, records[begin:end]), maxlen=0)
            steps, episodes = sum(num_steps[begin:end]), sum(num_episodes[begin:end])
            self._bytes = sizes[end - begin]
            self._episodes, self._steps = self._episodes + episodes, self._steps + steps
            self.num_episodes += episodes
            self.num_steps += steps
            if self._bytes >= self._file_bytes:
                self.finish_file()

    def finish_file(self) -> None:
        """Completes the file that is being written: its episodes can be read from now on."""
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        name = f'{self._name}-{self._number:05d}-e{self._episodes}-s{self._steps}{self._suffix}'
        self._begun.rename(self._directory / name)
        self._number += 1
        self._episodes = self._steps = self._bytes = 0

    def close(self) -> None:
        """Takes what `before_close` still holds, and completes the file."""
        try:
            for flush in self.before_close:
                flush()
            self._write_held()
        finally:
            self.finish_file()

    @property
    def _suffix(self) -> str:
        return SUFFIX + ('.gz' if self._compress else '')

    @property
    def _begun(self) -> pathlib.Path:
        return self._directory / f'.{self._name}-{self._number:05d}{self._suffix}'


class EpisodeRecorder:
    """An observer of an actor's steps that writes episodes which have ended;
    those that never end are not written, nor those that a failure of the environment interrupts
    (FIRST after a step that is not LAST).

    The rows of an episode are kept in memory until then. Episodes are written together, after
    several steps, or when the writer is closed.

    Attributes:
      num_episodes: those that the writer had, and those that have ended since, written or not.
      num_steps: the same for environment steps, without boundary rows.
      num_dropped: the number of interrupted episodes, but for those that nobody asked for.
      dropped_in_a_row: int [B], those of each environment since its newest whole one.
    """

    def __init__(self, writer: EpisodeWriter, num_environments: int, num_episodes: int | None = None):
        """
        Args:
          writer: gets the episodes.
          num_environments: B.
          num_episodes: how many are written: the first ones of each environment, as many of each as
            of any other (one more of the first environments), since the first ones that end are the
            short ones. None writes all.
        """
        self.num_episodes, self.num_steps, self.num_dropped = writer.num_episodes, writer.num_steps, 0
        self.dropped_in_a_row = np.zeros(num_environments, np.int64)
        self._writer = writer
        self._rows: list[trajectory.Trajectory] = []  # the newest ones
        self._max_rows = 1  # of them
        self._columns: list[np.ndarray] = []  # [B, rows, ...], of the rows before
        self._num_rows = 0  # in the columns
        # Rows are counted from the beginning of the recording.
        self._number, self._offset = 0, 0  # of the next row, of the first one in the columns
        self._begin = np.full(num_environments, -1)  # the first row of each environment's episode
        # Episodes of each environment.
        self._missing = np.full(num_environments, np.iinfo(np.int64).max)
        if num_episodes is not None:
            share, rest = divmod(num_episodes, num_environments)
            self._missing[:] = share + (np.arange(num_environments) < rest)
        # Environments, their first rows, the row after.
        self._ended: list[tuple[np.ndarray, np.ndarray, int]] = []
        writer.before_close.append(self.flush)

    def __call__(self, row: trajectory.Trajectory) -> None:
        """Takes one step of every environment: arrays [B, ...] that do not change,
        boundary rows included.
        """
        self._rows.append(row)
        step_type = np.asarray(row.step_type)
        begins, ends = step_type == FIRST, np.asarray(row.next_step_type) == FIRST
        if np.count_nonzero(begins):
            self._begin[begins] = self._number
        ends |= step_type == LAST
        if np.count_nonzero(ends):
            # An environment that returned FIRST twice has made no step between.
            ends_one = ends & (self._begin >= 0) & (self._begin < self._number) & (self._missing > 0)
            ended, dropped = np.flatnonzero(ends_one & (step_type == LAST)), ends_one & (step_type != LAST)
            self.num_dropped += int(np.count_nonzero(dropped))
            self.dropped_in_a_row[ended], self.dropped_in_a_row[dropped] = 0, self.dropped_in_a_row[dropped] + 1
            self._missing[ended] -= 1
            first = self._begin[ended]
            self._begin[ends] = -1
            self._ended.append((ended, first, self._number + 1))
            self.num_episodes += len(ended)
            self.num_steps += len(ended) * self._number - int(first.sum())
        self._number += 1
        if len(self._rows) >= self._max_rows:
            self.flush()

    @property
    def longest(self) -> int:
        """The steps of the longest episode that is to be written and has not ended."""
        running = self._begin[(self._begin >= 0) & (self._missing > 0)]
        return self._number - int(running.min(initial=self._number))

    def flush(self) -> None:
        """Writes all episodes that have ended."""
        if self._rows:
            rows, self._rows = self._rows, []
            self._append(tf.nest.flatten(rows), len(rows))
        waiting, self._ended = [ended for ended in self._ended if len(ended[0])], []
        if waiting:
            environments, first, after = zip(*waiting, strict=True)
            joined = [column.reshape(-1, *column.shape[2:]) for column in self._columns]
            offsets = np.concatenate(environments) * self._columns[0].shape[1] - self._offset
            ends = np.repeat(after, [len(each) for each in first])
            self._writer.write_all(joined, offsets + np.concatenate(first), offsets + ends)

    def _append(self, leaves: Sequence[Any], count: int) -> None:
        """Adds rows to the columns: their leaves, row by row."""
        num_columns = len(leaves) // count
        if not self._columns:
            arrays = [np.asarray(leaf) for leaf in leaves[:num_columns]]
            self._columns = [np.empty((len(array), _MIN_ROWS, *array.shape[1:]), array.dtype) for array in arrays]
            self._max_rows = max(1, min(_MIN_ROWS, _MAX_BYTES // max(1, sum(array.nbytes for array in arrays))))
        self._make_room(count)
        for j, column in enumerate(self._columns):
            block = np.concatenate(leaves[j::num_columns]).reshape(count, len(column), *column.shape[2:])
            column[:, self._num_rows : self._num_rows + count] = block.swapaxes(0, 1)
        self._num_rows += count

    def _make_room(self, count: int) -> None:
        """Makes room for more rows: of those of complete episodes, or of more memory."""
        while self._num_rows + count > self._columns[0].shape[1]:
            needed = np.concatenate([self._begin[self._begin >= 0], *(first for _, first, _ in self._ended)])
            unused = int(needed.min(initial=self._offset + self._num_rows)) - self._offset
            if unused == 0 or 2 * unused < self._num_rows:
                self._columns = [np.concatenate([column, np.empty_like(column)], axis=1) for column in self._columns]
                continue
            for column in self._columns:
                # No overlap.
                column[:, : self._num_rows - unused] = column[:, unused : self._num_rows]
            self._num_rows -= unused
            self._offset += unused
