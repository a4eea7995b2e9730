"""The rows of a log as numbers: each block of a table becomes rows of one NumPy dtype; what is wrong is counted.

And what each column of the log means: `ColumnMap`, the file of `tflearn data import --columns`, in TOML.
"""

import dataclasses
import math
import pathlib
import tomllib
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tflearn.core.errors import UserError, UserOSError, UserValueError
from tflearn.core.settings import PositiveInt, Range, checked_dataclass
from tflearn.core.types import EnvironmentSpecs
from tflearn.extensions.product import csv_rows, reward_parts, row_weights, table_values, tables
from tflearn.extensions.product.log_report import Report
from tflearn.extensions.product.reward_parts import LARGEST, PARTS, PREFIX, WEIGHTS

_COLUMNS = ('reward', 'propensity', 'truncated', *row_weights.NAMES)  # numbers of a step
_VERSIONS = ('version', 'propensity_version')  # that has served; of which the propensity is
ACTIVATED = 'activated'
_KEYS = ('episode', 'id', 'time', 'cluster', ACTIVATED, *_VERSIONS)
_OUTCOMES = 'outcomes'
_SEPARATOR = 'separator'
ACTION = 'action'


@checked_dataclass(frozen=True)
class Feature:
    """A part of a step, and the columns that it is of.

    Attributes:
      name: such as 'observation.age' or 'action'.
      columns: the columns, several for a vector of numbers.
      kind: numbers; integers from `low` to `high`; categories, each an index into a vocabulary; a list of the actions
        that are allowed; or named numbers, 'price:2.5 red', each with a place in a vector.
      length: the number of elements, if the column has lists; shorter ones are filled.
      width: the numbers of each element, if the column has lists of lists, such as the features of some items.
      hashed: the size of the vector of named numbers, into which names are hashed; None takes a vocabulary.
      missing: the number that takes the place of one that is missing; None makes such a row a bad one.
      values: the vocabulary; () takes all values of the data.
      low: the least integer, 0 by default, or the least number of an action, -1 by default.
      high: the greatest one; 1 by default for numbers.
    """

    name: str
    columns: tuple[str, ...]
    kind: Literal['number', 'integer', 'category', 'mask', 'features'] = 'number'
    length: PositiveInt | None = None
    width: PositiveInt | None = None
    hashed: PositiveInt | None = None
    missing: Annotated[float, Range()] | None = None
    values: tuple[str, ...] = ()
    low: Annotated[float, Range()] | None = None
    high: Annotated[float, Range()] | None = None

    def __post_init__(self) -> None:
        if self.kind == 'integer' and (self.high is None or self.bounds[0] > self.bounds[1]):
            raise UserValueError(
                f'got {self.name} of integers from {self.low} to {self.high}; need both, or `high` alone'
            )
        if len(self.columns) != 1 and (self.kind != 'number' or self.length or not self.columns):
            raise UserValueError(
                f'got {self.name} of {len(self.columns)} columns; need one, or several of one number each'
            )
        low, high = self.bounds
        if self.kind == 'integer' and self.missing is not None and not low <= self.missing <= high:
            raise UserValueError(f'got {self.name} with missing = {self.missing:g}; need {low:g} to {high:g}')
        if self.width and not (self.kind == 'number' and self.length):
            raise UserValueError(f'got {self.name} with width = {self.width}; need numbers, and a length')
        if self.hashed and (self.kind != 'features' or self.values):
            raise UserValueError(f"got {self.name} with hashed = {self.hashed}; need kind = 'features', and no values")
        if len(set(self.values)) < len(self.values):
            raise UserValueError(f'got {self.name} with a value twice in `values`; need each once')

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number, of integers and actions."""
        low = self.low if self.low is not None else 0 if self.kind == 'integer' else -1
        return low, 1 if self.high is None else self.high

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its tensor, without the vector of named numbers; of all kinds but a mask."""
        if self.length:
            return (self.length, self.width) if self.width else (self.length,)
        return (len(self.columns),) if len(self.columns) > 1 else ()

    @property
    def has_vocabulary(self) -> bool:
        """Whether texts become indices into a vocabulary."""
        return self.kind in ('category', 'features') and not self.hashed


