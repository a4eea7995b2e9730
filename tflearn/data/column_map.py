"""What each column of a log means: the file of `tflearn-data import --columns`, in TOML."""

import dataclasses
import pathlib
import tomllib
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from tflearn.core.errors import UserOSError, UserValueError
from tflearn.core.settings import PositiveInt, Range, checked_dataclass

_COLUMNS = ('reward', 'propensity', 'truncated')  # numbers of a step
_KEYS = ('episode', 'id', 'time')
_OUTCOMES = 'outcomes'
ACTION = 'action'


@checked_dataclass(frozen=True)
class Feature:
    """A part of a step, and the columns that it is of.

    Attributes:
      name: such as 'observation.age' or 'action'.
      columns: the columns, several for a vector of numbers.
      kind: numbers; integers from `low` to `high`; categories, each an index into a vocabulary; or a list of the
        actions that are allowed.
      length: the number of elements, if the column has lists; shorter ones are filled.
      missing: the number that takes the place of one that is missing; None makes such a row a bad one.
      values: the vocabulary; () takes all values of the data.
      low: the least integer, 0 by default, or the least number of an action, -1 by default.
      high: the greatest one; 1 by default for numbers.
    """

    name: str
    columns: tuple[str, ...]
    kind: Literal['number', 'integer', 'category', 'mask'] = 'number'
    length: PositiveInt | None = None
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
        if len(set(self.values)) < len(self.values):
            raise UserValueError(f'got {self.name} with a value twice in `values`; need each once')

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number, of integers and actions."""
        low = self.low if self.low is not None else 0 if self.kind == 'integer' else -1
        return low, 1 if self.high is None else self.high

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its tensor, of all kinds but a mask."""
        return (self.length,) if self.length else (len(self.columns),) if len(self.columns) > 1 else ()


@dataclasses.dataclass(frozen=True)
class ColumnMap:
    """What each column of a log means.

    Attributes:
      features: the observation's, then the action, then those of `_COLUMNS` that are there.
      keys: the columns of the episode, the row's id and the time, by these names; those that are there.
      outcomes: the columns of outcomes that come in other files, see `OutcomeOptions`.
    """

    features: tuple[Feature, ...]
    keys: Mapping[str, str]
    outcomes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        return list(dict.fromkeys([*(name for each in self.features for name in each.columns), *self.keys.values()]))

    @property
    def numeric(self) -> set[str]:
        """Those that hold numbers."""
        return {name for each in self.features if each.kind in ('number', 'integer') for name in each.columns}

    def feature(self, name: str) -> Feature | None:
        """Returns the part of this name."""
        return next((each for each in self.features if each.name == name), None)


def read(path: pathlib.Path, given: Mapping[str, Any] = types.MappingProxyType({})) -> ColumnMap:
    """Reads the file; raises ValueError for another one, and OSError if it cannot be read.

    Args:
      given: what holds unless the file has it.
    """
    try:
        return parse({**given, **tomllib.loads(path.read_text(encoding='utf-8'))})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserOSError(f'got --columns={path}, which cannot be read ({error}); need a file in TOML') from error


def parse(given: Mapping[str, Any]) -> ColumnMap:
    """Returns the map of TOML's tables."""
    known = ('observation', ACTION, *_COLUMNS, *_KEYS, _OUTCOMES)
    for name in given:
        if name not in known:
            raise UserValueError(f'got {name!r} among the columns; need one of {", ".join(known)}')
    observation = given.get('observation')
    is_complete = ACTION in given and ('reward' in given or _OUTCOMES in given)
    if not isinstance(observation, dict) or not observation or not is_complete:
        raise UserValueError(f'got the columns of {", ".join(given) or "nothing"}; need observation, action and reward')
    parts = {f'observation.{name}': value for name, value in observation.items()}
    parts |= {name: given[name] for name in (ACTION, *_COLUMNS) if name in given}
    keys = {name: given[name] for name in _KEYS if name in given}
    for name, value in keys.items():
        if not isinstance(value, str):
            raise UserValueError(f'got {name} = {value!r}; need the name of a column')
    found = ColumnMap(tuple(_feature(name, value) for name, value in parts.items()), keys, given.get(_OUTCOMES, {}))
    action = found.feature(ACTION)
    masks = [each.name for each in found.features if each.kind == 'mask']
    if action is None or action.kind == 'mask' or (masks and action.kind == 'number'):
        raise UserValueError(
            f'got an action of another kind, with the masks {masks}; need a category or an integer beside masks'
        )
    return found


def _feature(name: str, value: Any) -> Feature:
    given = {'column': value} if isinstance(value, str) else value
    keys = ('column', *(field.name for field in dataclasses.fields(Feature) if field.name != 'name'))
    if not isinstance(given, dict) or not set(given) <= set(keys):
        raise UserValueError(f'got {name} = {value!r}; need a column, or a table of {", ".join(keys)}')
    rest = {key: value for key, value in given.items() if key not in ('column', 'columns', 'values')}
    columns = given.get('columns', [given.get('column', name.rpartition('.')[2])])
    try:
        return Feature(name, tuple(map(str, columns)), values=tuple(map(str, given.get('values', ()))), **rest)
    except UserValueError as error:
        raise UserValueError(f'got {name} wrong: {error}') from error
