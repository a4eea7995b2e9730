"""A data set in two: episodes to train on, and held-out ones to judge the policy by.

Chance plays no part: the time of an episode or a hash of its name decides, so the same input gives the same two sets.
An episode, which may be a session of many steps, is in one of them as a whole.
"""

import collections
import contextlib
import functools
import hashlib
import math
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, Range, checked
from tflearn.data import columns, metadata
from tflearn.data.conversion import new_directory
from tflearn.data.reader import Dataset, EpisodeReader, find_directories, with_unknown
from tflearn.data.writer import EpisodeWriter

TRAIN, HELD_OUT = 'train', 'held_out'
NEW_TRAIN = 'new_train'  # those of `TRAIN` that no earlier split has had
TIME, ID = 'time', 'id'
_TIMES, _CLUSTER = 'policy_info.time', 'policy_info.cluster'
_IDS = _CLUSTER, 'policy_info.episode', 'policy_info.id'
# Of this split and those before it: the numbers of all names, and in how many more splits each may be held out, [2, N].
_SEEN = 'seen.npy'


def split_files(paths: Sequence[str], output: pathlib.Path, settings: Mapping[str, Any], **filters: Any) -> str:
    """Writes the episodes in `paths` that pass the filters, see `Dataset`, to two data sets; see `split`."""
    return split(Dataset(paths, **filters), output, **settings)


@checked
def split(
    dataset: Dataset,
    output: pathlib.Path,
    share: Annotated[float, Range(above=0, most=1)],
    by: str = ID,
    compress: bool = False,
    earlier: pathlib.Path | None = None,
    rounds: PositiveInt = 1,
) -> str:
    """Writes the data sets `output`/train and `output`/held_out; with `earlier`, if `rounds` is 1, `output`/new_train.

    That has once more the episodes to train on that are new: they may compare policies that were trained before.

    Args:
      dataset: the episodes.
      output: a new directory, which appears whole.
      share: the share of episodes that are held out: with 'id' about that many, with 'time' as near
        as equal times let. 1, with `earlier`, holds out all that is new, if anything is, and there
        may be nothing to train on: it is for what was trained before.
      by: 'time' holds out those that end last; 'id' those with a small hash of the cluster's name, else of the
        episode's, else of the row's, else of the content and how often it came before; otherwise the name of a column,
        such as 'observation.user', whose first value is hashed.
      compress: compress the files with gzip.
      earlier: an earlier split, for data that grow: what it or those before it had, held out or not, is trained on
        now, so that only names that no policy has seen are held out. If there are none of these, it plays no part.
      rounds: with 'id', in how many splits, each the `earlier` of the next one, an episode is held out before it is
        trained on.

    Returns:
      The numbers of episodes and steps of both, and their shares, in lines.

    Raises:
      ValueError: if the data have no such column, a part would be empty, a cluster would be in both, the directory
        exists, or `earlier` is no split, or it or `rounds` is given with another `by` than 'id'.
    """
    if (earlier or rounds > 1) and by != ID:
        given = f'earlier={earlier}' if earlier else f'rounds={rounds}'
        raise UserValueError(f'got {given} with by={by!r}; need by={ID!r} with it')
    if share == 1 and not earlier:
        raise UserValueError('got share=1 without earlier; need a share below 1, or an earlier split')
    readers = with_unknown(dataset)
    reader = readers['']
    reader.check_equal()
    column = _column(by, {column.name for column in reader.columns})
    facts = {'by': by, 'share': share, 'from': metadata.lineage(reader.directories)}
    begin, hashed = _begin(reader, share) if by == TIME else math.nan, _Hashes(column)
    seen, new = np.zeros((2, 0)), set[float]()
    if earlier:
        parts = find_directories(Dataset([str(earlier / part) for part in (TRAIN, HELD_OUT)]))
        facts['earlier'] = [each['digest'] for each in metadata.lineage(parts)]
        if _column(by, {each.name for each in columns.read_columns(parts[0])}) != column:
            raise UserValueError(f'got {parts[0]} without {column}; need a split of data that have it')
        seen = _seen(earlier)
        # A share of 1 holds out nothing that was seen.
        done = seen[0, (seen[1] == 0) | (share == 1)]
        new = _numbers(dataset, column, share) - set(done.tolist())
    numbers, clusters = list[float](), (set[int](), set[int]())

    known = {*seen[0].tolist()}

    def parts_of(record: bytes, episode: Any) -> list[str]:
        if by == TIME:
            held_out = _end(episode) >= begin
        else:
            numbers.append(hashed(record, episode))
            held_out = numbers[-1] in new if new or share == 1 else numbers[-1] < share
        if _CLUSTER in episode:
            clusters[held_out].add(int(episode[_CLUSTER][0]))
        is_new = earlier is not None and rounds == 1 and numbers[-1] not in known
        return [HELD_OUT] if held_out else [TRAIN, NEW_TRAIN][: 1 + is_new]

    def finish(begun: pathlib.Path) -> None:
        if both := clusters[0] & clusters[1]:
            raise UserValueError(f'got by={by!r}, which puts {len(both)} clusters in both parts; need by={ID!r}')
        held_out = new if new or share == 1 else {number for number in numbers if number < share}
        # With a share of 1 nothing is trained on.
        kept = held_out | known if share == 1 else held_out
        np.save(begun / _SEEN, _seen_after(seen, numbers, kept, rounds))

    totals = _write(readers, output, facts, compress, column, parts_of, finish)
    all_episodes, all_steps = sum(total[1] for total in totals), sum(total[2] for total in totals)
    return '\n'.join(
        f'{output / part}: {episodes} episodes ({episodes / all_episodes:.1%}), {steps} steps ({steps / all_steps:.1%})'
        for part, episodes, steps in totals
    )


