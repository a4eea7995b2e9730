"""Episodes <-> records: a record is the bytes of a `tf.train.Example`,
which holds each column of all steps.

It is of one episode, or of some short ones, such as decisions, whose columns stand one after the
other.

One call of numpy for each column of many episodes, not of each step or each episode: so a collector
hardly notices that it is recorded, and a stream of episodes feeds a learner.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserValueError
from tflearn.data import columns
from tflearn.data.columns import Column

NUM_STEPS, RETURN = 'episode/num_steps', 'episode/return'
FIRST, LAST = int(ts.StepType.FIRST), int(ts.StepType.LAST)
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b'\x0a', b'\x12', b'\x1a'  # the tags of a Feature's fields
_MAX_FRAMES = 4096
_MAX_TOGETHER, _BYTES_TOGETHER = 64, 64 << 10  # episodes of a record, and bytes of their steps
_MIN_EQUAL = 8  # episodes of equal length, on average, that are encoded together

Features = Mapping[str, Any]  # of a tf.train.Example


class Records(NamedTuple):
    """Episodes for a file.

    Attributes:
      data: the bytes of each record's `tf.train.Example`.
      num_steps: the environment steps of each record, without boundary rows.
      totals: the sum of each episode's rewards.
      num_episodes: the episodes of each record.
    """

    data: list[bytes]
    num_steps: list[int]
    totals: list[float]
    num_episodes: list[int]


class Encoder:
    """Makes records of episodes, of many in one call:
    most of the time of a short one would be spent in calls.

    What stands around the numbers of a record depends on the lengths of its episodes, so it is made
    once for each.
    """

    def __init__(self, columns: Sequence[Column]):
        """Takes the columns of a step."""
        self._columns = tuple(columns)
        names = [column.name for column in columns]
        self._step_type, self._reward = names.index('step_type'), names.index('reward')
        self._return_bytes = 4 * math.prod(columns[self._reward].shape)
        fields = [(name, _BYTES_LIST) for name in names] + [(NUM_STEPS, _INT64_LIST), (RETURN, _FLOAT_LIST)]
        self._fields = [(name.encode(), kind) for name, kind in fields]
        self._row_bytes = sum(column.num_bytes for column in columns)
        self._frames: dict[bytes, list[bytes]] = {}

    def __call__(self, episode: Any) -> Records:
        """Encodes one episode: a Trajectory of arrays [T, ...], or its leaves;
        raises ValueError for other columns.
        """
        arrays = [np.asarray(leaf) for leaf in (episode if isinstance(episode, list) else tf.nest.flatten(episode))]
        num_rows = len(arrays[self._step_type])
        for column, array in zip(self._columns, arrays, strict=True):
            if len(array) != num_rows:
                raise UserValueError(f'got {column.name} of {len(array)} steps; need {num_rows}')
        return self.encode(arrays, np.array([0]), np.array([num_rows]))

    def encode(self, arrays: Sequence[np.ndarray], begins: np.ndarray, ends: np.ndarray) -> Records:
        """Encodes several episodes; returns their records.

        Args:
          arrays: the leaves of a Trajectory [N, ...], with the rows of all episodes, in any order
            of episodes.
          begins: the index of each one's first row, int64 [E].
          ends: the index after each one's last row, int64 [E].

        Raises:
          ValueError: for other columns, or an episode without rows.
        """
        lengths = ends - begins
        if not (lengths > 0).all():
            raise UserValueError('got an episode without steps; need at least one')
        different = np.unique(lengths)
        if _MIN_EQUAL * len(different) > len(lengths):
            return self._encode_runs(arrays, begins, ends, range(len(lengths) + 1))
        if len(different) == 1:
            return self._encode_equal(arrays, begins, int(lengths[0]))
        found = np.empty((len(Records._fields), len(lengths)), object)
        for length in different.tolist():
            which = np.flatnonzero(lengths == length)
            for row, values in zip(found, self._encode_equal(arrays, begins[which], length), strict=True):
                row[which] = values
        return Records(*found.tolist())

    def encode_together(self, arrays: Sequence[np.ndarray], begins: np.ndarray, ends: np.ndarray) -> Records:
        """Encodes episodes that stand one after the other, some of them in one record;
        see `encode`.
        """
        most = self.most_together((ends - begins).max())
        return self._encode_runs(arrays, begins, ends, [*range(0, len(begins), most), len(begins)])

    def most_together(self, longest: int) -> int:
        """Returns how many episodes of at most so many rows a record may have."""
        return max(1, min(_MAX_TOGETHER, _BYTES_TOGETHER // self._row_bytes // longest))

    def _encode_runs(
        self, arrays: Sequence[np.ndarray], begins: np.ndarray, ends: np.ndarray, cuts: Sequence[int]
    ) -> Records:
        """Encodes episodes, record after record, each of those from one of `cuts` to the next."""
        lengths, firsts = ends - begins, cuts[:-1]
        data = [(column.encode(array), column.num_bytes) for column, array in zip(self._columns, arrays, strict=True)]
        bounds = zip(begins[firsts].tolist(), ends[np.subtract(cuts[1:], 1)].tolist(), strict=True)
        # One more row, since the last episode may end with the last one; every second sum is of what no episode has,
        # which may be no numbers.
        rewards = np.concatenate([arrays[self._reward], arrays[self._reward][:1]])
        with np.errstate(all='ignore'):
            returns = np.add.reduceat(rewards, np.stack([begins, ends], axis=1).ravel(), axis=0, dtype=np.float64)[::2]
        num_steps = np.add.reduceat(lengths - (arrays[self._step_type][ends - 1] == LAST), firsts).tolist()
        totals = returns.reshape(len(lengths), -1).sum(axis=1).tolist()
        return_data, width, encoded, counts = returns.astype('<f4').tobytes(), self._return_bytes, [], lengths.tolist()
        for first, after, (begin, end) in zip(firsts, cuts[1:], bounds, strict=True):
            pieces: list[Any] = []
            frame = self._frame(counts[first:after])
            for before, (values, size) in zip(frame, data, strict=False):
                pieces += before, values[begin * size : end * size]
            pieces += frame[-1], return_data[first * width : after * width]
            encoded.append(b''.join(pieces))
        return Records(encoded, num_steps, totals, np.diff(cuts).tolist())

    def _encode_equal(self, arrays: Sequence[np.ndarray], begins: np.ndarray, num_rows: int) -> Records:
        """Encodes episodes of equal length: all of a column in one call."""
        count, is_joined = len(begins), (np.diff(begins) == num_rows).all()
        rows = (begins[:, np.newaxis] + np.arange(num_rows)).ravel()
        where = slice(rows[0], rows[-1] + 1) if is_joined else rows  # without a copy, if possible
        arrays = [array[where] for array in arrays]
        rewards = arrays[self._reward]
        returns = rewards.reshape(count, num_rows, *rewards.shape[1:]).sum(axis=1, dtype=np.float64)
        totals = returns.reshape(count, -1).sum(axis=1).tolist()
        num_steps = (num_rows - (arrays[self._step_type][num_rows - 1 :: num_rows] == LAST)).tolist()
        values = [column.encode(array) for column, array in zip(self._columns, arrays, strict=True)]
        parts = [np.frombuffer(each, np.uint8).reshape(count, -1) for each in (*values, returns.astype('<f4'))]
        frame = self._frame([num_rows])
        record = b''.join(before + bytes(part.shape[1]) for before, part in zip(frame, parts, strict=True))
        data, end = np.empty((count, len(record)), np.uint8), 0
        data[:] = np.frombuffer(record, np.uint8)
        for before, part in zip(frame, parts, strict=True):
            begin, end = end + len(before), end + len(before) + part.shape[1]
            data[:, begin:end] = part
        return Records(data.view(f'V{len(record)}')[:, 0].tolist(), num_steps, totals, [1] * count)

    def _frame(self, lengths: Sequence[int]) -> list[bytes]:
        """Returns what comes before the data of each column of episodes of these rows,
        and before their returns.
        """
        counts = bytes(lengths) if max(lengths) < 128 else b''.join(map(_varint, lengths))
        if counts not in self._frames:
            if len(self._frames) == _MAX_FRAMES:
                self._frames.clear()
            sizes = [sum(lengths) * column.num_bytes for column in self._columns]
            *frame, before_counts, before_returns = _frame(
                self._fields, [*sizes, len(counts), len(lengths) * self._return_bytes]
            )
            self._frames[counts] = [*frame, before_counts + counts + before_returns]
        return self._frames[counts]


def _frame(fields: Sequence[tuple[bytes, bytes]], lengths: Sequence[int]) -> list[bytes]:
    """Returns what comes before the data of each field in a `tf.train.Example`,
    in protocol buffers' wire format.

    Args:
      fields: the name of each, and the tag of its kind.
      lengths: the bytes of each one's data.
    """
    pieces = []
    for (name, kind), length in zip(fields, lengths, strict=True):
        value = b'\x0a' + _varint(length)  # of a BytesList, or packed numbers
        feature = kind + _varint(len(value) + length) + value
        entry = b'\x0a' + _varint(len(name)) + name + b'\x12' + _varint(len(feature) + length) + feature
        pieces.append(b'\x0a' + _varint(len(entry) + length) + entry)  # of the map in Features
    # Of the Features in an Example.
    pieces[0] = b'\x0a' + _varint(sum(map(len, pieces)) + sum(lengths)) + pieces[0]
    return pieces


@functools.lru_cache(_MAX_FRAMES)
def _varint(number: int) -> bytes:
    """Returns a number from 0 in the base 128, the lowest digit first,
    with a bit on all digits but the last.
    """
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


class Decoder:
    """Makes episodes of the features of records."""

    def __init__(self, columns: Sequence[Column], computed: Sequence[Column], need_finite: bool):
        """
        Args:
          columns: the columns of the episodes.
          computed: those of them that no record needs to hold, see `columns.DERIVED`.
          need_finite: whether numbers that are NaN or infinite are an error.
        """
        self._columns, self._computed, self._need_finite = tuple(columns), tuple(computed), need_finite
        self._stored = [column for column in columns if column not in computed]

    def __call__(self, records: Sequence[Features]) -> dict[Column, np.ndarray]:
        """Decodes one or several episodes, which are joined.

        Returns:
          The values [T, ...] of each column, T rows in all.

        Raises:
          ValueError, IndexError: if a record is not of episodes of these columns.
        """
        of_each = [features[NUM_STEPS].int64_list.value for features in records]
        sizes, lengths = [*map(sum, of_each)], [length for some in of_each for length in some]
        found = {column: column.decode(_joined(records, column, sizes), sum(sizes)) for column in self._stored}
        for column in self._computed:
            found[column] = _computed(column, found, lengths)
        for column, values in found.items():
            if self._need_finite and values.dtype.kind == 'f' and not np.isfinite(values).all():
                raise UserValueError(f'got {column.name} with numbers that are not finite')
        named = {column.name: values for column, values in found.items()}
        _check_steps(named['step_type'], named['next_step_type'], np.asarray(lengths))
        return {column: found[column] for column in self._columns}


def _joined(records: Sequence[Features], column: Column, lengths: Sequence[int]) -> bytes:
    """Returns the bytes of a column in all records."""
    if any(column.name not in features for features in records):
        raise UserValueError(f'got an episode without {column.name}')
    data = [features[column.name].bytes_list.value[0] for features in records]
    if len(data) == 1:
        return data[0]
    if any(len(part) != length * column.num_bytes for part, length in zip(data, lengths, strict=True)):
        raise UserValueError(f'got {column.name} of another number of steps')
    return b''.join(data)


def _computed(column: Column, found: Mapping[Column, np.ndarray], lengths: Sequence[int]) -> np.ndarray:
    ends = np.cumsum(lengths)
    episodes = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    return np.concatenate(
        [columns.derive(column, {key: values[where] for key, values in found.items()}) for where in episodes]
    )


def _check_steps(step_type: np.ndarray, next_step_type: np.ndarray, lengths: np.ndarray) -> None:
    """Raises ValueError for steps that are not episodes of these lengths,
    each from its beginning to its end.
    """
    first, last = step_type == FIRST, step_type == LAST
    if step_type.size and (step_type.min() < FIRST or step_type.max() > LAST):
        raise UserValueError(
            f'got the step types {np.unique(step_type)[:4].tolist()}; need 0, 1 and 2; check that the numbers are '
            'little-endian'
        )
    ends = np.cumsum(lengths) - 1
    if (
        lengths.min() < 1
        or not first[ends - lengths + 1].all()
        or np.count_nonzero(first) != len(lengths)
        or np.count_nonzero(last) != np.count_nonzero(last[ends])
    ):
        raise UserValueError('got steps that do not begin with the first one of an episode, or are of several episodes')
    after = next_step_type[ends]
    if not (last[ends] | (after == FIRST) | (after == LAST)).all():
        raise UserValueError('got an episode without an end; need complete episodes')