@dataclasses.dataclass(frozen=True)
class ColumnMap:
    """What each column of a log means.

    Attributes:
      features: the observation's, then the action, then those of `_COLUMNS` that are there, then the parts of the
        reward, unless outcomes have them.
      keys: the columns of `_KEYS`, by these names; those that are there.
      outcomes: the columns of outcomes that come in other files, see `OutcomeOptions`.
      stated: what the gate may take for certain: `low` and `high` of the rewards, or of their sums, if `whole`; and
        `longest`, the most steps of an episode; and whether they are independent slots; those that are there.
      separator: what stands between the cells of CSV, see `tables.Columns`.
      parts: of the reward, by their names.
      weights: with which they are added up to the reward; {} if it is a column.
      optional: those of the columns that no file must have.
    """

    features: tuple[Feature, ...]
    keys: Mapping[str, str]
    outcomes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    stated: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    separator: str | None = None
    parts: Mapping[str, Feature] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    optional: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        return list(dict.fromkeys([*(name for each in self.features for name in each.columns), *self.keys.values()]))

    @property
    def columns(self) -> tables.Columns:
        """All columns that are read, and what they hold."""
        numeric = {name for each in self.features if each.kind in ('number', 'integer') for name in each.columns}
        lists = {
            each.columns[0]: 2 if each.width else 1 for each in self.features if each.length or each.kind == 'mask'
        }
        numeric |= {self.keys[ACTIVATED]} if ACTIVATED in self.keys else set()
        names = [name for name in self.names if name not in self.optional]
        return tables.Columns(names, numeric, lists, optional=self.optional, separator=self.separator)

    def feature(self, name: str) -> Feature | None:
        """Returns the part of this name."""
        return next((each for each in self.features if each.name == name), None)


def read_map(path: pathlib.Path, given: Mapping[str, Any] = types.MappingProxyType({})) -> ColumnMap:
    """Reads the file; raises ValueError for another one, and OSError if it cannot be read.

    Args:
      given: what holds unless the file has it.
    """
    try:
        return parse_map({**given, **tomllib.loads(path.read_text(encoding='utf-8'))}, path.parent)
    except UserValueError as error:
        raise UserValueError(f'{error}; correct {path}') from error
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserOSError(f'got --columns={path}, which cannot be read ({error}); need a file in TOML') from error


def parse_map(given: Mapping[str, Any], folder: pathlib.Path = pathlib.Path()) -> ColumnMap:
    """Returns the map of TOML's tables; `folder` is that of the file of weights, if there is one."""
    _check_tables(given)
    parts = {f'observation.{name}': value for name, value in given['observation'].items()}
    parts |= {name: given[name] for name in (ACTION, *_COLUMNS) if name in given}
    keys = {name: given[name] for name in _KEYS if name in given}
    features = tuple(_feature(name, value) for name, value in parts.items())
    of_reward = {name: _part_of_reward(name, value) for name, value in given.get(PARTS, {}).items()}
    weights = reward_parts.read_weights(given[WEIGHTS], folder, of_reward) if WEIGHTS in given else {}
    features += () if _OUTCOMES in given else tuple(of_reward.values())
    separator = csv_rows.checked_separator(given.get(_SEPARATOR))
    stated = reward_parts.stated(given)
    for name, of in of_reward.items():
        stated |= {
            key: end for key, end in zip(reward_parts.ends(name), (of.low, of.high), strict=True) if end is not None
        }
    found = ColumnMap(features, keys, given.get(_OUTCOMES, {}), stated, separator, of_reward, weights)
    action = found.feature(ACTION)
    masks = [each.name for each in found.features if each.kind == 'mask']
    if action is None or action.kind == 'mask' or (masks and action.kind == 'number'):
        raise UserValueError(
            f'got an action of another kind, with the masks {masks}; need a category or an integer beside masks'
        )
    return found


def _part_of_reward(name: str, value: Any) -> Feature:
    found = _feature(PREFIX + name, value)
    if found.kind != 'number' or found.shape or None not in (found.missing, found.hashed):
        raise UserValueError(f'got the part {name} = {value!r:.100}; need a column of numbers, its low and its high')
    return found


