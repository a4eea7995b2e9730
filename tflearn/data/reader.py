"""EpisodeReader: files of episodes -> episodes of the columns that an agent needs. Damaged records are skipped."""

import contextlib
import dataclasses
import glob
import pathlib
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf import message
from tf_agents.typing import types

from tflearn.data import columns, derived, writer
from tflearn.data.columns import Column
from tflearn.errors import UserRuntimeError, UserValueError
from tflearn.run_dir import local_path

_HEADER_BYTES, _FOOTER_BYTES = 12, 4  # of a record: its length and two checksums
_BUFFER_BYTES = 1 << 20
_MAX_NAMED = 10  # damaged records that are logged one by one


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Which episodes are read.

    Attributes:
      paths: directories that `tflearn-data` has written, or patterns of such, such as 'data/*'.
      min_return: the smallest return of an episode that is read; None reads all.
      max_return: the greatest return of an episode that is read; None reads all.
      max_episodes: episodes that are read, of all files; None reads all.
      max_damaged: damaged records that are skipped; one more is an error.
    """

    paths: Sequence[str]
    min_return: float | None = None
    max_return: float | None = None
    max_episodes: int | None = None
    max_damaged: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.paths, str) or not self.paths:
            raise UserValueError(f'got Dataset.paths={self.paths!r}; need a list of directories')
        if self.max_episodes is not None and self.max_episodes < 1:
            raise UserValueError(f'got Dataset.max_episodes={self.max_episodes}; need at least 1, or None')
        if self.max_damaged < 0:
            raise UserValueError(f'got Dataset.max_damaged={self.max_damaged}; need 0 or more')


class EpisodeReader:
    """The episodes of a `Dataset`, in the order of its paths and files.

    Attributes:
      directories: the data sets' directories.
      columns: the columns that are read.
      num_read: episodes read since the beginning.
      num_damaged: damaged records skipped since the beginning.
    """

    def __init__(self, dataset: Dataset, data_spec: types.NestedTensorSpec | None = None, need_finite: bool = True):
        """Finds the files, and checks that they have the columns that are needed; reads no episode.

        Args:
          dataset: which episodes are read.
          data_spec: the spec of a Trajectory without outer dimensions; columns that it does not have are not read,
            and those of `derived` are computed. None reads all columns of the first data set.
          need_finite: whether an episode with a number that is NaN or infinite counts as damaged.

        Raises:
          ValueError: if a path has no data set, or one without episodes, or with other columns.
        """
        self._dataset, self._spec, self._need_finite = dataset, data_spec, need_finite
        self.directories = find_directories(dataset)
        described = data_spec is None
        self.columns = columns.read_columns(self.directories[0]) if described else columns.columns_of(data_spec)
        self._computed = () if described else tuple(column for column in self.columns if column in derived.COLUMNS)
        self._stored = tuple(column for column in self.columns if column not in self._computed)
        for directory in self.directories:
            _check_columns(directory, columns.read_columns(directory), self._stored)
        self._shards = [shard for directory in self.directories for shard in writer.shards(directory)]
        if not self._shards:
            raise UserValueError(f'got no episodes in {", ".join(map(str, self.directories))}; need at least one file')
        self.num_read = self.num_damaged = 0

    @property
    def num_steps(self) -> int:
        """Environment steps in all files, before any filter."""
        return sum(shard.steps for shard in self._shards)

    @property
    def num_episodes(self) -> int:
        """Episodes in all files, before any filter."""
        return sum(shard.episodes for shard in self._shards)

    def episodes(self) -> Iterator[Any]:
        """Yields the episodes: Trajectories of arrays [T, ...]; without a spec, dicts of arrays by column.

        Raises:
          RuntimeError: if more records are damaged than the data set allows.
        """
        return (episode for _, episode in self.records())

    def records(self) -> Iterator[tuple[bytes, Any]]:
        """Yields each episode's bytes in its file, a `tf.train.Example`, and the episode; see `episodes`."""
        self.num_read = self.num_damaged = 0
        for shard in self._shards:
            for record, where in self._records(shard.path):
                if self.num_read == self._dataset.max_episodes:
                    return
                try:
                    episode = self._decode(record)
                except (ValueError, IndexError, message.DecodeError) as error:
                    self._skip(where, error)
                    continue
                if episode is not None:
                    self.num_read += 1
                    yield record, episode

    def _records(self, path: pathlib.Path) -> Iterator[tuple[bytes, str]]:
        """Yields records, and where each is in its file."""
        offset, size, compressed = 0, path.stat().st_size, path.suffix == '.gz'
        while offset < size:
            try:
                for record in _read(path, offset, compressed):
                    where = f'{path} at byte {offset}'
                    offset += _HEADER_BYTES + len(record) + _FOOTER_BYTES
                    yield record, where
                return
            except tf.errors.OpError as error:
                self._skip(f'{path} at byte {offset}{" of what is compressed" if compressed else ""}', error)
            after = -1 if compressed else _end_of_record(path, offset)
            if not offset < after <= size:  # the length itself is damaged, or the file ends within the record
                return
            offset = after

    def _skip(self, where: str, error: Exception) -> None:
        self.num_damaged += 1
        reason = ' '.join(str(error).split())
        if self.num_damaged > self._dataset.max_damaged:
            raise UserRuntimeError(
                f'got {self.num_damaged} damaged records, the last one in {where}: {reason}; need at most '
                f'Dataset.max_damaged={self._dataset.max_damaged}; restore the file, or allow more'
            ) from error
        if self.num_damaged <= _MAX_NAMED:
            logging.warning('skipped a damaged record in %s: %s', where, reason)

    def _decode(self, record: bytes) -> Any:
        """Returns the episode of a record; None if a filter leaves it out."""
        features = tf.train.Example.FromString(record).features.feature
        total = sum(features[writer.RETURN].float_list.value)
        low, high = self._dataset.min_return, self._dataset.max_return
        if (low is not None and total < low) or (high is not None and total > high):
            return None
        (num_rows,) = features[writer.NUM_STEPS].int64_list.value
        if missing := [column.name for column in self._stored if column.name not in features]:
            raise UserValueError(f'got an episode without {", ".join(missing)}')
        stored = [column.decode(features[column.name].bytes_list.value[0], num_rows) for column in self._stored]
        named = dict(zip(self._stored, stored, strict=True))
        named |= {column: derived.compute(column, named) for column in self._computed}
        arrays = [named[column] for column in self.columns]
        for column, array in zip(self.columns, arrays, strict=True):
            if self._need_finite and array.dtype.kind == 'f' and not np.isfinite(array).all():
                raise UserValueError(f'got {column.name} with numbers that are not finite')
        if self._spec is None:
            return {column.name: array for column, array in zip(self.columns, arrays, strict=True)}
        return tf.nest.pack_sequence_as(self._spec, arrays)


