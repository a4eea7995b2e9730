"""What each column of a log means: the file of `tflearn-data import --columns`, in TOML."""

import dataclasses
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from tflearn.core.errors import UserOSError, UserValueError
from tflearn.core.settings import PositiveInt, Range, checked_dataclass

_COLUMNS = ('reward', 'propensity', 'truncated')  # numbers of a step
_KEYS = ('episode', 'id', 'time')
ACTION = 'action'


@checked_dataclass(frozen=True)
class Feature:
    """A part of a step, and the columns that it is of.

    Attributes:
      name: such as 'observation.age' or 'action'.
      columns: the columns, several for a vector of numbers.
      kind: numbers; categories, each an index into a vocabulary; or a list of the actions that are allowed.
      length: the number of elements, if the column has lists; shorter ones are filled.
      missing: the number that takes the place of one that is missing; None makes such a row a bad one.
      values: the vocabulary; () takes all values of the data.
      low: the least number of an action.
      high: the greatest one.
    """

    name: str
    columns: tuple[str, ...]
    kind: Literal['number', 'category', 'mask'] = 'number'
    length: PositiveInt | None = None
    missing: Annotated[float, Range()] | None = None
    values: tuple[str, ...] = ()
    low: Annotated[float, Range()] = -1.0
    high: Annotated[float, Range()] = 1.0

    def __post_init__(self) -> None:
        if len(self.columns) != 1 and (self.kind != 'number' or self.length or not self.columns):
            raise UserValueError(
                f'got {self.name} of {len(self.columns)} columns; need one, or several of one number each'
            )
        if len(set(self.values)) < len(self.values):
            raise UserValueError(f'got {self.name} with a value twice in `values`; need each once')

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
    """

    features: tuple[Feature, ...]
    keys: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        return list(dict.fromkeys([*(name for each in self.features for name in each.columns), *self.keys.values()]))

    @property
    def numeric(self) -> set[str]:
        """Those that hold numbers."""
        return {name for each in self.features if each.kind == 'number' for name in each.columns}

    def feature(self, name: str) -> Feature | None:
        """Returns the part of this name."""
        return next((each for each in self.features if each.name == name), None)


def read(path: pathlib.Path) -> ColumnMap:
    """Reads the file; raises ValueError for another one, and OSError if it cannot be read."""
    try:
        return parse(tomllib.loads(path.read_text(encoding='utf-8')))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserOSError(f'got --columns={path}, which cannot be read ({error}); need a file in TOML') from error


def parse(given: Mapping[str, Any]) -> ColumnMap:
    """Returns the map of TOML's tables."""
    known = ('observation', ACTION, *_COLUMNS, *_KEYS)
    for name in given:
        if name not in known:
            raise UserValueError(f'got {name!r} among the columns; need one of {", ".join(known)}')
    observation = given.get('observation')
    if not isinstance(observation, dict) or not observation or ACTION not in given or 'reward' not in given:
        raise UserValueError(f'got the columns of {", ".join(given) or "nothing"}; need observation, action and reward')
    parts = {f'observation.{name}': value for name, value in observation.items()}
    parts |= {name: given[name] for name in (ACTION, *_COLUMNS) if name in given}
    keys = {name: given[name] for name in _KEYS if name in given}
    for name, value in keys.items():
        if not isinstance(value, str):
            raise UserValueError(f'got {name} = {value!r}; need the name of a column')
    found = ColumnMap(tuple(_feature(name, value) for name, value in parts.items()), keys)
    action = found.feature(ACTION)
    masks = [each.name for each in found.features if each.kind == 'mask']
    if action is None or action.kind == 'mask' or (masks and action.kind != 'category'):
        raise UserValueError(
            f'got an action of another kind, with the masks {masks}; need kind = "category" beside masks'
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
