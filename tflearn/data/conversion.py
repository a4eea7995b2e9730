"""Data sets from one format to another: ours, Minari and RLDS; and from RLlib's samples."""

import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs
from tflearn.data import columns, metadata, minari_format, rlds_format, rllib_format
from tflearn.data.reader import UNKNOWN, Dataset, EpisodeReader, with_unknown
from tflearn.data.writer import EpisodeWriter
from tflearn.files.lock import try_lock

TFLEARN, MINARI, RLDS = 'tflearn', 'minari', 'rlds'
FORMATS = (TFLEARN, MINARI, RLDS)


def convert(dataset: Dataset, output: pathlib.Path, target: str, spaces: Any, compress: bool = False) -> int:
    """Writes the episodes to a new directory, which appears whole.

    Args:
      dataset: data sets of our format, or one of Minari, RLDS or RLlib, which its filters do not concern.
      output: the new directory.
      target: one of `FORMATS`.
      spaces: the module `environments.spaces`, which alone knows gymnasium's spaces.
      compress: compress files of our format with gzip.

    Returns:
      The number of episodes.

    Raises:
      ImportError: if the format's package is not installed.
      ValueError: if the directory exists, or the format cannot hold a column.
    """
    if target not in FORMATS:
        raise UserValueError(f'got the format {target!r}; need one of {", ".join(FORMATS)}')
    path = pathlib.Path(dataset.paths[0]).expanduser()
    other = next((each for each in (minari_format, rlds_format, rllib_format) if each.directory_of(path)), None)
    if not other or (path / columns.DESCRIPTION).exists():
        if target == TFLEARN:
            return copy(dataset, output, compress)[0]
        found = {name: _source(reader) for name, reader in with_unknown(dataset).items()}
    elif len(dataset.paths) > 1 or dataset.min_return is not None or dataset.max_return is not None:
        raise UserValueError(f'got {path} of another format with more data or filters; convert it first, then filter')
    else:
        read: Callable[[pathlib.Path], _Source] = other.read
        if other is minari_format:
            read = functools.partial(minari_format.read, spaces=spaces)
        found = {name: read(path / name) for name in ('', UNKNOWN) if not name or other.directory_of(path / name)}
    with new_directory(output) as begun:
        counts = [_write(begun / name, target, source, spaces, compress) for name, source in found.items()]
        if not counts[0]:
            raise UserValueError(f'got no episodes in {", ".join(dataset.paths)}; need at least one')
    return counts[0]


def copy(dataset: Dataset, output: pathlib.Path, compress: bool = False) -> tuple[int, int]:
    """Copies the episodes that pass the filters of `dataset` to a new data set.
    Damaged records are left out.

    Args:
      dataset: the episodes.
      output: the new directory.
      compress: compress the files with gzip.

    Returns:
      The numbers of episodes and of environment steps.

    Raises:
      ValueError: if the directory exists, or the data sets have different columns.
    """
    readers = with_unknown(dataset)
    reader = readers['']
    reader.check_equal()
    facts = {metadata.COPIED: metadata.lineage(reader.directories), 'filter': dataclasses.asdict(dataset)}
    facts |= metadata.kept(reader.directories)
    specs = columns.read_specs(reader.directories[0])
    with new_directory(output) as begun:
        counts = []
        for name, each in readers.items():
            writer = EpisodeWriter(begun / name, specs, reader.columns, metadata=facts, compress=compress)
            with contextlib.closing(writer):
                for episode in each.episodes():
                    writer.write_together([*episode.values()])
            counts.append((writer.num_episodes, writer.num_steps))
        metadata.keep_vocabularies(reader.directories, begun)
    return counts[0]


@contextlib.contextmanager
def new_directory(output: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a directory that becomes `output` when it is complete.

    Raises:
      ValueError: if `output` exists, or another program writes it.
      OSError: if it cannot be made.
    """
    if os.path.lexists(output):  # pathlib raises an error for a name that is too long
        raise UserValueError(f'got the output {output}, which exists; need a new directory')
    begun = output.with_name(f'.{output.name}')
    lock = output.with_name(f'.{output.name}.lock')
    with columns.making(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        opened = lock.open('ab')
    with opened as file:
        if not try_lock(file):
            raise UserValueError(f'got the output {output}, which another program writes; need a new directory')
        shutil.rmtree(begun, ignore_errors=True)  # of a call that was killed
        try:
            yield begun
            begun.rename(output)
        finally:
            shutil.rmtree(begun, ignore_errors=True)
            lock.unlink(missing_ok=True)


# The specs, the columns, the metadata, and the leaves of each episode in the order of the columns.
_Source = tuple[EnvironmentSpecs, tuple[columns.Column, ...], dict[str, Any], Iterator[list[np.ndarray]]]


def _source(reader: EpisodeReader) -> _Source:
    """Returns the source of episodes in our own format."""
    directory = reader.directories[0]
    episodes = (list(episode.values()) for episode in reader.episodes())
    return columns.read_specs(directory), reader.columns, columns.read_metadata(directory), episodes


def _write(path: pathlib.Path, target: str, source: _Source, spaces: Any, compress: bool) -> int:
    specs, stored, facts, episodes = source
    if target == TFLEARN:
        writer = EpisodeWriter(path, specs, stored, metadata=facts, compress=compress)
        with contextlib.closing(writer):
            for leaves in episodes:
                writer.write(leaves)
        return writer.num_episodes
    names, count = [column.name for column in stored], itertools.count()
    # Where there is no further episode, no further number is taken.
    named = (dict(zip(names, leaves, strict=True)) for leaves, _ in zip(episodes, count, strict=False))
    if target == MINARI:
        minari_format.write(path, specs, stored, named, spaces, facts)
    else:
        rlds_format.write(path, specs, stored, named, facts)
    return next(count)
