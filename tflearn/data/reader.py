"""EpisodeReader: files of episodes -> episodes of the columns that an agent needs.
Damaged records are skipped.
"""

import contextlib
import dataclasses
import glob
import itertools
import pathlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf import message
from tf_agents.typing import types

from tflearn.core import record_files
from tflearn.core.errors import UserOSError, UserRuntimeError, UserValueError
from tflearn.core.settings import NonNegativeInt, PositiveInt, Range, checked_dataclass
from tflearn.core.types import differ_in_start, integer_bounds, named_leaves
from tflearn.data import columns
from tflearn.data.columns import Column
from tflearn.data.records import FIRST, NUM_STEPS, RETURN, Decoder, Encoder, Features
from tflearn.data.shards import Shard, find_shards
from tflearn.files.run_dir import local_path

# In the directory of a data set: one with the same columns, of episodes with rewards that nobody knows, which are NaN.
UNKNOWN = 'unknown'
_MAX_AT_ONCE, _BYTES_AT_ONCE = 64, 4 << 20  # of records that are decoded together
_MAX_NAMED = 10  # damaged records that are logged one by one
_DAMAGES = (ValueError, IndexError, message.DecodeError)


@checked_dataclass(frozen=True)
class Dataset:
    """Which episodes are read.

    Attributes:
      paths: directories that `tflearn data` has written, or patterns of such, such as 'data/*'.
      weights: one for each of `paths`: each batch has sequences of all of them, in these
        proportions; then the other settings hold for each path by itself. () draws from all
        episodes alike.
      min_return: the smallest return of an episode that is read; None reads all.
      max_return: the greatest return of an episode that is read; None reads all.
      max_episodes: episodes that are read, of all files; None reads all.
      max_damaged: damaged records that are skipped; one more is an error.
    """

    paths: Sequence[str]
    min_return: float | None = None
    max_return: float | None = None
    max_episodes: PositiveInt | None = None
    max_damaged: NonNegativeInt = 0
    weights: Sequence[float] = ()

    def __post_init__(self) -> None:
        if isinstance(self.paths, str) or not self.paths:
            raise UserValueError(f'got Dataset.paths={self.paths!r}; need a list of directories')
        if self.weights and len(self.weights) != len(self.paths):
            raise UserValueError(
                f'got Dataset.weights={tuple(self.weights)} for Dataset.paths={list(self.paths)}; need one for each'
            )

    def parts(self) -> list['Dataset']:
        """Returns the data sets that the weights are of: one for each path;
        this one if there are no weights.
        """
        if not self.weights:
            return [self]
        return [dataclasses.replace(self, paths=[path], weights=()) for path in self.paths]


