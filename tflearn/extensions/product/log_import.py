"""Logs of other programs -> a data set: vocabularies first, then rows, put together to episodes in bounded memory.

Rows of an episode may stand anywhere in the files. They are divided by a hash of the episode among files on disk, each
of which fits into memory. The same rows give the same data set, whatever the format and wherever the blocks end.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import pathlib
import pickle
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.data import arrays, columns, metadata
from tflearn.data.action_table import ActionTable
from tflearn.data.conversion import new_directory
from tflearn.data.reader import UNKNOWN
from tflearn.data.records import Encoder, Records
from tflearn.data.writer import EpisodeWriter
from tflearn.extensions.product import log_files, reward_parts, row_weights, table_values, tables
from tflearn.extensions.product.block_checks import ROWS_OF_A_FILE
from tflearn.extensions.product.column_map import ACTION, ACTIVATED, HAS_OUTCOME, ColumnMap
from tflearn.extensions.product.log_end import latest
from tflearn.extensions.product.log_report import Report
from tflearn.extensions.product.log_rows import RowEncoder
from tflearn.extensions.product.outcomes import LEFT_OUT, WITH_OUTCOME, OutcomeOptions, Outcomes
from tflearn.extensions.product.reward_ranges import RewardRanges
from tflearn.files import messages
from tflearn.files.run_dir import read_json, write_json
from tflearn.policies import versions

MAX_CATEGORIES = 100_000
_NUM_PARTS = 64
_MAX_AHEAD = 2  # items
_MAX_ENCODED = 1 << 15  # rows
_SAMPLE_SIZE = 64  # of 1,000 pairs of data sets with a tenth of their decisions in common one is not found
_T = TypeVar('_T')
_KEPT = {'episode': 'key', 'id': 'id'}
_WEIGHTS = 'another weight than the row before it', 'one weight for an episode'


def run(
    paths: Sequence[pathlib.Path],
    mapped: ColumnMap,
    output: pathlib.Path,
    report: Report,
    vocabularies: pathlib.Path | None = None,
    compress: bool = False,
    outcomes: OutcomeOptions | None = None,
) -> None:
    """Writes the episodes of logs to a new data set, which appears whole.

    Args:
      paths: files, of any of the formats, in their order.
      mapped: what each column means.
      output: the new directory.
      report: counts what is found.
      vocabularies: an earlier data set or a policy, whose vocabularies are taken; None collects them from the data.
      compress: compress the files with gzip.
      outcomes: gives the rewards, not the logs; the map has an id and a time then.

    Raises:
      ValueError: if there are more bad rows than the report allows, or no episode at all, or more categories than
        MAX_CATEGORIES, or the directory exists.
    """
    if outcomes and ACTIVATED not in mapped.keys:
        mapped = dataclasses.replace(mapped, keys={**mapped.keys, ACTIVATED: ACTIVATED}, optional=(ACTIVATED,))
    with new_directory(output) as begun, tempfile.TemporaryFile() as parsed:
        words = _vocabularies(paths, mapped, vocabularies, parsed)
        weighs = outcomes is not None and outcomes.weigh_delays
        encoder, keys, labels = RowEncoder(mapped, words, report, weighs), mapped.keys, log_files.labels(paths)
        info = arrays.spec(_policy_info(np.zeros(1, encoder.dtype), keys))
        stored = columns.columns_of(columns.data_spec(encoder.specs, info))
        with contextlib.ExitStack() as stack:

            @functools.cache
            def writer(name: str) -> EpisodeWriter:
                made = EpisodeWriter(begun / name, encoder.specs, stored, compress=compress)
                return stack.enter_context(contextlib.closing(made))

            rows = _encoded(paths, mapped, encoder, parsed)
            if outcomes:
                joined = Outcomes(outcomes, report, paths, encoder.actions)
                parts = stack.enter_context(_divided(joined.blocks(), joined.dtype, 'id'))
                decisions = stack.enter_context(_divided(joined.watched(rows), encoder.dtype, 'id'))
                if outcomes.weigh_delays:
                    joined.estimate_delays(zip(decisions(is_last=False), parts(is_last=False), strict=True))
                rows = map(joined.join, decisions(), parts())
            elif ACTIVATED in keys:
                rows = (_shown(part, report) for part in rows)
            if by := next((_KEPT[name] for name in _KEPT if name in keys), None):
                if by == 'key' or not outcomes:
                    rows = stack.enter_context(_divided(rows, encoder.dtype, by))()
                order = _Order(labels, keys, report)
                rows = (_repeated(order(part)) for part in rows if len(part))
            else:
                # Of a decision for several slots all or none are left.
                rows = (part[~np.isin(part['key'], part['key'][part['bad']])] for part in rows)
            report.actions, ranges = ActionTable(encoder.actions), RewardRanges(mapped, labels)
            sample = _Sample(keys)
            known = _counted(_by_knowledge(map(sample, map(ranges.checked, rows))), report)
            for name, records in _ahead(_records(writer('').encoder, known, keys)):
                writer(name).write_records(records)
        if not writer('').num_episodes:
            waiting = joined.waiting() if outcomes else ''
            raise UserValueError(f'got no complete episode in {", ".join(map(str, paths))}{waiting}; need at least one')
        if outcomes:
            report.warnings += joined.warnings()
        ranges.report(report)
        report.counts.update(episodes=writer('').num_episodes, steps=writer('').num_steps)
        if (begun / UNKNOWN).exists():
            report.counts['episodes with unknown rewards'] = writer(UNKNOWN).num_episodes
        if outcomes:
            joined.add_sums(writer(UNKNOWN).num_steps if (begun / UNKNOWN).exists() else 0)
        facts = {metadata.WEIGHED: True} if weighs else {}
        _write_facts(begun, paths, mapped, words, report, {**facts, metadata.SAMPLE: sample.least.tolist()})


def _write_facts(
    directory: pathlib.Path,
    paths: Sequence[pathlib.Path],
    mapped: ColumnMap,
    words: Mapping[str, list[str]],
    report: Report,
    facts: dict[str, Any],
) -> None:
    """Writes what the data set is made of, the vocabularies of its categories, and `facts`."""
    categories = {each.name for each in mapped.features if each.has_vocabulary}
    write_json(directory / metadata.VOCABULARIES, {name: words[name] for name in words if name in categories})
    facts |= {'logs': [str(path) for path in paths], 'import': dict(sorted(report.counts.items()))}
    facts[metadata.STATED] = dict(mapped.stated)
    observed = [each for each in mapped.features if each.name.startswith('observation.')]
    facts[metadata.MISSING] = {each.name: each.missing for each in observed if each.missing is not None}
    facts |= {'import_warnings': report.warnings} if report.warnings else {}
    columns.write_metadata(directory, {**facts, **metadata.versions()})


def _vocabularies(
    paths: Sequence[pathlib.Path], mapped: ColumnMap, earlier: pathlib.Path | None, parsed: IO[bytes] | None = None
) -> dict[str, list[str]]:
    """Returns the values of each category: those of the map, else of an earlier data set or a policy, else all, sorted.

    If files of text are read for that, `parsed` has all their blocks then.
    """
    words = {each.name: list(each.values) for each in mapped.features if each.has_vocabulary}
    if earlier is not None:
        known = read_json(earlier / metadata.VOCABULARIES, dict[str, list[str]])
        if known is None and not (earlier / columns.DESCRIPTION).exists():
            policy = read_json(versions.find(earlier) / versions.METADATA, messages.Metadata) or {}
            known = policy.get(versions.VOCABULARIES)
        known = known or {}
        if lacking := [name for name, values in words.items() if not values and name not in known]:
            raise UserValueError(
                f'got {earlier} without a vocabulary of {", ".join(lacking)}; need a data set or a policy that has '
                'one, or the `values` in the column map'
            )
        words = {name: values or known[name] for name, values in words.items()}
    missing = {each.name: each.columns[0] for each in mapped.features if words.get(each.name) == []}
    action = mapped.feature(ACTION)
    if action and action.kind == 'integer':
        low, high = map(int, action.bounds)
        words[ACTION] = [str(value) for value in range(low, high + 1)]
    return words | (_collected(paths, mapped, missing, parsed) if missing else {})


def _collected(
    paths: Sequence[pathlib.Path], mapped: ColumnMap, missing: Mapping[str, str], parsed: IO[bytes] | None
) -> dict[str, list[str]]:
    """Returns all values of parts, sorted; `missing` are the columns of these parts."""
    found: dict[str, set[str]] = {name: set() for name in missing}
    lost = ''  # the first row that is none
    # To parse text takes most of the time of reading it: all its columns are kept, and not parsed again.
    keeps = parsed is not None and all(map(log_files.is_text, paths))
    names = list(dict.fromkeys(missing.values()))
    chosen = mapped.columns if keeps else dataclasses.replace(mapped.columns, names=names, categories=names)
    for i, block in _ahead(tables.read(paths, chosen)):
        if parsed and keeps:
            pickle.dump((i, block), parsed, protocol=pickle.HIGHEST_PROTOCOL)
        for row, (got, need) in itertools.islice(block.lost.items(), 1):
            lost = lost or f' (row {row} of {paths[i].name}: got {got}; need {need})'
        for name, column in missing.items():
            array = block.columns[column]
            feature = mapped.feature(name)
            if feature and feature.kind == 'features':
                array = table_values.named_features(array, bool(feature.length))[0]
            elif feature and feature.length:
                array = table_values.lists(array)[0]
            found[name].update(table_values.distinct(array))
            if len(found[name]) > MAX_CATEGORIES:
                raise UserValueError(f'got {name} with more than {MAX_CATEGORIES} values; need at most that; hash them')
    if empty := [name for name, values in found.items() if not values]:
        raise UserValueError(f'got no value of {empty[0]} in {missing[empty[0]]!r}{lost}; need at least one')
    order = lambda text: (len(text), text) if text.isdigit() else (1 << 30, text)  # noqa: E731
    return {name: sorted(values, key=order) for name, values in found.items()}


def _encoded(
    paths: Sequence[pathlib.Path], mapped: ColumnMap, encoder: RowEncoder, parsed: IO[bytes] | None = None
) -> Iterator[np.ndarray]:
    """Yields the rows of all files, those that `parsed` has if there are any."""
    labels = log_files.labels(paths)
    for i, block in _ahead(_kept(parsed) if parsed and parsed.tell() else tables.read(paths, mapped.columns)):
        yield encoder(labels[i], i, block, latest(paths[i]))


def _kept(parsed: IO[bytes]) -> Iterator[tuple[int, tables.Block]]:
    """Yields the blocks that `_collected` has kept."""
    end = parsed.tell()
    parsed.seek(0)
    while parsed.tell() < end:
        yield pickle.load(parsed)


def _ahead(items: Iterator[_T]) -> Iterator[_T]:
    """Yields items that a thread has ready before they are needed."""
    with concurrent.futures.ThreadPoolExecutor(1, 'log_import') as pool:
        waiting = collections.deque(pool.submit(lambda: next(items, None)) for _ in range(_MAX_AHEAD))
        while (item := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(lambda: next(items, None)))
            yield item


@contextlib.contextmanager
def _divided(blocks: Iterator[np.ndarray], dtype: np.dtype, by: str) -> Iterator[Callable[..., Iterator[np.ndarray]]]:
    """Divides rows among files; yields a function of their rows, where all of one `by` stand in one file.

    The function has an argument `is_last`, true by default: it deletes each file that it has read.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(_NUM_PARTS)]
        for rows in _ahead(blocks):
            part = rows[by].astype(np.uint8) % np.uint8(_NUM_PARTS)
            places = np.argsort(part, kind='stable')
            bounds = [0, *np.cumsum(np.bincount(part, minlength=_NUM_PARTS)).tolist()]
            rows = rows.take(places)  # which takes a tenth of the time of rows[places]
            for i, file in enumerate(files):
                file.write(rows[bounds[i] : bounds[i + 1]].data)
        yield lambda is_last=True: (_content(file, dtype, is_last) for file in files)


