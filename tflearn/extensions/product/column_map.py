"""What each column of a log means: the file of `tflearn data import --columns`, in TOML. No TensorFlow here."""

import dataclasses
import pathlib
import tomllib
import types
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from tflearn.core.errors import UserError, UserOSError, UserValueError
from tflearn.core.settings import PositiveInt, Range, checked_dataclass
from tflearn.extensions.product import csv_rows, reward_parts, row_weights, tables
from tflearn.extensions.product.reward_parts import PARTS, PREFIX, WEIGHTS

_COLUMNS = ('reward', 'propensity', 'truncated', *row_weights.NAMES)  # numbers of a step
VERSIONS = ('version', 'propensity_version')  # that has served; of which the propensity is
ACTIVATED = 'activated'
HAS_OUTCOME = 'has_outcome'  # of a row whose reward is no default
_KEYS = ('episode', 'id', 'time', 'cluster', ACTIVATED, *VERSIONS)
_OUTCOMES = 'outcomes'
_SEPARATOR = 'separator'
ACTION = 'action'
PROBABILITY = 'probability'
# The columns of a server's decisions, whose outcomes come later.
DECISIONS: Mapping[str, Any] = {'id': 'id', 'time': 'time', 'propensity': PROBABILITY, _OUTCOMES: {}}
_OF_SERVERS = {'id', 'time', 'model', 'version', 'arm', ACTION}  # which each line of a server's log has
_INPUT = 'observation'  # with which the names of its inputs begin


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
      is_typed: whether texts and numbers mean different things, see `tables.Columns`.
    """

    features: tuple[Feature, ...]
    keys: Mapping[str, str]
    outcomes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    stated: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    separator: str | None = None
    parts: Mapping[str, Feature] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    optional: tuple[str, ...] = ()
    is_typed: bool = False

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
        texts = {each.columns[0] for each in self.features if each.kind not in ('number', 'integer')}
        numeric |= {self.keys[ACTIVATED]} if ACTIVATED in self.keys else set()
        names = [name for name in self.names if name not in self.optional]
        kinds = {each.columns[0]: self._is_text(each) for each in self.features} if self.is_typed else {}
        return tables.Columns(names, numeric, lists, texts - lists.keys(), self.optional, self.separator, kinds)

    def _is_text(self, feature: Feature) -> bool:
        action = self.feature(ACTION)
        of = action if action and feature.kind == 'mask' else feature
        return of.kind == 'category'

    @property
    def masks(self) -> list[str]:
        """The names of the parts that are lists of allowed actions."""
        return [each.name for each in self.features if each.kind == 'mask']

    def feature(self, name: str) -> Feature | None:
        """Returns the part of this name."""
        return next((each for each in self.features if each.name == name), None)

    def of_server(self) -> 'ColumnMap':
        """Returns the same map of a server's log, which has names of its own for what the product's files have.

        An observation is the policy's input of its name, and several columns are one with a list.

        Raises:
          ValueError: for vectors of named numbers, whose names the log does not have.
        """
        known = {'propensity': PROBABILITY, ACTION: ACTION, **dict.fromkeys(self.masks, 'mask')}
        features, columns = [], dict[str, str]()
        for each in self.features:
            name, column = each.name, each.columns[0]
            if each.kind == 'features':
                raise UserValueError(
                    f"got {name} with kind = 'features', and a server's log, which has the vector; need kind = "
                    "'number' with its length, in a map for servers' logs"
                )
            if name.startswith(f'{_INPUT}.') and not column.startswith(_INPUT):
                column = name.replace('.', '_')
            column = known.get(name, column)
            columns |= dict.fromkeys(each.columns, column)
            length = len(each.columns) if len(each.columns) > 1 else each.length
            features.append(dataclasses.replace(each, columns=(column,), length=length))
        # Its own id and time; of the others those that are inputs, too.
        keys = {name: columns.get(column, column) for name, column in self.keys.items() if name not in VERSIONS}
        keys |= {name: name for name in ('id', 'time') if name in keys} | {ACTIVATED: ACTIVATED}
        if keys.get('cluster') not in (None, 'arm', *columns.values()):
            keys['cluster'] = 'cluster'  # as the caller has named it
        return dataclasses.replace(self, features=tuple(features), keys=keys, optional=(ACTIVATED,), is_typed=True)


def are_of_server(names: Collection[str]) -> bool:
    """Returns whether these are the columns of a server's log of decisions."""
    return {*names} >= _OF_SERVERS and any(name.startswith(_INPUT) for name in names)


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
        raise UserOSError(f'got the column map {path}, which cannot be read ({error}); need a file in TOML') from error


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
    masks = found.masks
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
    if VERSIONS[1] in given and VERSIONS[0] not in given:
        raise UserValueError(f'got {VERSIONS[1]} alone; need {VERSIONS[0]}, the column of the version that has served')
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
