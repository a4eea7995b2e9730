"""EpisodeReader: files of episodes -> episodes of the columns that an agent needs. Damaged records are skipped."""

import contextlib
import dataclasses
import glob
import itertools
import pathlib
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf import message
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.data import columns, derived, writer
from tflearn.data.columns import Column
from tflearn.errors import UserOSError, UserRuntimeError, UserValueError
from tflearn.run_dir import local_path

_HEADER_BYTES, _FOOTER_BYTES = 12, 4  # of a record: its length and two checksums
_BUFFER_BYTES = 1 << 20
_MAX_AT_ONCE, _BYTES_AT_ONCE = 64, 4 << 20  # of records that are read by one call
_MAX_NAMED = 10  # damaged records that are logged one by one
_OTHER_FORMATS = {'Minari': 'main_data.hdf5', 'RLDS': 'features.json', 'Parquet': '*.parquet', 'HDF5': '*.hdf5'}


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Which episodes are read.

    Attributes:
      paths: directories that `tflearn-data` has written, or patterns of such, such as 'data/*'.
      weights: one for each of `paths`: each batch has sequences of all of them, in these proportions; then the other
        settings hold for each path by itself. () draws from all episodes alike.
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
    weights: Sequence[float] = ()

    def __post_init__(self) -> None:
        if isinstance(self.paths, str) or not self.paths:
            raise UserValueError(f'got Dataset.paths={self.paths!r}; need a list of directories')
        if self.max_episodes is not None and self.max_episodes < 1:
            raise UserValueError(f'got Dataset.max_episodes={self.max_episodes}; need at least 1, or None')
        if self.max_damaged < 0:
            raise UserValueError(f'got Dataset.max_damaged={self.max_damaged}; need 0 or more')
        if self.weights and len(self.weights) != len(self.paths):
            raise UserValueError(
                f'got Dataset.weights={tuple(self.weights)} for Dataset.paths={list(self.paths)}; need one for each'
            )

    def parts(self) -> list['Dataset']:
        """Returns the data sets that the weights are of: one for each path; this one if there are no weights."""
        if not self.weights:
            return [self]
        return [dataclasses.replace(self, paths=[path], weights=()) for path in self.paths]


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of a data set's episodes that a reader reads.

    Attributes:
      validation_share: the share of episodes that are kept for validation; the content of an episode decides, so it
        stays the same when others are added, and equal episodes are on one side.
      validation: read those that are kept for validation, not the others.
      pipeline: the index of the input pipeline that reads.
      num_pipelines: input pipelines that divide the data: by files, or by episodes if there are fewer files.
    """

    validation_share: float = 0.0
    validation: bool = False
    pipeline: int = 0
    num_pipelines: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.validation_share < 1:
            raise UserValueError(f'got validation_share={self.validation_share}; need a number from 0, below 1')
        if not 0 <= self.pipeline < self.num_pipelines:
            raise UserValueError(f'got pipeline {self.pipeline} of {self.num_pipelines}; need an index below that')

    def files(self, shards: Sequence[writer.Shard]) -> list[writer.Shard]:
        """Returns the files that hold episodes of this pipeline: about the same number of steps for each."""
        if self._divides_episodes(shards):
            return list(shards)
        loads = [0] * self.num_pipelines
        mine = set()
        for i in sorted(range(len(shards)), key=lambda i: -shards[i].steps):
            least = loads.index(min(loads))
            loads[least] += shards[i].steps
            if least == self.pipeline:
                mine.add(i)
        return [shard for i, shard in enumerate(shards) if i in mine]

    def episode_divisor(self, shards: Sequence[writer.Shard]) -> int:
        """Returns n: each n-th record of a file is of this pipeline."""
        return self.num_pipelines if self._divides_episodes(shards) else 1

    def holds(self, record: bytes) -> bool:
        """Returns whether an episode is on this side of the split."""
        return not self.validation_share or (zlib.crc32(record) < self.validation_share * 2**32) == self.validation

    def _divides_episodes(self, shards: Sequence[writer.Shard]) -> bool:
        return len(shards) < self.num_pipelines


class EpisodeReader:
    """The episodes of a `Dataset`, in the order of its paths and files.

    Attributes:
      directories: the data sets' directories.
      columns: the columns that are read.
      num_read: episodes read since the beginning.
      num_damaged: damaged records skipped since the beginning.
    """

    def __init__(
        self,
        dataset: Dataset,
        data_spec: types.NestedTensorSpec | None = None,
        need_finite: bool = True,
        part: Part = Part(),
    ):
        """Finds the files, and checks that they have the columns that are needed; reads no episode.

        Args:
          dataset: which episodes are read.
          data_spec: the spec of a Trajectory without outer dimensions; columns that it does not have are not read,
            and those of `derived` are computed. None reads all columns of the first data set.
          need_finite: whether an episode with a number that is NaN or infinite counts as damaged.
          part: which part of them is read.

        Raises:
          ValueError: if a path has no data set, or one without episodes, or with other columns.
        """
        self._dataset, self._spec, self._need_finite, self._part = dataset, data_spec, need_finite, part
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
        self._every = part.episode_divisor(self._shards)
        self._shards = part.files(self._shards)
        self.num_read = self.num_damaged = 0
        self._named: set[str] = set()

    @property
    def num_steps(self) -> int:
        """Environment steps in all files that are read, before any filter."""
        return sum(shard.steps for shard in self._shards)

    @property
    def num_episodes(self) -> int:
        """Episodes in all files that are read, before any filter."""
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
        num_passed = 0  # the filters
        for shard in self._shards:
            for record, where in self._own_records(shard):
                if num_passed == self._dataset.max_episodes:
                    return
                passes, episode = self._try(record, where)
                num_passed += passes
                if episode is not None:
                    yield record, episode

    def shuffled(self, seed: int, epoch: int, begin: tuple[int, int] = (0, 0)) -> Iterator[tuple[tuple[int, int], Any]]:
        """Yields the episodes file by file, the files in another order in each epoch.

        Args:
          seed: the seed of the order.
          epoch: the number of the epoch.
          begin: files that are passed over, and records of the next one.

        Returns:
          For each episode, what `begin` has to be to go on after it; and the episode, see `episodes`.

        Raises:
          RuntimeError: if more records are damaged than the data set allows.
        """
        self.num_read = self.num_damaged = 0
        order = np.random.default_rng([seed, epoch]).permutation(len(self._shards))
        for i in range(begin[0], len(order)):
            passed_over = begin[1] if i == begin[0] else 0
            for number, (record, where) in enumerate(self._own_records(self._shards[order[i]]), 1):
                episode = self._try(record, where)[1] if number > passed_over else None
                if episode is not None:
                    yield (i, number), episode

    def _try(self, record: bytes, where: str) -> tuple[bool, Any]:
        """Returns whether a record passes the filters; and its episode, None if it does not or is of another part."""
        try:
            features = tf.train.Example.FromString(record).features.feature
            if not self._passes(features):
                return False, None
            if not self._part.holds(record):
                return True, None
            episode = self._decode(features)
        except (ValueError, IndexError, message.DecodeError) as error:
            self._skip(where, error)
            return False, None
        self.num_read += 1
        return True, episode

    def _own_records(self, shard: writer.Shard) -> Iterator[tuple[bytes, str]]:
        records = self._records(shard)
        return records if self._every == 1 else itertools.islice(records, self._part.pipeline, None, self._every)

    def _records(self, shard: writer.Shard) -> Iterator[tuple[bytes, str]]:
        """Yields records, and where each is in its file."""
        path = shard.path
        try:
            with path.open('rb'):  # TensorFlow's error for a file that cannot be opened is that of a damaged record
                offset, size, compressed = 0, path.stat().st_size, path.suffix == '.gz'
        except OSError as error:
            raise UserOSError(f'got {path}, which cannot be read ({error.strerror}); need a readable file') from error
        # Each call of TensorFlow takes longer than to read a small record.
        at_once = max(1, min(_MAX_AT_ONCE, _BYTES_AT_ONCE * shard.episodes // max(1, size)))
        while offset < size:
            try:
                for record in _read(path, offset, compressed, at_once):
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
        if self.num_damaged <= _MAX_NAMED and where not in self._named:
            self._named.add(where)
            logging.warning('skipped a damaged record in %s: %s', where, reason)

    def _passes(self, features: Any) -> bool:
        """Returns whether the filters leave an episode in."""
        total = sum(features[writer.RETURN].float_list.value)
        low, high = self._dataset.min_return, self._dataset.max_return
        return not ((low is not None and total < low) or (high is not None and total > high))

    def _decode(self, features: Any) -> Any:
        """Returns the episode of a record's features."""
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
        by_name = {column.name: array for column, array in zip(self.columns, arrays, strict=True)}
        _check_steps(by_name['step_type'], by_name['next_step_type'])
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
        nearby = f'; the paths found are {", ".join(map(_with_format, found))}' if found else ''
        raise UserValueError(
            f'got Dataset.paths with {path!r}, where no {columns.DESCRIPTION} is{nearby}; need a directory that '
            'tflearn-data has written, or has converted (tflearn-data convert)'
        )
    return directories


