"""The rows of a log as numbers: each block of a table becomes rows of one NumPy dtype; what is wrong is counted."""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.specs import tensor_spec

from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs
from tflearn.data import tables
from tflearn.data.column_map import ACTION, ColumnMap, Feature

REFUSALS = ('missing', 'unknown', 'duplicate', 'disorder')
ROWS_OF_A_FILE = 1 << 40  # 'row' is that times the number of the file, and the row in it
_MAX_NAMED = 10

Vocabularies = Mapping[str, Sequence[str]]


@dataclasses.dataclass
class Report:
    """What was found in a log.

    Attributes:
      refused: which of `REFUSALS` make a row a bad one.
      max_bad_rows: bad rows that are left out; one more is an error.
      counts: of rows by what was done with them.
    """

    refused: Sequence[str] = ()
    max_bad_rows: int = 0
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def bad(self, place: str, got: str, need: str) -> None:
        """Counts a bad row; raises ValueError if that is one too many."""
        self.counts['bad rows'] += 1
        if self.counts['bad rows'] > self.max_bad_rows:
            most = f'--max_bad_rows={self.max_bad_rows}'
            raise UserValueError(f'got {got} in {place}; need {need}; correct it, or allow more than {most}')
        if self.counts['bad rows'] <= _MAX_NAMED:
            logging.warning('left out a row: got %s in %s; need %s', got, place, need)

    def found(self, kind: str, name: str, count: int) -> bool:
        """Counts what `kind` of `REFUSALS` was found in a part; returns whether it is refused."""
        if count:
            self.counts[f'{kind}: {name}'] += count
        return kind in self.refused

    def __str__(self) -> str:
        return '\n'.join(f'{name}: {count}' for name, count in sorted(self.counts.items()))