def _content(file: IO[bytes], dtype: np.dtype, is_last: bool) -> np.ndarray:
    file.seek(0)
    rows = np.fromfile(file, dtype)
    if is_last:
        file.close()
    return rows


class _Sample:
    """The least hashes of decisions, by their ids and times."""

    def __init__(self, keys: Collection[str]):
        self._has_names, self.least = {'id', 'time'} <= {*keys}, np.zeros(0, np.uint64)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        if self._has_names:
            hashed = rows['id'] ^ np.ascontiguousarray(rows['time']).view(np.uint64)
            if len(self.least) == _SAMPLE_SIZE:
                hashed = hashed[hashed < self.least[-1]]
            self.least = np.unique(np.r_[self.least, hashed])[:_SAMPLE_SIZE]
        return rows


@dataclasses.dataclass
class _Order:
    """Puts the rows of whole episodes in order: without doubles, and without the episodes that have a bad row."""

    labels: Sequence[str]
    keys: Collection[str]
    report: Report

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        if (rows['row'][1:] < rows['row'][:-1]).any():
            rows = rows.take(np.argsort(rows['row'], kind='stable'))
        first = _first_rows(rows)
        if (first[1:] < first[:-1]).any():
            order = np.argsort(first, kind='stable')
            rows, first = rows.take(order), first[order]
        if 'time' in self.keys:
            back = _same(rows, 'key') & (rows['time'][1:] < rows['time'][:-1])
            self._found(rows, 'disorder', 1 + np.flatnonzero(back), 'the time after the row before it')
            if back.any():
                rows = rows.take(np.lexsort((rows['row'], rows['time'], first)))
        if 'id' in self.keys:
            double = self._doubles(rows)
        else:
            again = _same(rows, 'key') & ~_same(rows, 'row')
            double = 1 + np.flatnonzero(again) if 'time' in self.keys else np.arange(0)
            for name in (name for name in rows.dtype.names if name not in ('row', 'key', 'id')):
                double = double[_equal(rows[name][double], rows[name][double - 1])]
        if not self._found(rows, 'duplicate', double, 'each row once') and len(double):
            rows = np.delete(rows, double)
        if (weights := row_weights.of_rows(rows)) is not None:
            differs = _same(rows, 'key') & (weights[1:] != weights[:-1]) & ~(rows['bad'][1:] | rows['bad'][:-1])
            self._mark(rows, 1 + np.flatnonzero(differs), *_WEIGHTS)
        if rows['bad'].any():
            left_out = np.unique(rows['key'][rows['bad']])
            is_in = np.isin(rows['key'], left_out)
            if 'episode' in self.keys:  # else each row is one, and is counted already
                self.report.counts['episodes left out'] += len(left_out)
                self.report.counts[LEFT_OUT] += int(np.count_nonzero(is_in & ~rows['bad']))
            rows = rows[~is_in]
        return rows

    def _doubles(self, rows: np.ndarray) -> np.ndarray:
        """Returns the indices of rows with an id that was there before."""
        ids = np.sort(rows['id'])
        if not (ids[1:] == ids[:-1]).any():  # which is seen faster than an order of the rows
            return np.arange(0)
        by = ('row', 'id', 'key') if 'episode' in self.keys else ('row', 'id')
        order = np.lexsort([rows[name] for name in by])
        is_same = np.logical_and.reduce([np.diff(rows[name][order]) == 0 for name in by[1:]])
        # The slots of a decision are rows of one number, and no doubles of each other.
        first_of = np.maximum.accumulate(np.where(np.r_[True, ~is_same], np.arange(len(rows)), 0))
        return order[rows['row'][order] != rows['row'][order][first_of]]

    def _found(self, rows: np.ndarray, kind: str, which: np.ndarray, need: str) -> bool:
        """Counts rows, but bad ones; returns whether they are refused, and marks them then."""
        which = which[~rows['bad'][which]]
        refused = self.report.found(kind, 'rows', len(which))
        if refused:
            self._mark(rows, which, f'a {kind}', f'{need}, by --refuse')
        return refused

    def _mark(self, rows: np.ndarray, which: np.ndarray, got: str, need: str) -> None:
        rows['bad'][which] = True
        places = [divmod(row, ROWS_OF_A_FILE) for row in rows['row'][which].tolist()]
        self.report.bad([(f'{self.labels[file]}, row {row}', got, need) for file, row in places])