def find_directories(dataset: Dataset) -> list[pathlib.Path]:
    """Returns the data sets' directories, in the order of the paths; raises ValueError for a path without one."""
    return [directory for path in dataset.paths for directory in _directories(path)]


def _directories(path: str) -> list[pathlib.Path]:
    local_path(path, 'Dataset.paths')
    found = [pathlib.Path(name) for name in sorted(glob.glob(str(pathlib.Path(path).expanduser())))]
    directories = [directory for directory in found if (directory / columns.DESCRIPTION).exists()]
    if not directories:
        nearby = f'; the paths found are {", ".join(map(str, found))}' if found else ''
        raise UserValueError(
            f'got Dataset.paths with {path!r}, where no {columns.DESCRIPTION} is{nearby}; need a directory that '
            'tflearn-data has written'
        )
    return directories


def _check_columns(directory: pathlib.Path, found: Sequence[Column], needed: Sequence[Column]) -> None:
    if set(needed) - set(found):
        raise UserValueError(
            f'got the data set {directory} with {", ".join(map(str, found))}; the agent needs '
            f'{columns.difference(needed, found)}'
        )


def _read(path: pathlib.Path, offset: int, compressed: bool) -> Iterator[bytes]:
    """Yields the records of a file from `offset` on [bytes]. Raises OpError at a damaged one."""
    with contextlib.ExitStack() as opened:
        if offset:  # TensorFlow reads from the beginning of a file only
            rest: Any = opened.enter_context(tempfile.NamedTemporaryFile())
            with path.open('rb') as file:
                file.seek(offset)
                shutil.copyfileobj(file, rest)
            rest.flush()
            path = pathlib.Path(rest.name)
        records = tf.data.TFRecordDataset(str(path), 'GZIP' if compressed else '', buffer_size=_BUFFER_BYTES)
        yield from records.as_numpy_iterator()


def _end_of_record(path: pathlib.Path, offset: int) -> int:
    """Returns where the record ends that begins at `offset`, by its header."""
    with path.open('rb') as file:
        file.seek(offset)
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return -1
    return offset + _HEADER_BYTES + int(struct.unpack('<Q', header[:8])[0]) + _FOOTER_BYTES