class RowEncoder:
    """Blocks of a table -> rows.

    Attributes:
      dtype: of a row: its parts by their names, and what orders it: 'key' (of its episode), 'id', 'time' and 'row';
        'bad' rows only name an episode that is left out.
      specs: the specs of the environment that the log is of.
    """

    def __init__(self, column_map: ColumnMap, vocabularies: Vocabularies, report: Report):
        """Takes the vocabularies of all categories, by the names of their parts."""
        self._map, self._report = column_map, report
        self._vocabularies = {name: tables.vocabulary(values) for name, values in vocabularies.items()}
        self._num_actions = len(vocabularies.get(ACTION, ()))
        action = column_map.feature(ACTION)
        self._start = int(action.bounds[0]) if action and action.kind == 'integer' else 0
        fields: list[Any] = [('key', 'u8'), ('id', 'u8'), ('time', 'f8'), ('row', 'i8'), ('bad', '?')]
        for each in column_map.features:
            kind = {'number': 'f4', 'integer': 'i8', 'category': 'i8', 'mask': 'i1'}[each.kind]
            fields.append((each.name, kind, (self._num_actions,) if each.kind == 'mask' else each.shape))
        if not column_map.feature('reward'):  # outcomes have it
            fields.append(('reward', 'f4'))
        self.dtype = np.dtype(fields)
        parts = {each.name.removeprefix('observation.'): self._spec(each) for each in column_map.features}
        observed = {name: parts[name] for name in parts if f'observation.{name}' in (self.dtype.names or ())}
        self.specs = EnvironmentSpecs(observed, parts[ACTION])

    def _spec(self, feature: Feature) -> tf.TypeSpec:
        shape = self.dtype[feature.name].shape
        if feature.kind == 'mask':
            return tensor_spec.BoundedTensorSpec(shape, tf.int8, 0, 1)
        if feature.kind == 'category':
            # An observation that no vocabulary has is 0.
            size = len(self._vocabularies[feature.name]) - (feature.name == ACTION)
            return tensor_spec.BoundedTensorSpec(shape, tf.int64, 0, size)
        if feature.name == ACTION or feature.kind == 'integer':
            dtype = tf.int64 if feature.kind == 'integer' else tf.float32
            return tensor_spec.BoundedTensorSpec(shape, dtype, *feature.bounds)
        return tf.TensorSpec(shape, tf.float32)

    def __call__(self, path: pathlib.Path, number: int, block: tables.Block) -> np.ndarray:
        """Returns the rows of a block of a file, [N] of `dtype`; `number` is that of the file."""
        rows = np.zeros(len(block.rows), self.dtype)
        rows['row'] = rows['key'] = number * ROWS_OF_A_FILE + block.rows
        self._report.counts['rows'] += len(rows) + len(block.lost)
        one = BlockChecks(block, self._report)
        for each in self._map.features:
            rows[each.name] = self._part(one, each)
        self._check(one, rows)
        if 'time' in self._map.keys:
            rows['time'] = one.numbers(Feature('time', (self._map.keys['time'],)), tables.times)[0]
        for field, name in (('key', 'episode'), ('id', 'id')):
            if column := self._map.keys.get(name):
                rows[field], missing = tables.hashes(block.columns[column])
                one.mark(missing, column, f'the {name}')
        one.report_bad(path)
        rows['bad'][list(block.bad)] = True
        return rows

    def _part(self, one: 'BlockChecks', feature: Feature) -> np.ndarray:
        """Returns the values of a part, [N, ...]."""
        if feature.kind in ('number', 'integer') and not feature.length:
            values = one.numbers(feature)
            return np.stack(values, axis=-1) if len(values) > 1 else values[0]
        column = feature.columns[0]
        array = one.block.columns[column]
        if feature.kind == 'category' and not feature.length:
            return self._categories(one, feature, array, np.arange(len(array)))
        flat, lengths, missing = tables.lists(array)
        lists = np.repeat(np.arange(len(lengths)), lengths)
        places = np.arange(len(lists)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        if feature.kind == 'mask':
            found, _ = tables.indices(flat, self._vocabularies[ACTION])
            one.mark(missing, column, 'the allowed actions')
            one.mark(lists[found < 0], column, 'actions of the vocabulary')
            allowed = np.zeros((len(lengths), self._num_actions), np.int8)
            allowed[lists[found >= 0], found[found >= 0]] = 1
            return allowed
        size = feature.length or 0
        one.mark(lengths > size, column, f'at most {size} elements')
        kept = places < size
        if feature.kind == 'category':
            filled = np.zeros((len(lengths), size), np.int64)
            filled[lists[kept], places[kept]] = self._categories(one, feature, flat, lists)[kept]
            return filled
        if feature.missing is None:
            one.mark(lengths < size, column, f'{size} elements, or `missing` in the column map')
        numbers = np.full((len(lengths), size), feature.missing or 0.0)
        numbers[lists[kept], places[kept]] = one.checked(feature, column, tables.numbers(flat), lists)[kept]
        return numbers

    def _categories(self, one: 'BlockChecks', feature: Feature, array: Any, rows: np.ndarray) -> np.ndarray:
        """Returns the index of each value; an observation's begin with 1, and those not in the vocabulary are 0."""
        found, missing = tables.indices(array, self._vocabularies[feature.name])
        if feature.name == ACTION:
            one.mark(rows[found < 0], feature.columns[0], 'an action of the vocabulary')
            return np.maximum(found, 0)
        for kind, which in (('missing', missing), ('unknown', (found < 0) & ~missing)):
            if self._report.found(kind, feature.name, int(np.count_nonzero(which))):
                one.mark(rows[which], feature.columns[0], f'a value that is not {kind}, by --refuse')
        return found + 1

    def _check(self, one: 'BlockChecks', rows: np.ndarray) -> None:
        """Marks actions that were not possible, and probabilities that are none."""
        for each in self._map.features:
            column, values = each.columns[0], rows[each.name]
            if each.name == 'propensity':
                one.mark(~((values > 0) & (values <= 1)), column, 'a probability above 0, and at most 1')
            elif each.name == ACTION and each.kind == 'number':
                low, high = each.bounds
                outside = (values < low) | (values > high)
                one.mark(outside.reshape(len(rows), -1).any(axis=1), column, f'{low:g} to {high:g}')
            elif each.kind == 'mask':
                allowed = values[np.arange(len(rows)), rows[ACTION] - self._start] == 1
                one.mark(~allowed, column, 'the action of the row among those that are allowed')


class BlockChecks:
    """The rows of one block, and what is wrong with them."""

    def __init__(self, block: tables.Block, report: Report):
        self.block, self._report = block, report

    def mark(self, rows: np.ndarray, column: str, need: str) -> None:
        """Marks rows as bad: by their indices, or bool [N]. The first reason of a row counts."""
        for i in (np.flatnonzero(rows) if rows.dtype == bool else rows).tolist():
            if i not in self.block.bad:
                value = self.block.columns[column][i].as_py()
                self.block.bad[i] = f'{column} = {None if value == "" else value!r:.60}', need

    def report_bad(self, path: pathlib.Path) -> None:
        """Reports all bad rows."""
        bad = {int(self.block.rows[i]): reason for i, reason in self.block.bad.items()}
        for row, reason in sorted({**self.block.lost, **bad}.items()):
            self._report.bad(f'{path.name}, row {row}', *reason)

    def numbers(self, feature: Feature, read: Any = tables.numbers) -> list[np.ndarray]:
        """Returns the numbers of each column of a part, [N]."""
        rows, arrays = np.arange(len(self.block.rows)), self.block.columns
        return [self.checked(feature, column, read(arrays[column]), rows) for column in feature.columns]

    def checked(self, feature: Feature, column: str, found: Any, rows: np.ndarray) -> np.ndarray:
        """Returns numbers; marks the rows of those that are none."""
        values, missing, wrong = found
        need = 'a time, as a number or by ISO 8601' if feature.name == 'time' else 'a finite number'
        if feature.kind == 'integer':
            low, high = feature.bounds
            need, known = f'an integer from {low:g} to {high:g}', ~missing & ~wrong
            wrong = wrong | (known & ~((values >= low) & (values <= high) & (values == np.floor(values))))
        self.mark(rows[wrong], column, need)
        if feature.missing is None:
            self.mark(rows[missing], column, f'{need}, or `missing` in the column map')
        elif self._report.found('missing', feature.name, int(np.count_nonzero(missing))):
            self.mark(rows[missing], column, 'a value that is not missing, by --refuse')
        least = feature.bounds[0] if feature.kind == 'integer' else 0.0
        return np.where(missing | wrong, least if feature.missing is None else feature.missing, values)