def _shown(rows: np.ndarray, report: Report) -> np.ndarray:
    """Returns the rows; those that were never activated are bad then."""
    hidden = ~(rows[ACTIVATED] | rows['bad'])
    report.counts.update({tables.NOT_ACTIVATED: int(np.count_nonzero(hidden))} if hidden.any() else {})
    rows['bad'] |= hidden
    return rows


def _repeated(rows: np.ndarray) -> np.ndarray:
    """Returns the rows as often as their weights say, each as an episode of its own."""
    if 'copies' not in (rows.dtype.names or ()):
        return rows
    copies = rows['copies'].astype(np.int64)
    again = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
    rows = np.repeat(rows, copies)
    rows['key'] += again.astype(np.uint64) << np.uint64(56)
    return rows


def _first_rows(rows: np.ndarray) -> np.ndarray:
    """Returns for each row, in the order of the files, the index of the first one of its episode."""
    begins = np.flatnonzero(np.r_[True, ~_same(rows, 'key')])  # of rows of one episode that stand together
    counts, keys = np.diff(np.r_[begins, len(rows)]), rows['key'][begins]
    if len(np.unique(keys)) < len(keys):  # which is seen faster than where each one was first
        _, first, episode = np.unique(keys, return_index=True, return_inverse=True)
        begins = begins[first][episode]
    return np.repeat(begins, counts)