def _with_format(path: pathlib.Path) -> str:
    """Returns the path, and which other format it seems to have."""
    for name, pattern in _OTHER_FORMATS.items():
        if path.match(pattern) or (path.is_dir() and any(path.rglob(pattern))):
            return f'{path} ({name})'
    return str(path)


def _check_steps(step_type: np.ndarray, next_step_type: np.ndarray) -> None:
    """Raises ValueError for steps that are not one episode from its beginning to its end."""
    first, last = ts.StepType.FIRST, ts.StepType.LAST
    if not ((step_type >= first) & (step_type <= last)).all():
        raise UserValueError(
            f'got the step types {np.unique(step_type)[:4].tolist()}; need 0, 1 and 2; check that the numbers are '
            'little-endian'
        )
    if not len(step_type) or step_type[0] != first or (step_type[1:] == first).any() or (step_type[:-1] == last).any():
        raise UserValueError('got steps that do not begin with the first one of an episode, or are of several episodes')
    if step_type[-1] != last and next_step_type[-1] not in (first, last):
        raise UserValueError('got an episode without an end; need complete episodes')


def _check_columns(directory: pathlib.Path, found: Sequence[Column], needed: Sequence[Column]) -> None:
    if set(needed) - set(found):
        raise UserValueError(
            f'got the data set {directory} with {", ".join(map(str, found))}; the agent needs '
            f'{columns.difference(needed, found)}'
        )


def _read(path: pathlib.Path, offset: int, compressed: bool, at_once: int) -> Iterator[bytes]:
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
        num_read = 0
        try:
            for several in records.batch(at_once).as_numpy_iterator():
                yield from several
                num_read += len(several)
        except tf.errors.OpError:  # in these, some may be readable
            yield from records.skip(num_read).as_numpy_iterator()


def _end_of_record(path: pathlib.Path, offset: int) -> int:
    """Returns where the record ends that begins at `offset`, by its header."""
    with path.open('rb') as file:
        file.seek(offset)
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return -1
    return offset + _HEADER_BYTES + int(struct.unpack('<Q', header[:8])[0]) + _FOOTER_BYTES
