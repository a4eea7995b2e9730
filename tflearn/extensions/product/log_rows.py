"""The rows of a log as numbers: each block of a table becomes rows of one NumPy dtype; what is wrong is counted."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs
from tflearn.extensions.product import reward_parts, row_weights, table_values, tables
from tflearn.extensions.product.block_checks import ROWS_OF_A_FILE, BlockChecks
from tflearn.extensions.product.column_map import ACTION, ACTIVATED, HAS_OUTCOME, VERSIONS, ColumnMap, Feature
from tflearn.extensions.product.log_report import Report
from tflearn.extensions.product.reward_parts import LARGEST, PREFIX

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
            fields += [('reward', 'f4'), (HAS_OUTCOME, '?')]
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
        if column := self._map.keys.get(VERSIONS[1]):
            served, of_propensity = (table_values.hashes(block.columns[self._map.keys[name]])[0] for name in VERSIONS)
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

    def _part(self, one: BlockChecks, feature: Feature) -> np.ndarray:
        """Returns the values of a part, [N, ...]."""
        if feature.kind in ('number', 'integer') and not feature.length:
            values = one.numbers(feature)
            return np.stack(values, axis=-1, dtype=np.float32, casting='unsafe') if len(values) > 1 else values[0]
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

    def _named(self, one: BlockChecks, feature: Feature, array: Any) -> np.ndarray:
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

    def _categories(self, one: BlockChecks, feature: Feature, array: Any, rows: np.ndarray) -> np.ndarray:
        """Returns the index of each value; an observation's begin with 1, and those not in the vocabulary are 0."""
        found, missing = table_values.indices(array, self._vocabularies[feature.name])
        if feature.name == ACTION:
            one.mark(rows[found < 0], feature.columns[0], 'an action of the vocabulary')
            return np.maximum(found, 0)
        one.mark(
            rows[table_values.are_inexact(array, missing)], feature.columns[0], 'a float below 2^53, or an integer'
        )
        for kind, which in (('missing', missing), ('unknown', (found < 0) & ~missing)):
            if self._report.found(kind, feature.name, int(np.count_nonzero(which))):
                one.mark(rows[which], feature.columns[0], f'a value that is not {kind}, by --refuse')
        return found + 1

    def _check(self, one: BlockChecks, rows: np.ndarray) -> None:
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