@checked_dataclass(frozen=True)
class Part:
    """The part of a data set's episodes that a reader reads.

    Attributes:
      validation_share: the share of episodes that are kept for validation; the content of an
        episode decides, so it stays the same when others are added, and equal episodes are on one
        side.
      validation: read those that are kept for validation, not the others.
      pipeline: the index of the input pipeline that reads.
      num_pipelines: input pipelines that divide the data: by files, or by episodes if there are
        fewer files.
    """

    validation_share: Annotated[float, Range(least=0, below=1)] = 0.0
    validation: bool = False
    pipeline: int = 0
    num_pipelines: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.pipeline < self.num_pipelines:
            raise UserValueError(f'got pipeline {self.pipeline} of {self.num_pipelines}; need an index below that')

    def files(self, shards: Sequence[Shard]) -> list[Shard]:
        """Returns the files that hold episodes of this pipeline:
        about the same number of steps for each.
        """
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

    def episode_divisor(self, shards: Sequence[Shard]) -> int:
        """Returns n: each n-th record of a file is of this pipeline."""
        return self.num_pipelines if self._divides_episodes(shards) else 1

    def holds(self, record: bytes) -> bool:
        """Returns whether an episode is on this side of the split."""
        return not self.validation_share or (zlib.crc32(record) < self.validation_share * 2**32) == self.validation

    def _divides_episodes(self, shards: Sequence[Shard]) -> bool:
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
          data_spec: the spec of a Trajectory without outer dimensions; columns that it does not
            have are not read, and `columns.DERIVED` are computed. None reads all columns of the
            first data set.
          need_finite: whether an episode with a number that is NaN or infinite counts as damaged.
          part: which part of them is read.

        Raises:
          ValueError: if a path has no data set, or one without episodes, or with other columns.
        """
        self._dataset, self._spec, self._part = dataset, data_spec, part
        self.directories = find_directories(dataset)
        described = data_spec is None
        self.columns = columns.read_columns(self.directories[0]) if described else columns.columns_of(data_spec)
        weight = f'policy_info.{columns.WEIGHT}'
        if all(each.name != weight for each in self.columns) and columns.have_weights(self.directories):
            raise UserValueError(
                f'got {self.directories[0]} with {weight}, which does not count here; need data whose decisions stand '
                'for themselves; train on weights with tflearn train-offline'
            )
        computed = [] if described else [column for column in self.columns if column in columns.DERIVED]
        stored = [column for column in self.columns if column not in computed]
        for directory in self.directories:
            _check_columns(directory, columns.read_columns(directory), stored)
            if not described:
                _check_starts(directory, data_spec)
        self._decode = Decoder(self.columns, computed, need_finite)
        self._shards = [shard for directory in self.directories for shard in find_shards(directory)]
        if not self._shards:
            raise UserValueError(f'got no episodes in {", ".join(map(str, self.directories))}; need at least one file')
        self._every = part.episode_divisor(self._shards)
        self._shards = part.files(self._shards)
        self.num_read = self.num_damaged = 0
        self._named: set[str] = set()

    def check_equal(self) -> None:
        """Checks that all data sets have the same columns; raises ValueError if not."""
        for directory in self.directories:
            found = columns.read_columns(directory)
            if set(found) != set(self.columns):
                raise UserValueError(
                    f'got {directory} with {columns.difference(found, self.columns)}, unlike {self.directories[0]}; '
                    'need data sets with equal columns'
                )

    @property
    def num_steps(self) -> int:
        """Environment steps in all files that are read, before any filter."""
        return sum(shard.steps for shard in self._shards)

    @property
    def num_episodes(self) -> int:
        """Episodes in all files that are read, before any filter."""
        return sum(shard.episodes for shard in self._shards)

    def episodes(self) -> Iterator[Any]:
        """Yields the episodes: Trajectories of arrays [T, ...];
        without a spec, dicts of arrays by column.

        Raises:
          RuntimeError: if more records are damaged than the data set allows.
        """
        if self._dataset.max_episodes is not None:
            return (episode for _, episode in self.records())
        return (episode for episodes in self.joined() for episode in self._separate(episodes))

    def records(self) -> Iterator[tuple[bytes, Any]]:
        """Yields each episode's bytes in its file, a `tf.train.Example`, and the episode;
        see `episodes`.
        """
        self.num_read = self.num_damaged = 0
        num_passed = 0  # the filters
        for shard in self._shards:
            for record, where in self._own_records(shard, by_episode=True):
                if num_passed == self._dataset.max_episodes:
                    return
                passes, episode = self._try(record, where)
                num_passed += passes
                if episode is not None:
                    yield record, episode

    def joined(self) -> Iterator[Any]:
        """Yields the episodes in their order, several at a time; see `shuffled`."""
        if self._dataset.max_episodes is not None:
            return self.episodes()
        self.num_read = self.num_damaged = 0
        groups = ((shard, group) for shard in self._shards for _, group in self._groups(shard, 0))
        return (episodes for shard, group in groups if (episodes := self._join(shard, group)) is not None)

    def shuffled(self, seed: int, epoch: int, begin: tuple[int, int] = (0, 0)) -> Iterator[tuple[tuple[int, int], Any]]:
        """Yields the episodes file by file, the files in another order in each epoch.

        Args:
          seed: the seed of the order.
          epoch: the number of the epoch.
          begin: files that are passed over, and records of the next one.

        Returns:
          Of several episodes at a time, what `begin` has to be to go on after them; and the
          episodes, joined: a Trajectory of arrays [T, ...], in which each begins with its FIRST
          row.

        Raises:
          RuntimeError: if more records are damaged than the data set allows.
        """
        self.num_read = self.num_damaged = 0
        order = np.random.default_rng([seed, epoch]).permutation(len(self._shards))
        for i in range(begin[0], len(order)):
            shard = self._shards[order[i]]
            for number, group in self._groups(shard, begin[1] if i == begin[0] else 0):
                episodes = self._join(shard, group)
                if episodes is not None:
                    yield (i, number), episodes

    def _try(self, record: bytes, where: str) -> tuple[bool, Any]:
        """Returns whether a record passes the filters;
        and its episode, None if it does not or is of another part.
        """
        try:
            passes, features = self._chosen(record)
            return passes, None if features is None else self._episode([features])
        except _DAMAGES as error:
            self._skip(where, error)
            return False, None

    def _join(self, shard: Shard, group: Sequence[tuple[bytes, str]]) -> Any:
        """Returns the episodes of those of several records that are read, joined;
        None if there are none.
        """
        try:
            chosen = [features for record, _ in group if (features := self._chosen(record)[1]) is not None]
            return self._episode(chosen) if chosen else None
        except _DAMAGES:  # of one of them
            singles = self._single(shard, group)
            episodes = [episode for one in singles if (episode := self._try(*one)[1]) is not None]
            return tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *episodes) if episodes else None

    def _separate(self, episodes: Any) -> Iterator[Any]:
        """Yields episodes that are joined."""
        leaves = [*episodes.values()] if self._spec is None else tf.nest.flatten(episodes)
        step_type = leaves[[column.name for column in self.columns].index('step_type')]
        begins = np.flatnonzero(step_type == FIRST)
        for begin, end in zip(begins, [*begins[1:], None], strict=True):
            yield self._packed([leaf[begin:end] for leaf in leaves])

    def _packed(self, leaves: Sequence[np.ndarray]) -> Any:
        """Returns the values of the columns as a Trajectory; without a spec as a dict by column."""
        if self._spec is None:
            return {column.name: values for column, values in zip(self.columns, leaves, strict=True)}
        return tf.nest.pack_sequence_as(self._spec, leaves)

    def _chosen(self, record: bytes) -> tuple[bool, Features | None]:
        """Returns whether a record passes the filters;
        and its features, None if it does not or is of another part.
        """
        features = tf.train.Example.FromString(record).features.feature
        passes = self._passes(features)
        return passes, features if passes and self._part.holds(record) else None

    def _groups(self, shard: Shard, passed_over: int) -> Iterator[tuple[int, list[tuple[bytes, str]]]]:
        """Yields several records of a file, and how many were read by then;
        passes over the first ones.

        A group ends at the same record wherever the first one begins.
        """
        size, number, group = _at_once(shard), 0, []
        for number, record in enumerate(self._own_records(shard), 1):
            if number > passed_over:
                group.append(record)
            if number % size == 0 and group:
                yield number, group
                group = []
        if group:
            yield number, group

    def _own_records(self, shard: Shard, by_episode: bool = False) -> Iterator[tuple[bytes, str]]:
        """Yields those of this pipeline; of one episode each,
        where one may be read and another one not.
        """
        records, limits = self._records(shard), (self._dataset.min_return, self._dataset.max_return)
        if by_episode or self._every > 1 or self._part.validation_share or limits != (None, None):
            records = self._single(shard, records)
        return records if self._every == 1 else itertools.islice(records, self._part.pipeline, None, self._every)

    def _single(self, shard: Shard, records: Iterable[tuple[bytes, str]]) -> Iterator[tuple[bytes, str]]:
        """Yields the record that each episode would have for itself."""
        stored = columns.read_columns(shard.path.parent)
        encode, decode = Encoder(stored), Decoder(stored, [], need_finite=False)
        for record, where in records:
            try:
                features = tf.train.Example.FromString(record).features.feature
                lengths = np.array(features[NUM_STEPS].int64_list.value)
                if len(lengths) < 2:
                    yield record, where
                    continue
                ends, arrays = np.cumsum(lengths), [*decode([features]).values()]
                found = encode.encode(arrays, ends - lengths, ends).data
            except _DAMAGES as error:
                self._skip(where, error)
                continue
            yield from ((each, where) for each in found)

    def _records(self, shard: Shard) -> Iterator[tuple[bytes, str]]:
        """Yields records, and where each is in its file."""
        path, offset, size = shard.path, 0, _size(shard.path)
        compressed = path.suffix == '.gz'
        while offset < size:
            try:
                for record in record_files.read(path, offset, 'GZIP' if compressed else ''):
                    where = f'{path} at byte {offset}'
                    offset += len(record) + record_files.FRAME_BYTES
                    yield record, where
                return
            except tf.errors.OpError as error:
                self._skip(f'{path} at byte {offset}{" of what is compressed" if compressed else ""}', error)
            after = -1 if compressed else _end_of_record(path, offset)
            # The length itself is damaged, or the file ends within the record.
            if not offset < after <= size:
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
        low, high = self._dataset.min_return, self._dataset.max_return
        if low is None and high is None:
            return True
        total = sum(features[RETURN].float_list.value)
        return not ((low is not None and total < low) or (high is not None and total > high))

    def _episode(self, features: Sequence[Features]) -> Any:
        """Returns the episodes of records, joined: a Trajectory, or a dict of arrays by column."""
        values = self._decode(features)
        self.num_read += sum(len(each[NUM_STEPS].int64_list.value) for each in features)
        return self._packed([*values.values()])


def with_unknown(dataset: Dataset, data_spec: types.NestedTensorSpec | None = None) -> dict[str, EpisodeReader]:
    """Returns readers of data sets, by '', and of those in their directories `UNKNOWN`, by that,
    if there are any.
    """
    readers = {'': EpisodeReader(dataset, data_spec)}
    found = [directory / UNKNOWN for directory in readers[''].directories]
    if unknown := [str(path) for path in found if path.exists()]:
        readers[UNKNOWN] = EpisodeReader(Dataset(unknown), data_spec, need_finite=False)
    return readers


def find_directories(dataset: Dataset) -> list[pathlib.Path]:
    """Returns the data sets' directories, in the order of the paths;
    raises ValueError for a path without one.
    """
    return [directory for path in dataset.paths for directory in _directories(path)]


def _directories(path: str) -> list[pathlib.Path]:
    local_path(path, 'Dataset.paths', may_be_pattern=True)
    found = [pathlib.Path(name) for name in sorted(glob.glob(str(pathlib.Path(path).expanduser())))]
    directories = [directory for directory in found if (directory / columns.DESCRIPTION).exists()]
    if not directories:
        nearby = f'; the paths found are {", ".join(map(str, found))}' if found else ''
        raise UserValueError(
            f'got Dataset.paths with {path!r}, where no {columns.DESCRIPTION} is{nearby}; need a directory that '
            'tflearn data has written, or has converted (tflearn data convert)'
        )
    return directories


def _check_starts(directory: pathlib.Path, data_spec: types.NestedTensorSpec) -> None:
    """Checks that choices are counted from the same numbers."""
    needed = {path: leaf for path, leaf in named_leaves(data_spec).items() if integer_bounds(leaf) is not None}
    if not needed:
        return
    given = columns.data_spec(columns.read_specs(directory))
    for path, leaf in named_leaves(given).items():
        if path in needed and differ_in_start(leaf, needed[path]):
            starts = [np.asarray(each.minimum).tolist() for each in (leaf, needed[path])]
            raise UserValueError(
                f'got {directory}, which counts {path} from {starts[0]}; need {starts[1]}, the start of its '
                'space; record them again'
            )


def _check_columns(directory: pathlib.Path, found: Sequence[Column], needed: Sequence[Column]) -> None:
    if missing := set(needed) - set(found):
        stores = any(str(each).startswith('policy_info.policy_state') for each in missing)
        advice = '; set Slicing.store_policy_state=False, since no states of a policy were recorded' if stores else ''
        raise UserValueError(
            f'got the data set {directory} with {", ".join(map(str, found))}; the agent needs '
            f'{columns.difference(needed, found)}{advice}'
        )


def _at_once(shard: Shard) -> int:
    """Returns how many records are decoded together:
    a call of numpy takes longer than a short episode.
    """
    return max(1, min(_MAX_AT_ONCE, _BYTES_AT_ONCE * shard.episodes // max(1, _size(shard.path))))


def _size(path: pathlib.Path) -> int:
    """Returns the size of a file [bytes]; raises OSError for one that cannot be read."""
    try:
        # TensorFlow's error for a file that cannot be opened is that of a damaged record.
        with path.open('rb'):
            return path.stat().st_size
    except OSError as error:
        raise UserOSError(f'got {path}, which cannot be read ({error.strerror}); need a readable file') from error


def _end_of_record(path: pathlib.Path, offset: int) -> int:
    """Returns where the record ends that begins at `offset`, by its header;
    -1 if the file ends before.
    """
    with contextlib.suppress(tf.errors.DataLossError):
        for length in record_files.lengths(path, offset):
            return offset + length + record_files.FRAME_BYTES
    return -1