def _check_tables(given: Mapping[str, Any]) -> None:
    """Raises ValueError for unknown tables, or if some are missing."""
    known = ('observation', ACTION, *_COLUMNS, *_KEYS, _OUTCOMES, *reward_parts.STATED, _SEPARATOR, PARTS, WEIGHTS)
    if unknown := [name for name in given if name not in known]:
        raise UserValueError(f'got {unknown[0]!r:.100} among the columns; need one of {", ".join(known)}')
    observation = given.get('observation')
    is_complete = ACTION in given and not {'reward', WEIGHTS, _OUTCOMES}.isdisjoint(given)
    if not isinstance(observation, dict) or not observation or not is_complete:
        raise UserValueError(
            f'got the columns of {", ".join(given)[:100] or "nothing"}; need observation, action and reward'
        )
    if not isinstance(given.get(PARTS, {}), dict) or {'reward', WEIGHTS} <= set(given):
        raise UserValueError(f'got {PARTS} = {given.get(PARTS)!r:.100}; need a table, and reward or weights, not both')
    if _VERSIONS[1] in given and _VERSIONS[0] not in given:
        raise UserValueError(
            f'got {_VERSIONS[1]} alone; need {_VERSIONS[0]}, the column of the version that has served'
        )
    for name in _KEYS:
        if not isinstance(given.get(name, ''), str):
            raise UserValueError(f'got {name} = {given[name]!r:.100}; need the name of a column')


def _feature(name: str, value: Any) -> Feature:
    given = {'column': value} if isinstance(value, str) else value
    keys = ('column', *(field.name for field in dataclasses.fields(Feature) if field.name != 'name'))
    if not isinstance(given, dict) or not set(given) <= set(keys):
        raise UserValueError(f'got {name} = {value!r:.100}; need a column, or a table of {", ".join(keys)}')
    rest = {key: value for key, value in given.items() if key not in ('column', 'columns', 'values')}
    columns = given.get('columns', [given.get('column', name.rpartition('.')[2])])
    values = given.get('values', [])
    for key, texts in (('columns', columns), ('values', values)):
        if not isinstance(texts, list):
            raise UserValueError(f'got {name}.{key} = {texts!r:.100}; need a list')
    try:
        return Feature(name, tuple(map(str, columns)), values=tuple(map(str, values)), **rest)
    except (UserError, TypeError) as error:
        raise UserValueError(f'got {name} wrong: {error}') from error


ROWS_OF_A_FILE = 1 << 40  # 'row' is that times the number of the file, and the row in it
_MAX_NUMBERS = 1 << 18  # of a part of a row

Vocabularies = Mapping[str, Sequence[str]]