def _column(by: str, names: Collection[str]) -> str:
    """Returns the column that decides; '' if the content does. Raises ValueError if the data have no such column."""
    if by == ID:
        return next((name for name in _IDS if name in names), '')
    column = _TIMES if by == TIME else by
    if column not in names:
        raise UserValueError(f'got by={by!r} for data without {column}; need one of {", ".join(sorted(names))}, or id')
    return column


def _write(
    readers: Mapping[str, EpisodeReader],
    output: pathlib.Path,
    facts: Mapping[str, Any],
    compress: bool,
    column: str,
    parts_of: Callable[[bytes, Any], Sequence[str]],
    finish: Callable[[pathlib.Path], None],
) -> list[tuple[str, int, int]]:
    """Writes both parts; returns the name of each with the numbers of its episodes and steps."""
    reader, parts = readers[''], (TRAIN, HELD_OUT)
    specs = columns.read_specs(reader.directories[0])
    with new_directory(output) as begun, contextlib.ExitStack() as closing:

        @functools.cache
        def writer(part: str, name: str) -> EpisodeWriter:
            its_part = TRAIN if part == NEW_TRAIN else part  # whose episodes it has
            about = {'split': {**facts, 'part': its_part}, **metadata.kept(reader.directories)}
            made = EpisodeWriter(begun / part / name, specs, reader.columns, metadata=about, compress=compress)
            return closing.enter_context(contextlib.closing(made))

        for name, each in readers.items():
            for record, episode in _named(each, column):
                for part in parts_of(record, episode):
                    writer(part, name).write_together([*episode.values()])
        closing.close()
        # Where all that is new is held out, a part may have no episode: it has no data set then.
        made = [part for part in parts if facts['share'] < 1 or (begun / part).exists()]
        totals = [(part, writer(part, '').num_episodes, writer(part, '').num_steps) for part in made]
        if empty := [part for part, episodes, _ in totals if not episodes]:
            raise UserValueError(
                f'got no episode for {empty[0]}, of {reader.num_read} with share={facts["share"]:g}; need more data, '
                'another share, or other names'
            )
        finish(begun)
        for part in (*made, NEW_TRAIN):
            if (begun / part).exists():
                metadata.keep_vocabularies(reader.directories, begun / part)
    return totals


def _named(reader: EpisodeReader, column: str) -> Iterator[tuple[bytes, Any]]:
    """Yields the episodes; before each its bytes in a file, where no column but they are its name."""
    return ((b'', episode) for episode in reader.episodes()) if column else reader.records()


def _begin(reader: EpisodeReader, share: float) -> float:
    """Returns the time from which on episodes are held out."""
    times = np.sort([_end(episode) for episode in reader.episodes()])
    return float(times[min(len(times) - 1, round((1 - share) * len(times)))]) if len(times) else math.nan


def _end(episode: Any) -> float:
    """Returns the time of an episode's last step: until then it was not known."""
    return float(episode[_TIMES].max())


def _numbers(dataset: Dataset, column: str, share: float) -> set[float]:
    """Returns the numbers of episodes that are below `share`."""
    readers, hashed = with_unknown(dataset), _Hashes(column)
    numbers = (hashed(record, episode) for each in readers.values() for record, episode in _named(each, column))
    return {number for number in numbers if number < share}


def _seen(earlier: pathlib.Path) -> np.ndarray:
    try:
        found = np.asarray(np.load(earlier / _SEEN))
    except (OSError, ValueError) as error:
        raise UserValueError(f'got earlier={earlier} ({error}); need what tflearn data split has written') from error
    # Earlier versions wrote the numbers alone.
    return found if found.ndim == 2 else np.stack([found, np.zeros(len(found))])


def _seen_after(seen: np.ndarray, numbers: Collection[float], kept: Collection[float], rounds: int) -> np.ndarray:
    """Returns what was seen after a split of `numbers`, of which all but `kept` may be trained on."""
    names = np.union1d(seen[0], [*numbers])
    left = np.full(len(names), rounds - 1.0)
    left[np.isin(names, seen[0])] = np.maximum(seen[1] - 1, 0)
    return np.stack([names, left * np.isin(names, [*kept])])


class _Hashes:
    """Numbers in [0, 1) of episodes, by their names; without names by their contents, each time another one.

    Equal contents on one side as a whole would choose by actions and rewards: the weights of what is held out would not
    have the mean 1 any more.
    """

    def __init__(self, column: str):
        self._column, self._seen = column, collections.Counter[bytes]()

    def __call__(self, record: bytes, episode: Any) -> float:
        """Returns the number of the next episode."""
        if self._column:
            name = np.ascontiguousarray(episode[self._column][0]).tobytes()
        else:
            content = hashlib.blake2b(record, digest_size=16).digest()
            again = self._seen[content]
            self._seen[content] += 1
            name = record + again.to_bytes(8, 'big') if again else record
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), 'big') / 2**64
