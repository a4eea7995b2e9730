"""Episodes <-> records: a record is the bytes of a `tf.train.Example`, which holds each column of all steps.

One Python call for each column, not for each column of each step, or even of each episode: so a collector hardly
notices that it is recorded, and a stream of episodes feeds a learner.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.data import derived
from tflearn.data.columns import Column
from tflearn.errors import UserValueError

NUM_STEPS, RETURN = 'episode/num_steps', 'episode/return'
FIRST, LAST = int(ts.StepType.FIRST), int(ts.StepType.LAST)
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = b'\x0a', b'\x12', b'\x1a'  # the tags of a Feature's fields
_MAX_FRAMES = 4096

Features = Mapping[str, Any]  # of a tf.train.Example


class Record(NamedTuple):
    """An episode for a file.

    Attributes:
      data: the bytes of its `tf.train.Example`.
      num_steps: its environment steps, without boundary rows.
      total: the sum of its rewards.
    """

    data: bytes
    num_steps: int
    total: float


class Encoder:
    """Makes records of episodes.

    What stands around the numbers of a record depends on the number of rows alone, so it is made once for each.
    """

    def __init__(self, columns: Sequence[Column]):
        """Takes the columns of a step."""
        self._columns = tuple(columns)
        names = [column.name for column in columns]
        self._step_type, self._reward = names.index('step_type'), names.index('reward')
        fields = [(name, _BYTES_LIST) for name in names] + [(NUM_STEPS, _INT64_LIST), (RETURN, _FLOAT_LIST)]
        self._fields = [(name.encode(), kind) for name, kind in fields]
        self._frames: dict[int, list[bytes]] = {}

    def __call__(self, episode: Any) -> Record:
        """Encodes one episode: a Trajectory of arrays [T, ...], or its leaves; raises ValueError for other columns."""
        arrays = [np.asarray(leaf) for leaf in (episode if isinstance(episode, list) else tf.nest.flatten(episode))]
        step_type, num_rows = arrays[self._step_type], len(arrays[self._step_type])
        returns = np.add.reduce(arrays[self._reward], axis=0, dtype=np.float64)
        data = [
            array.tobytes()
            if array.dtype == column.stored and array.shape == (num_rows, *column.shape)
            else _encode(column, array, num_rows)
            for column, array in zip(self._columns, arrays, strict=True)
        ]
        data += [_varint(num_rows), returns.astype('<f4').tobytes()]
        if num_rows not in self._frames:
            if len(self._frames) == _MAX_FRAMES:
                self._frames.clear()
            self._frames[num_rows] = _frame(self._fields, list(map(len, data)))
        pieces = [piece for pair in zip(self._frames[num_rows], data, strict=True) for piece in pair]
        total = float(returns.sum() if returns.ndim else returns)
        return Record(b''.join(pieces), int(np.count_nonzero(step_type != LAST)), total)


def _encode(column: Column, array: np.ndarray, num_rows: int) -> bytes:
    if len(array) != num_rows:
        raise UserValueError(f'got {column.name} of {len(array)} steps; need {num_rows}')
    return column.encode(array)


def _frame(fields: Sequence[tuple[bytes, bytes]], lengths: Sequence[int]) -> list[bytes]:
    """Returns what comes before the data of each field in a `tf.train.Example`, in protocol buffers' wire format.

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
    pieces[0] = b'\x0a' + _varint(sum(map(len, pieces)) + sum(lengths)) + pieces[0]  # of the Features in an Example
    return pieces


def _varint(number: int) -> bytes:
    """Returns a number from 0 in the base 128, the lowest digit first, with a bit on all digits but the last."""
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
          computed: those of them that no record needs to hold, see `derived`.
          need_finite: whether numbers that are NaN or infinite are an error.
        """
        self._columns, self._computed, self._need_finite = tuple(columns), tuple(computed), need_finite
        self._stored = [column for column in columns if column not in computed]

    def __call__(self, records: Sequence[Features]) -> dict[Column, np.ndarray]:
        """Decodes one or several episodes, which are joined.

        Returns:
          The values [T, ...] of each column, T rows in all.

        Raises:
          ValueError, IndexError: if a record is not one episode of these columns.
        """
        lengths = []
        for features in records:
            (num_rows,) = features[NUM_STEPS].int64_list.value
            lengths.append(num_rows)
        found = {column: column.decode(_joined(records, column, lengths), sum(lengths)) for column in self._stored}
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
        [derived.compute(column, {key: values[where] for key, values in found.items()}) for where in episodes]
    )


def _check_steps(step_type: np.ndarray, next_step_type: np.ndarray, lengths: np.ndarray) -> None:
    """Raises ValueError for steps that are not episodes of these lengths, each from its beginning to its end."""
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