class RowEncoder:
    """Blocks of a table -> rows.

    Attributes:
      dtype: of a row: its parts by their names, and what orders it: 'key' (of its episode), 'id', 'time' and 'row';
        'bad' rows only name an episode that is left out. A reward that is not known is NaN.
      actions: the names of the actions by their numbers; {} if they have none.
      specs: the specs of the environment that the log is of.
    """

    def __init__(self, column_map: ColumnMap, vocabularies: Vocabularies, report: Report, has_copies: bool = False):
        """Takes the vocabularies of all categories, by the names of their parts; with copies rows have 'copies'."""
        self._map, self._report = column_map, report
        self._vocabularies = {name: table_values.vocabulary(values) for name, values in vocabularies.items()}
        self._num_actions = len(vocabularies.get(ACTION, ()))
        action = column_map.feature(ACTION)
        self._start = int(action.bounds[0]) if action and action.kind == 'integer' else 0
        # Numbers have a density in place of a probability, which is above 1 in a narrow range.
        self._has_density = action is not None and action.kind == 'number'
        self.actions = dict(enumerate(vocabularies.get(ACTION, ()), self._start))
        fields: list[Any] = [('key', 'u8'), ('id', 'u8'), ('time', 'f8'), ('row', 'i8'), ('bad', '?')]
        fields += [('cluster', 'u8')] if 'cluster' in column_map.keys else []
        fields += [(ACTIVATED, '?')] if ACTIVATED in column_map.keys else []
        fields += [('copies', 'u1')] if has_copies else []
        for each in column_map.features:
            kind = {'number': 'f4', 'integer': 'i8', 'category': 'i8', 'mask': 'i1', 'features': 'f4'}[each.kind]
            shape = (self._num_actions,) if each.kind == 'mask' else each.shape
            if each.kind == 'features':
                shape = (*shape, each.hashed or len(vocabularies[each.name]))
            if math.prod(shape) > _MAX_NUMBERS:
                raise UserValueError(f'got {each.name} of {shape} numbers; need at most {_MAX_NUMBERS}; hash them')
            fields.append((each.name, 'f8' if each.name in row_weights.NAMES else kind, shape))
        if not column_map.feature('reward'):  # outcomes have it, or the parts
            fields.append(('reward', 'f4'))
        known = {name for name, *_ in fields}
        fields += [(of.name, 'f4') for of in column_map.parts.values() if of.name not in known]
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

    def __call__(self, label: str, number: int, block: tables.Block, latest: float) -> np.ndarray:
        """Returns the rows of a block of a file, [N] of `dtype`.

        Args:
          label: the name of the file, for messages.
          number: the number of the file.
          block: its rows.
          latest: rows with a later time are bad, see `BlockChecks.times`.
        """
        rows = np.zeros(len(block.rows), self.dtype)
        rows['row'] = rows['key'] = number * ROWS_OF_A_FILE + block.rows
        self._report.counts['rows'] += len(rows) + len(block.lost) + sum(block.no_rows.values())
        self._report.counts.update(block.no_rows)
        for name in block.absent if len(rows) else ():
            self._report.counts[f'rows of files without the column {name}'] += len(rows)
        one = BlockChecks(block, self._report)
        rewards = [each for each in self._map.features if each.name == 'reward' or each.name.startswith(PREFIX)]
        for each in self._map.features:
            if each not in rewards:
                rows[each.name] = self._part(one, each)
        self._check(one, rows)
        if 'time' in self._map.keys:
            rows['time'] = one.times(self._map.keys['time'], latest)
        for field, name in (('key', 'episode'), ('id', 'id'), ('cluster', 'cluster')):
            if column := self._map.keys.get(name):
                rows[field], missing = table_values.hashes(block.columns[column])
                one.mark(missing, column, f'the {name}')
        if column := self._map.keys.get(ACTIVATED):
            shown, missing = one.flags(column)
            rows[ACTIVATED] = shown | missing
        if column := self._map.keys.get(_VERSIONS[1]):
            served, of_propensity = (table_values.hashes(block.columns[self._map.keys[name]])[0] for name in _VERSIONS)
            one.mark(served != of_propensity, column, 'the version that has served, whose probability it is')
        rows['bad'][list(block.bad)] = True
        for each in rewards:  # last of all: a row with nothing but a wrong reward is a decision all the same
            rows[each.name] = self._part(one, each)
        if rewards and self._map.weights:
            rows['reward'] = reward_parts.weighted(rows, self._map.weights)
        for name in ('reward', *reward_parts.fields(rows)) if rewards else ():
            rows[name][list(block.bad)] = np.nan
        one.report_bad(label)
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
        if feature.kind == 'features':
            return self._named(one, feature, array)
        flat, lengths, missing, wrong = table_values.lists(array, feature.width or 0)
        one.mark(wrong, column, 'a list in JSON, or elements with spaces between them')
        lists = np.repeat(np.arange(len(lengths)), lengths)
        places = np.arange(len(lists)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        if feature.kind == 'mask':
            found, _ = table_values.indices(flat, self._vocabularies[ACTION])
            one.mark(missing, column, 'the allowed actions')
            one.mark(lists[found < 0], column, 'actions of the vocabulary')
            allowed = np.zeros((len(lengths), self._num_actions), np.int8)
            allowed[lists[found >= 0], found[found >= 0]] = 1
            return allowed
        width = feature.width or 1
        size = width * (feature.length or 0)
        one.mark(lengths > size, column, f'at most {feature.length} elements')
        kept = places < size
        if feature.kind == 'category':
            filled = np.zeros((len(lengths), size), np.int64)
            filled[lists[kept], places[kept]] = self._categories(one, feature, flat, lists)[kept]
            return filled
        if feature.missing is None:
            one.mark(lengths < size, column, f'{size} elements, or `missing` in the column map')
        numbers = np.full((len(lengths), size), feature.missing or 0.0)
        numbers[lists[kept], places[kept]] = one.checked(feature, column, table_values.numbers(flat), lists)[kept]
        return numbers.reshape(-1, *feature.shape)

    def _named(self, one: 'BlockChecks', feature: Feature, array: Any) -> np.ndarray:
        """Returns vectors of named numbers, [N, D], or [N, length, D]: equal names are added up."""
        column, shape, num_rows = feature.columns[0], self.dtype[feature.name].shape, len(array)
        names, values, rows, places, wrong = table_values.named_features(array, bool(feature.length))
        one.mark(wrong, column, 'features with spaces between them' + (', in a list' if feature.length else ''))
        one.mark(rows[places >= (feature.length or 1)], column, f'at most {feature.length} elements')
        one.mark(rows[~(np.abs(values) <= LARGEST)], column, 'names, each with a finite number of float32, if any')
        if feature.hashed:
            found = table_values.hashed(names, feature.hashed)
        else:
            found, _ = table_values.indices(names, self._vocabularies[feature.name])
        if self._report.found('unknown', feature.name, int(np.count_nonzero(found < 0))):
            one.mark(rows[found < 0], column, 'a value that is not unknown, by --refuse')
        vectors = np.zeros((num_rows, feature.length or 1, shape[-1]))
        kept = (found >= 0) & (places < vectors.shape[1])
        np.add.at(vectors, (rows[kept], places[kept], found[kept]), values[kept])
        return vectors.reshape(num_rows, *shape)

    def _categories(self, one: 'BlockChecks', feature: Feature, array: Any, rows: np.ndarray) -> np.ndarray:
        """Returns the index of each value; an observation's begin with 1, and those not in the vocabulary are 0."""
        found, missing = table_values.indices(array, self._vocabularies[feature.name])
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
            if each.name == 'propensity' and self._has_density:
                one.mark(~((values > 0) & np.isfinite(values)), column, 'a density above 0')
            elif each.name == 'propensity':
                one.mark(~((values > 0) & (values <= 1)), column, 'a probability above 0, and at most 1')
            elif each.name in row_weights.NAMES:
                one.mark(row_weights.are_wrong(each.name, values), column, row_weights.NEED[each.name])
            elif each.name == ACTION and each.kind == 'number':
                low, high = each.bounds
                outside = (values < low) | (values > high)
                one.mark(outside.any(axis=tuple(range(1, outside.ndim))), column, f'{low:g} to {high:g}')
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
                self.block.bad[i] = f'{column} = {tables.shown(self.block.columns[column], i)}', need

    def report_bad(self, label: str, of: str = 'rows') -> None:
        """Reports all bad rows of a file with this name, which is of 'rows' or 'outcomes'."""
        bad = {int(self.block.rows[i]): reason for i, reason in self.block.bad.items()}
        all_of = sorted({**self.block.lost, **bad}.items())
        self._report.bad([(f'{label}, row {row}', *reason) for row, reason in all_of], of)

    def numbers(self, feature: Feature) -> list[np.ndarray]:
        """Returns the numbers of each column of a part, [N]."""
        rows, read = np.arange(len(self.block.rows)), table_values.numbers
        return [self.checked(feature, column, read(self.block.columns[column]), rows) for column in feature.columns]

    def times(self, column: str, latest: float) -> np.ndarray:
        """Returns times, [N], and NaN for those that are none, or later than the latest; marks these."""
        values, missing, wrong = table_values.times(self.block.columns[column])
        self.mark(missing | wrong, column, 'a time, as a number or by ISO 8601')
        late = values > latest
        self.mark(late, column, 'seconds since 1970 (no milliseconds), not after its file was written')
        return np.where(missing | wrong | late, np.nan, values)

    def flags(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns which rows are true, or 1, and which have nothing; marks those that are neither, nor false or 0."""
        values, missing, wrong = table_values.numbers(self.block.columns[column])
        self.mark(wrong | ~(missing | (values == 0) | (values == 1)), column, 'true or false')
        return values == 1, missing

    def checked(self, feature: Feature, column: str, found: Any, rows: np.ndarray) -> np.ndarray:
        """Returns numbers; marks the rows of those that are none."""
        values, missing, wrong = found
        need, large = 'a finite number', np.isfinite(values) & (np.abs(values) > LARGEST)
        self.mark(rows[large], column, f'a number of float32, at most {LARGEST:.2g}')
        wrong = wrong | large
        if feature.kind == 'integer':
            low, high = feature.bounds
            need, known = f'an integer from {low:g} to {high:g}', ~missing & ~wrong
            wrong = wrong | (known & ~((values >= low) & (values <= high) & (values == np.floor(values))))
            wrong |= np.abs(values) > table_values.EXACT
        self.mark(rows[wrong], column, need)
        if feature.missing is None:
            self.mark(rows[missing], column, f'{need}, or `missing` in the column map')
        elif self._report.found('missing', feature.name, int(np.count_nonzero(missing))):
            self.mark(rows[missing], column, 'a value that is not missing, by --refuse')
        least = feature.bounds[0] if feature.kind == 'integer' else 0.0
        return np.where(missing | wrong, least if feature.missing is None else feature.missing, values)