def _same(rows: np.ndarray, name: str) -> np.ndarray:
    """Returns whether each row but the first one has the value of the row before."""
    return _equal(rows[name][1:], rows[name][:-1])


def _equal(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns whether rows are equal."""
    return np.asarray((one == other).all(axis=tuple(range(1, one.ndim))))


def _policy_info(rows: np.ndarray, keys: Collection[str]) -> dict[str, np.ndarray]:
    """Returns what a data set keeps of the decisions: probabilities, times, and the hashes of names."""
    kept = {**_KEPT, 'cluster': 'cluster'}
    info = {name: np.ascontiguousarray(rows[kept[name]]).view(np.int64) for name in kept if name in keys}
    if 'time' in keys:
        info['time'] = rows['time']
    if 'propensity' in rows.dtype.names:
        info['log_probability'] = np.log(np.maximum(rows['propensity'], 1e-30))
    if (weights := row_weights.of_rows(rows)) is not None:
        info[columns.WEIGHT] = weights
    return info | reward_parts.kept(rows)


def _by_knowledge(ordered: Iterator[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the rows of episodes with known rewards, by '', and of all others, by `UNKNOWN`."""
    for rows in ordered:
        unknown = np.isin(rows['key'], rows['key'][np.isnan(rows['reward'])])
        yield '', rows[~unknown] if unknown.any() else rows
        yield UNKNOWN, rows[unknown]


def _counted(ordered: Iterator[tuple[str, np.ndarray]], report: Report) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the rows; counts those with known rewards by their actions, if these are integers, and with outcomes."""
    for name, rows in ordered:
        if not name and HAS_OUTCOME in rows.dtype.names and rows[HAS_OUTCOME].any():
            report.counts[WITH_OUTCOME] += int(np.count_nonzero(rows[HAS_OUTCOME]))
        if not name and rows[ACTION].dtype.kind == 'i' and rows[ACTION].ndim == 1:
            given = rows['propensity'] if 'propensity' in rows.dtype.names else np.nan
            report.actions.add(rows[ACTION], rows['reward'], given)
        yield name, rows


def _records(
    encoder: Encoder, ordered: Iterator[tuple[str, np.ndarray]], keys: Collection[str]
) -> Iterator[tuple[str, Records]]:
    """Yields the records of episodes, several at a time: few enough for the processor's cache."""
    for name, rows in ordered:
        bounds = np.flatnonzero(np.r_[True, ~_same(rows, 'key'), True]) if len(rows) else np.zeros(1, np.int64)
        cuts = np.searchsorted(bounds, np.arange(0, len(rows), _MAX_ENCODED))
        for first, after in itertools.pairwise(np.unique(np.r_[cuts, len(bounds) - 1]).tolist()):
            part = rows[bounds[first] : bounds[after]]
            observed = [each for each in part.dtype.names if each.startswith('observation.')]
            observation = {each.partition('.')[2]: part[each] for each in observed}
            truncated = part['truncated'] if 'truncated' in part.dtype.names else None
            info, begins = _policy_info(part, keys), bounds[first:after] - bounds[first]
            rows_of_part = arrays.rows_of(observation, part[ACTION], part['reward'], info, begins, truncated)
            yield name, encoder.encode_together(*rows_of_part)
