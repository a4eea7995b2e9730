"""Outcomes that came after decisions: the rewards of a log, joined by the decisions' ids.

Which outcomes count depends on the files alone, not on when they are joined: so the same files give the same data set.
"""

import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveFloat, checked_dataclass
from tflearn.extensions.product import tables
from tflearn.extensions.product.log_rows import BlockChecks, Feature, Report

OPEN = 'decisions whose window is open'  # outcomes may still come


@checked_dataclass(frozen=True)
class OutcomeOptions:
    """Which outcomes count.

    Attributes:
      paths: their files.
      id: the column of the decision's id.
      reward: the column of the number that counts.
      time: the column of the time.
      double: the column of the outcome's own id, by which doubles are known; '' knows them by id, reward and time.
      window_secs: seconds after the decision in which outcomes count; None is any time.
      default_reward: the reward of a decision without an outcome; None leaves it out.
      combine: of several outcomes of a decision, in the order of their times.
      until: the time of the end of the log [seconds since 1970]: decisions whose window ends after it are left out.
        None takes the newest outcome's.
      last_secs: seconds before the end of the log: earlier decisions are left out. None takes all.
    """

    paths: Sequence[pathlib.Path]
    id: str = 'event_id'
    reward: str = 'reward'
    time: str = 'time'
    double: str = ''
    window_secs: PositiveFloat | None = None
    default_reward: float | None = None
    combine: Literal['first', 'sum', 'last'] = 'last'
    until: float | None = None
    last_secs: PositiveFloat | None = None


class Outcomes:
    """Reads outcomes, and joins them with decisions, part by part."""

    dtype = np.dtype([('id', 'u8'), ('time', 'f8'), ('reward', 'f8'), ('double', 'u8')])

    def __init__(self, options: OutcomeOptions, report: Report):
        self._options, self._report = options, report
        self._until = -math.inf if options.until is None else options.until

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields all outcomes; raises ValueError for bad rows beyond what the report allows."""
        options = self._options
        names = [options.id, options.reward, options.time, *([options.double] if options.double else [])]
        for path in options.paths:
            for block in tables.read(path, names, [options.reward]):
                rows, one = np.zeros(len(block.rows), self.dtype), BlockChecks(block, self._report)
                rows['reward'] = one.numbers(Feature('reward', (options.reward,)))[0]
                rows['time'] = one.numbers(Feature('time', (options.time,)), tables.times)[0]
                for field, column in (('id', options.id), ('double', options.double)):
                    if column:
                        rows[field], missing = tables.hashes(block.columns[column])
                        one.mark(missing, column, 'an id')
                one.report_bad(path)
                self._report.counts['outcomes'] += len(rows)
                rows = np.delete(rows, list(block.bad))
                if options.until is None:
                    self._until = rows['time'].max(initial=self._until)
                yield rows

    def _counted(self, rows: np.ndarray) -> np.ndarray:
        """Returns the outcomes that count, by id and time: each once, in whatever order the files have them."""
        rows = rows[rows['time'] <= self._until]
        rows = rows[np.lexsort((rows['reward'], rows['time'], rows['double'], rows['id']))]
        names = ('id', 'double') if self._options.double else ('id', 'time', 'reward')
        again = np.logical_and.reduce([rows[name][1:] == rows[name][:-1] for name in names])
        self._report.counts['double outcomes'] += int(np.count_nonzero(again))
        rows = rows[np.r_[np.ones(min(1, len(rows)), bool), ~again]]
        return rows[np.lexsort((rows['reward'], rows['time'], rows['id']))] if self._options.double else rows

    def join(self, decisions: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
        """Returns decisions with their rewards; marks those that are left out as bad.

        Args:
          decisions: rows with 'id', 'time', 'reward' and 'bad'.
          outcomes: all outcomes of their ids, of `blocks`, all of which have been read.
        """
        options, outcomes, counts = self._options, self._counted(outcomes), self._report.counts
        begins = np.searchsorted(outcomes['id'], decisions['id'])
        ends = np.searchsorted(outcomes['id'], decisions['id'], 'right')
        lengths = ends - begins
        of = np.repeat(np.arange(len(decisions)), lengths)  # the decision of each outcome
        places = np.arange(len(of)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + begins[of]
        joined = np.zeros(len(outcomes), bool)
        joined[places] = True
        counts['outcomes without a decision'] += int(np.count_nonzero(~joined))
        window = math.inf if options.window_secs is None else options.window_secs
        late = outcomes['time'][places] > decisions['time'][of] + window
        counts['late outcomes'] += int(np.count_nonzero(late))
        of, places = of[~late], places[~late]
        if options.combine == 'sum':
            decisions['reward'] = np.bincount(of, outcomes['reward'][places], len(decisions))
        else:
            order = slice(None, None, -1) if options.combine == 'first' else slice(None)
            decisions['reward'][of[order]] = outcomes['reward'][places[order]]  # the last write counts
        without = np.bincount(of, minlength=len(decisions)) == 0
        counts['decisions without an outcome'] += int(np.count_nonzero(without))
        decisions['reward'][without] = options.default_reward or 0.0
        if options.default_reward is None:
            decisions['bad'] |= without
        if options.window_secs is not None:
            pending = decisions['time'] + window > self._until
            counts[OPEN] += int(np.count_nonzero(pending))
            decisions['bad'] |= pending
        if options.last_secs is not None:
            old = decisions['time'] < self._until - options.last_secs
            counts['decisions that are too old'] += int(np.count_nonzero(old))
            decisions['bad'] |= old
        return decisions


def options_of(given: Mapping[str, str], paths: Sequence[pathlib.Path], **options: Any) -> OutcomeOptions:
    """Returns the options with the columns that a column map names; raises ValueError for other keys."""
    columns = ('id', 'reward', 'time', 'double')
    if not isinstance(given, dict) or not set(given) <= set(columns):
        raise UserValueError(f'got outcomes = {given!r}; need a table of columns, some of {", ".join(columns)}')
    return OutcomeOptions(paths, **{**given, **options})
