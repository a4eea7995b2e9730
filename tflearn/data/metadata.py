"""What a data set's description says of its origin:
the environment, the versions, and each recording of episodes.

And which data sets have episodes in common, by the digests of their files and of those that they
were made of.
"""

import functools
import hashlib
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

import tflearn
from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentFactory
from tflearn.data import columns
from tflearn.data.shards import find_shards
from tflearn.data.writer import EpisodeWriter
from tflearn.files.run_dir import read_json, write_json

RECORDINGS, COPIED = 'recordings', 'copied_from'
# Of data from logs: the least hashes of the decisions' names and times. Where two data sets have some
# of these in common, they have decisions in common.
SAMPLE = 'sample'
VOCABULARIES = 'vocabularies.json'  # of data from logs: the numbers of their categories
# Of data from logs: what the column map states of the rewards and episodes.
STATED = 'stated'
MISSING = 'missing'  # of data from logs: the numbers that stand for missing ones, by the column map
# Whether decisions stand several times in it, or none, by their weights: it only trains.
WEIGHED = 'weighed'
TRAINED_ON = 'trained_on'  # of an exported policy: the `lineage` of its data
_END_BYTES = 1 << 16  # of a file that its digest is of: its begin and its end
# The text of a program's hooks that has what configured functions have used.
_OPERATIVE = 'gin/operative'


def origin(make_environment: EnvironmentFactory, texts: Mapping[str, str]) -> dict[str, Any]:
    """Returns the function that made the environment, with its settings,
    and the versions of the libraries.

    Args:
      make_environment: the function, which has been called.
      texts: what a program describes, see `Hooks.describe`.
    """
    function: Any = make_environment
    settings: list[str] = []
    while isinstance(function, functools.partial):
        settings = [*map(repr, function.args), *(f'{k}={v!r}' for k, v in function.keywords.items()), *settings]
        function = function.func
    name = getattr(function, '__qualname__', type(function).__qualname__)
    name = f'{getattr(function, "__module__", type(function).__module__)}.{name}'
    # Gin names a function by the last part of its module's path.
    prefix = '.'.join(name.split('.')[-2:]) + '.'
    for line in texts.get(_OPERATIVE, '').splitlines():
        if line.strip().startswith(prefix):
            settings.append(line.strip().removeprefix(prefix))
    return {'environment': f'{name}({", ".join(settings)})', **versions()}


def versions() -> dict[str, str]:
    """Returns the versions of the libraries that write the data."""
    return {'tflearn': tflearn.__version__, 'tensorflow': tf.__version__}


def add_recording(directory: pathlib.Path, facts: Mapping[str, Any], writer: EpisodeWriter) -> None:
    """Adds what a call has written to the description: `facts`, its episodes, steps and returns;
    nothing if none.
    """
    returns = writer.returns
    if not (num_episodes := returns.count + returns.missing + returns.infinite):
        return
    found = columns.read_metadata(directory)
    summary = {'mean': returns.mean, 'least': returns.least, 'greatest': returns.greatest}
    recording = {**facts, 'episodes': num_episodes, 'returns': summary}
    columns.write_metadata(directory, {**found, RECORDINGS: [*found.get(RECORDINGS, []), recording]})


def keep_vocabularies(sources: Sequence[pathlib.Path], directory: pathlib.Path) -> None:
    """Writes the vocabularies of data sets to one that was made of them."""
    if found := vocabularies(sources):
        write_json(directory / VOCABULARIES, found)


def vocabularies(directories: Sequence[pathlib.Path]) -> dict[str, list[str]]:
    """Returns the vocabularies of data sets, by the names of their categories.

    Raises:
      ValueError: if two of them have other numbers for the same texts, or only one has a
        vocabulary.
    """
    found = {directory: read_json(directory / VOCABULARIES, dict[str, list[str]]) or {} for directory in directories}
    first = directories[0]
    for one, other in ((first, each)[::order] for each in found for order in (1, -1)):
        check_words(one, found[one], other, found[other])
        if lacking := sorted(found[one].keys() - found[other].keys()):
            raise UserValueError(
                f'got {one} with a vocabulary of {lacking[0]}, and {other} without: its numbers may stand for others; '
                "need one vocabulary; import the second with kind = 'category' and --vocabularies of the first"
            )
    return found[first]


