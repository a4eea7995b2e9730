"""Outcomes that came after decisions: the rewards of a log, joined by the decisions' ids.

Which outcomes count depends on the files alone, not on when they are joined: so the same files give the same data set.
What is not known is not zero: decisions whose windows are open are left out, whether an outcome has come or not, and
those of which an outcome is wrong have the reward NaN.
"""

import collections
import dataclasses
import math
import pathlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.settings import NonNegativeFloat, PositiveFloat, Range, checked_dataclass
from tflearn.extensions.product import csv_rows, log_files, reward_parts, table_values, tables
from tflearn.extensions.product.block_checks import ROWS_OF_A_FILE, BlockChecks
from tflearn.extensions.product.clocks import Clocks
from tflearn.extensions.product.column_map import ACTION, ACTIVATED, HAS_OUTCOME, Feature
from tflearn.extensions.product.delays import Delays
from tflearn.extensions.product.log_end import LogEnd, latest
from tflearn.extensions.product.log_report import Report
from tflearn.extensions.product.reward_parts import LARGEST

OPEN = 'decisions whose window is open'  # outcomes may still come
_UNKNOWN = 'decisions with a wrong outcome'
WITH_OUTCOME, _WITHOUT = 'decisions with an outcome', 'decisions without an outcome'
_OUTAGE, _OLD = 'decisions in an outage', 'decisions that are too old'
_KINDS = _IN_WINDOW, _EARLY, _LATE, _ALONE, _AFTER, _OF_NONE = (
    'outcomes in their window',
    'outcomes before their decision',
    'late outcomes',
    'outcomes that only activate',
    'outcomes after --until',
    'outcomes without a decision',
)
LEFT_OUT = 'good rows of episodes left out'
_WEIGHED = 'decisions whose window is open, with weights'
_Counts = collections.Counter[str]
_PARTS = 20  # of the time, whose shares of decisions with outcomes are compared
_DOUBT = 4.0  # standard deviations


@checked_dataclass(frozen=True)
class OutcomeOptions:
    """Which outcomes count.

    Attributes:
      paths: their files.
      id: the column of the decision's id.
      reward: the column of the number that counts.
      time: the column of the time.
      parts: the columns of the parts of the reward, by their names.
      weights: with which they are added up to it; {} takes `reward`.
      double: the column of the outcome's own id, by which doubles are known. Outcomes without one are known by id,
        reward and time; files need not have it.
      activated: the column that is true if the outcome says that a deferred decision was shown, and needs no reward;
        files need not have it.
      separator: what stands between the cells of CSV, see `tables.Columns`.
      window_secs: seconds after the decision in which outcomes count; None is any time.
      default_reward: the reward of a decision without an outcome; None leaves it out.
      combine: of several outcomes of a decision, in the order of their times.
      until: the time of the end of the log [s since 1970]: decisions whose window ends after it are left out.
        None finds it, see `LogEnd`.
      settle_secs: seconds before the end that is found in which outcomes may still be on their way.
      last_secs: seconds before the end of the log: earlier decisions are left out. None takes all.
      weigh_delays: keeps decisions whose windows are open too, with weights, see `Delays`: to train, not to judge.
      outages: times in which outcomes were lost, 'BEGIN,END' [s since 1970], or 'BEGIN,END,TEXT' of decisions in files
        whose paths have the text: decisions whose window meets one are left out.
    """

    paths: Sequence[pathlib.Path]
    id: str = 'event_id'
    reward: str = 'reward'
    time: str = 'time'
    double: str = 'outcome_id'
    activated: str = ACTIVATED
    parts: Mapping[str, Feature] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    separator: str | None = None
    window_secs: PositiveFloat | None = None
    default_reward: Annotated[float, Range(least=-LARGEST, most=LARGEST)] | None = None
    combine: Literal['first', 'sum', 'last'] = 'last'
    until: float | None = None
    settle_secs: NonNegativeFloat = 60.0
    last_secs: PositiveFloat | None = None
    outages: Sequence[str] = ()
    weigh_delays: bool = False

    def __post_init__(self) -> None:
        if self.until is not None and self.until > time.time():
            raise UserValueError(f'got until={self.until!r}, which has not come; need seconds since 1970')
        if self.weigh_delays and (self.window_secs is None or self.combine != 'first'):
            raise UserValueError(
                f'got --weigh_delays with --window_secs={self.window_secs} and --combine={self.combine}; need a '
                'window, and the first outcome: what comes later would change a reward that is known'
            )
        for each in self.outages:
            parse_outage(each)

    @property
    def rewards(self) -> list[Feature]:
        """The reward, or its parts."""
        rewards = [Feature('reward', (self.reward,))] if not self.weights else []
        return [*rewards, *self.parts.values()]

    @property
    def columns(self) -> tables.Columns:
        """All columns that are read, and what they hold."""
        numbers = [each.columns[0] for each in self.rewards]
        names = list(dict.fromkeys([self.id, self.time, *numbers]))
        optional, numeric = [self.double, self.activated], [*numbers, self.activated]
        return tables.Columns(names, numeric, optional=optional, separator=self.separator)


def parse_outage(given: str) -> tuple[float, float, str]:
    """Returns the begin and the end of an outage, and the text; raises ValueError for anything else."""
    begin, end, text = [*given.split(',', 2), '', ''][:3]
    try:
        found = float(begin), float(end), text
    except ValueError:
        found = math.nan, math.nan, text
    if not -math.inf < found[0] <= found[1] < math.inf:
        raise UserValueError(f'got the outage {given!r}; need BEGIN,END [s since 1970], such as 1764140400,1764144000')
    return found


class Outcomes:
    """Reads outcomes, and joins them with decisions, part by part."""

    def __init__(
        self, options: OutcomeOptions, report: Report, files: Sequence[pathlib.Path], actions: Mapping[int, str]
    ):
        """
        Args:
          options: which outcomes count.
          report: counts what is found.
          files: those of the decisions.
          actions: the names of the actions by their numbers; {} if they have none.
        """
        self._options, self._report, self._files, self._actions = options, report, files, actions
        self._rewards = ['reward', *(of.name for of in options.parts.values())]  # of a wrong outcome NaN
        fields = [('id', 'u8'), ('time', 'f8'), ('double', 'u8'), *((name, 'f8') for name in self._rewards)]
        fields += [('activates', '?'), ('is_alone', '?')]  # whether it activates; whether it has no reward
        fields += [('file', 'u4')]
        self.dtype = np.dtype(fields)
        self._end, self._begin = LogEnd(options.paths), math.inf
        self._delays: Delays | None = None
        self._clocks = Clocks(*map(log_files.labels, (options.paths, files)))
        self._shares = np.zeros((2, _PARTS))  # of the decisions in each part of the time: with outcomes, and all

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields all outcomes; raises ValueError for bad rows beyond what the report allows."""
        options, rewards = self._options, self._options.rewards
        numbers = [each.columns[0] for each in rewards]
        labels = log_files.labels(options.paths)
        for i, block in tables.read(options.paths, options.columns):
            path = options.paths[i]
            rows, one = np.zeros(len(block.rows), self.dtype), BlockChecks(block, self._report)
            rows['file'], rows['activates'] = i, one.flags(options.activated)[0]
            given = {name: table_values.numbers(block.columns[name]) for name in numbers}
            rows['is_alone'] = rows['activates'] & np.all([missing for _, missing, _ in given.values()], axis=0)
            for each in rewards:
                values, missing, wrong = given[each.columns[0]]
                found = np.where(rows['is_alone'], 0.0, values), missing & ~rows['is_alone'], wrong
                rows[each.name] = one.checked(each, each.columns[0], found, np.arange(len(rows)))
            if options.weights:
                rows['reward'] = reward_parts.weighted(rows, options.weights)
            rows['time'] = one.times(options.time, latest(path))
            rows['id'], missing = table_values.hashes(block.columns[options.id])
            one.mark(missing, options.id, 'an id')
            rows['double'], without = table_values.hashes(block.columns[options.double])
            rows['double'][without] = _mixed(rows['time'], rows['reward'])[without]
            self._report.counts['outcomes'] += len(rows) + len(block.lost)
            one.report_bad(labels[i], 'outcomes')
            bad = list(block.bad)
            self._end.add_outcomes(path, np.delete(rows['time'], bad))
            # The decision of a wrong outcome is known all the same.
            rows['time'][bad] = -math.inf
            for name in self._rewards:
                rows[name][bad] = math.nan
            rows['activates'][bad] = rows['is_alone'][bad] = False
            yield rows[~missing]

    def watched(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yields all decisions, which have to be read before some are joined."""
        for rows in blocks:
            times = rows['time'][~rows['bad']]
            if len(times):
                self._end.add_decisions(self._files[int(rows['row'][0]) // ROWS_OF_A_FILE], times)
                self._begin = min(self._begin, float(times.min()))
            yield rows

    def end(self) -> tuple[float, str]:
        """Returns the end of the log, and what it is the time of; all has to be read before."""
        if self._options.until is not None:
            return self._options.until, '--until'
        at, what = self._end.find()
        return at - self._options.settle_secs, f'{self._options.settle_secs:g} s before {what}'

    def waiting(self) -> str:
        """Returns how many windows are open, why, and what to do; '' if none is."""
        (at, what), count = self.end(), self._report.counts[OPEN]
        need = 'wait, or give a shorter --window_secs, or --until=TIME if all outcomes until then are in the files'
        return f' ({count} {OPEN}: {need}; the log ends at {at:.0f}, {what})' if count else ''

    def _counted(self, rows: np.ndarray, counts: _Counts) -> np.ndarray:
        """Returns the outcomes that count, by id and time: each once, in whatever order the files have them."""
        if self._options.until is not None or self._options.weigh_delays:
            is_in = rows['time'] <= self.end()[0]
            counts[_AFTER] += int(np.count_nonzero(~is_in))
            rows = rows[is_in]
        rows = rows[np.argsort(rows['id'], kind='stable')]
        again = rows['id'][1:] == rows['id'][:-1]
        if again.any():  # else that order is the one of all
            rows = rows[np.lexsort((rows['reward'], rows['time'], rows['double'], rows['id']))]
            again = np.logical_and.reduce([rows[name][1:] == rows[name][:-1] for name in ('id', 'double')])
            again &= ~np.isnan(rows['reward'][1:])
            rows = rows[np.r_[True, ~again]]
            rows = rows[np.lexsort((rows['reward'], rows['time'], rows['id']))]
        counts['double outcomes'] += int(np.count_nonzero(again))
        return rows

    def estimate_delays(self, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
        """Takes the delays of all decisions and outcomes, which `join` gets after that."""
        found = []
        for decisions, outcomes in parts:
            counts: _Counts = collections.Counter()  # `join` counts them again, and their delays
            of, first, unknown = self._matched(decisions, outcomes, counts)
            self._clocks.clear()
            delays = np.full(len(decisions), math.inf)
            delays[of[::-1]] = (first['time'] - decisions['time'][of])[::-1]
            self._leave_out(decisions, ~np.isfinite(delays), unknown, counts)
            known = ~(decisions['bad'] | unknown)
            found.append((self._actions_of(decisions)[known], delays[known]))
        self._delays = Delays(*map(np.concatenate, zip(*found, strict=True)))

    def _actions_of(self, decisions: np.ndarray) -> np.ndarray:
        return decisions[ACTION] if self._actions else np.zeros(len(decisions), np.int64)

    def _matched(
        self, decisions: np.ndarray, outcomes: np.ndarray, counts: _Counts
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the index of the decision of each outcome that counts; the outcome; which are unknown [N].

        Marks the decisions that outcomes activate.
        """
        decisions[ACTIVATED] |= self._activated(decisions, outcomes[outcomes['activates']])
        counts[_ALONE] += int(np.count_nonzero(outcomes['is_alone']))
        outcomes = self._counted(outcomes[~outcomes['is_alone']], counts)
        ids = np.append(outcomes['id'], np.uint64(0))
        begins = np.searchsorted(ids[:-1], decisions['id'])
        # Where the outcomes of an id end is found faster in their order than in that of the decisions.
        ends = np.append(np.searchsorted(ids[:-1], ids[:-1], 'right'), len(outcomes))
        lengths = np.where(ids[begins] == decisions['id'], ends[begins] - begins, 0)
        of = np.repeat(np.arange(len(decisions)), lengths)  # the decision of each outcome
        places = np.arange(len(of)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + begins[of]
        joined = np.zeros(len(outcomes), bool)
        joined[places] = True
        counts[_OF_NONE] += int(np.count_nonzero(~joined & ~np.isnan(outcomes['reward'])))
        window = math.inf if self._options.window_secs is None else self._options.window_secs
        found, decided = outcomes[places], decisions['time'][of]
        late, wrong = found['time'] > decided + window, np.isnan(found['reward'])
        early = (found['time'] < decided) & ~wrong
        for kind, which in ((_IN_WINDOW, ~(late | wrong | early)), (_EARLY, early), (_LATE, late)):
            once = np.unique(places[which & joined[places]])  # also of several decisions of one id
            counts[kind] += len(once)
            joined[once] = False
        delays, files = found['time'] - decided, decisions['row'][of] // ROWS_OF_A_FILE
        self._clocks.add(found['file'][~wrong], files[~wrong], delays[~wrong], window)
        unknown = np.bincount(of[wrong | early], minlength=len(decisions)) > 0
        return of[~(late | wrong | early)], found[~(late | wrong | early)], unknown

    def _activated(self, decisions: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
        """Returns which decisions one of the outcomes activates within the window, [N]."""
        if self._options.until is not None or self._options.weigh_delays:
            outcomes = outcomes[outcomes['time'] <= self.end()[0]]
        outcomes = outcomes[np.lexsort((outcomes['time'], outcomes['id']))]
        first = np.searchsorted(outcomes['id'], decisions['id'])
        found = np.flatnonzero(first < np.searchsorted(outcomes['id'], decisions['id'], 'right'))
        ages = np.full(len(decisions), math.inf)
        ages[found] = outcomes['time'][first[found]] - decisions['time'][found]
        return ages <= min(self._options.window_secs or math.inf, LARGEST)

    def join(self, decisions: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
        """Returns decisions with their rewards; marks those that are left out as bad.

        Args:
          decisions: rows with 'id', 'time', 'reward' and 'bad'. A reward that is not known will be NaN.
          outcomes: all outcomes of their ids, of `blocks`, all of which have been read.
        """
        options, counts, (until, _) = self._options, self._report.counts, self.end()
        of, found, unknown = self._matched(decisions, outcomes, counts)
        for name in self._rewards:
            if options.combine == 'sum':
                totals = np.bincount(of, found[name], len(decisions))
                unknown |= np.abs(totals) > LARGEST
                decisions[name] = np.where(unknown, 0.0, totals)
            else:
                order = slice(None, None, -1) if options.combine == 'first' else slice(None)
                decisions[name][of[order]] = found[name][order]  # the last write counts
        kept = decisions['reward'][of]
        others = int(np.count_nonzero(found['reward'].astype(kept.dtype) != kept))
        if others and options.combine != 'sum':
            counts['outcomes with another reward than the one that counts'] += others
        decisions[HAS_OUTCOME][of] = True
        without = ~decisions[HAS_OUTCOME] & ~unknown & ~decisions['bad']
        decisions['reward'][without] = options.default_reward or 0.0
        is_open = self._leave_out(decisions, without, unknown, counts)
        self._mark_unknown(decisions, unknown & ~decisions['bad'])
        self._count_shares(decisions, until, without, ~is_open)
        if options.default_reward is None:
            counts[_WITHOUT] += int(np.count_nonzero(without & ~decisions['bad']))
            decisions['bad'] |= without
        return decisions

    def add_sums(self, num_unknown: int) -> None:
        """Adds what became of all decisions and outcomes, of which so many have a reward that is not known."""
        report, counts = self._report, self._report.counts
        found = {'with an outcome': counts[WITH_OUTCOME]}
        found['without one'] = counts['steps'] - found['with an outcome']
        counts[_WITHOUT] += found['without one']
        report.sums['steps'] = found
        left_out = [OPEN, tables.NOT_ACTIVATED, _OUTAGE, _OLD, *([] if found['without one'] else [_WITHOUT])]
        parts = {'steps': counts['steps'], 'steps with unknown rewards': num_unknown}
        parts |= {name: counts[name] for name in left_out}
        # A refused one is a bad row.
        parts['doubles'] = 0 if 'duplicate' in report.refused else counts['duplicate: rows']
        if not self._options.weigh_delays:  # which repeats some
            report.sums['rows that are good'] = {**parts, 'in sessions that are left out': counts[LEFT_OUT]}
        parts = {name.removeprefix('outcomes ').removesuffix(' outcomes'): counts[name] for name in _KINDS}
        report.sums['outcomes that are good'] = {**parts, 'doubles': counts['double outcomes']}

    def _leave_out(
        self, decisions: np.ndarray, without: np.ndarray, unknown: np.ndarray, counts: _Counts
    ) -> np.ndarray:
        """Marks what is not known; returns which windows are open, [N].

        Which decisions these are, their own times say, never that an outcome has come, unless they have weights. Each
        is counted once, for the first reason.
        """
        options, bad, (until, _) = self._options, decisions['bad'], self.end()

        def leave_out(which: np.ndarray, reason: str) -> None:
            counts[reason] += int(np.count_nonzero(which & ~bad))
            bad[which] = True

        is_open = np.zeros(len(decisions), bool)
        if options.window_secs is not None:
            is_open = decisions['time'] + options.window_secs > until
            pending = is_open
            if self._delays:
                pending = is_open & ~self._weigh(decisions, is_open & ~unknown, without)
                counts[_WEIGHED] += int(np.count_nonzero(is_open & ~pending))
            leave_out(pending, OPEN)
        if not decisions[ACTIVATED].all():
            leave_out(~decisions[ACTIVATED], tables.NOT_ACTIVATED)
        for begin, end, text in map(parse_outage, options.outages):
            files = np.array([text in str(path) for path in self._files])
            lost = files[decisions['row'] // ROWS_OF_A_FILE] & (decisions['time'] <= end)
            lost &= decisions['time'] + (options.window_secs or 0.0) >= begin
            leave_out(lost, _OUTAGE)
        if options.last_secs is not None:
            old = decisions['time'] < until - options.last_secs
            leave_out(old, _OLD)
        return is_open

    def _weigh(self, decisions: np.ndarray, is_open: np.ndarray, without: np.ndarray) -> np.ndarray:
        """Sets how often decisions stand in the data set; returns which of those with open windows have a weight."""
        assert self._delays is not None
        weights, ages = np.zeros(len(decisions)), self.end()[0] - decisions['time']
        actions = self._actions_of(decisions)
        weights[is_open] = self._delays.weights(actions[is_open], ages[is_open], ~without[is_open])
        # Rounded by chance, which is a hash of the id: the mean is the weight, and the same files give the same.
        copies = np.floor(weights + (decisions['id'] >> np.uint64(11)) / 2.0**53)
        decisions['copies'] = np.where(is_open, copies, 1)
        return weights > 0

    def _mark_unknown(self, decisions: np.ndarray, unknown: np.ndarray) -> None:
        for name in self._rewards:
            decisions[name][unknown] = math.nan
        counts = self._report.counts
        counts[_UNKNOWN] += int(np.count_nonzero(unknown))
        for action in decisions[ACTION][unknown].tolist() if self._actions else ():
            counts[f'{_UNKNOWN}: {self._actions[action]}'] += 1

    def _count_shares(self, decisions: np.ndarray, until: float, without: np.ndarray, closed: np.ndarray) -> None:
        """Counts decisions with outcomes, by parts of the time."""
        known = closed & ~(decisions['bad'] | np.isnan(decisions['reward']))
        parts = (decisions['time'][known] - self._begin) // self._part_secs(until)
        parts = np.clip(parts, 0, _PARTS - 1).astype(int)
        self._shares += [np.bincount(parts, weights, _PARTS) for weights in (~without[known], None)]

    def _part_secs(self, until: float) -> float:
        return max(until - self._begin, 1e-6) / _PARTS

    def warnings(self) -> list[str]:
        """Returns what is to be doubted, after all is joined."""
        found, ((having, all_of), (until, _)) = [], (self._shares, self.end())
        rest = all_of.sum() - all_of
        share = (having.sum() - having) / np.maximum(rest, 1)  # of the other parts
        expected = all_of * share
        fallen = (having < expected / 2) & (expected - having > _DOUBT * np.sqrt(np.maximum(expected, 1)))
        for i in np.flatnonzero(fallen):
            begin, end = (self._begin + part * self._part_secs(until) for part in (i, i + 1))
            found.append(
                f'only {having[i] / all_of[i]:.2%} of the decisions from {begin:.0f} to {end:.0f} have outcomes, '
                f'of all others {share[i]:.2%}: if outcomes were lost, --outages={begin:.0f},{end:.0f} leaves these '
                'decisions out'
            )
        found += self._clocks.warnings()
        if self._report.counts[_OF_NONE] and not self._report.counts[WITH_OUTCOME]:
            found.append('no outcome has a decision here: compare the ids of both, which are texts, spaces and all')
        if self._options.window_secs is None and self._options.default_reward is not None:
            found.append(
                'without --window_secs a decision without an outcome has the default reward, though one may still come'
            )
        return found


def _mixed(times: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """Returns a hash of both, uint64 [N]."""
    first, second = (np.ascontiguousarray(each + 0.0).view(np.uint64) for each in (times, rewards))
    return (first * np.uint64(0x9E3779B97F4A7C15)) ^ (second * np.uint64(0xC2B2AE3D27D4EB4F) >> np.uint64(7)) ^ second


def options_of(given: Mapping[str, str], paths: Sequence[pathlib.Path], **options: Any) -> OutcomeOptions:
    """Returns the options with the columns that a column map names; raises ValueError for other keys."""
    columns = ('id', 'reward', 'time', 'double', ACTIVATED, 'separator')
    if not isinstance(given, dict) or not set(given) <= set(columns):
        raise UserValueError(f'got outcomes = {given!r}; need a table of columns, some of {", ".join(columns)}')
    csv_rows.checked_separator(given.get('separator'))
    return OutcomeOptions(paths, **{**given, **options})