def check_words(
    data: pathlib.Path, words: Mapping[str, Sequence[str]], other: pathlib.Path, known: Mapping[str, Sequence[str]]
) -> None:
    """Raises ValueError if a number stands for another text in a data set
    than in another one, or for a policy; `known` may have more.
    """
    for name in sorted(words.keys() & known.keys()):
        for i, (word, meant) in enumerate(itertools.zip_longest(words[name], known[name][: len(words[name])])):
            if word != meant:
                theirs = 'not there' if meant is None else repr(meant)
                raise UserValueError(
                    f'got {data} and {other}: number {i} of the vocabulary of {name} is {word!r} in the first and '
                    f'{theirs} in the second; need one vocabulary; import the log with --vocabularies=DIRECTORY of the '
                    'other data, or of those that trained the policy'
                )


def stated(directories: Sequence[pathlib.Path], of: str = STATED) -> dict[str, Any]:
    """Returns what all data sets state alike: `independent_slots` and fields of `GateOptions`,
    such as `low` and `longest`.

    With `of=MISSING`: the numbers that stand for missing ones, by the names of their parts.
    """
    first, *others = (columns.read_metadata(directory).get(of, {}) for directory in directories)
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def kept(directories: Sequence[pathlib.Path]) -> dict[str, Any]:
    """Returns what a data set that is made of others states as they do;
    raises ValueError if their vocabularies differ.
    """
    vocabularies(directories)
    found: dict[str, Any] = {key: stated(directories, key) for key in (STATED, MISSING)}
    return found | ({WEIGHED: True} if weighed(directories) else {})


def weighed(directories: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    """Returns the data sets that are no evidence, see `WEIGHED`."""
    return [each for each in directories if columns.read_metadata(each).get(WEIGHED)]


def lineage(directories: Sequence[pathlib.Path]) -> list[dict[str, Any]]:
    """Returns of each data set its path and digest, of which data sets it was made,
    and how they were split.
    """
    found = []
    for directory in directories:
        facts = columns.read_metadata(directory)
        split = facts.get('split', {})
        made_of = split.get('from') or facts.get(COPIED) or []
        part = {name: split[name] for name in ('by', 'share', 'part', 'earlier') if name in split}
        one = {'path': str(directory), 'digest': _digest(directory), 'split': part, 'from': made_of}
        found.append(one | {name: facts[name] for name in (SAMPLE,) if name in facts})
    return found


def may_share_episodes(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether data sets, as `lineage` describes them, may have an episode in common."""
    return any(
        _are_alike(ours, theirs, [*our_splits, *their_splits]) and _overlap(our_splits, their_splits)
        for ours, our_splits in _splits(one, ())
        for theirs, their_splits in _splits(other, ())
    )


def _are_alike(ours: Mapping[str, Any], theirs: Mapping[str, Any], splits: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether data sets are one, or were made of the same decisions, such as by joining them again.

    A split with an earlier one knows the names of that.
    """
    if ours['digest'] == theirs['digest']:
        return True
    return not any('earlier' in each for each in splits) and bool({*ours.get(SAMPLE, ())} & {*theirs.get(SAMPLE, ())})


def _splits(described: Sequence[Mapping[str, Any]], below: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yields each data set and those that it was made of,
    and how these were split on the way.
    """
    for each in described:
        yield each, below
        split = each['split']
        if split.get('by') == 'time':  # that of the data, which a hash of names does not depend on
            split = {**split, 'of': [one['digest'] for one in each['from']]}
        yield from _splits(each['from'], ((split, *below) if split else below))


def _overlap(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether two chains of splits of one data set, the first split first,
    may have an episode in common.
    """
    for one, other in zip(ours, theirs, strict=False):
        if one == other:
            continue
        # Else they are the two parts of one split.
        return {**one, 'part': None} != {**other, 'part': None}
    return True


def _digest(directory: pathlib.Path) -> str:
    """Returns a digest of a data set's files: their names, sizes, begins and ends,
    so that it takes no time.
    """
    digest = hashlib.sha256()
    for shard in find_shards(directory):
        size = shard.path.stat().st_size
        digest.update(f'{shard.path.name} {size}\n'.encode())
        with shard.path.open('rb') as file:
            digest.update(file.read(_END_BYTES))
            file.seek(max(0, size - _END_BYTES))
            digest.update(file.read(_END_BYTES))
    return digest.hexdigest()
