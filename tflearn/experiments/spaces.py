"""Spaces of hyperparameters: what a search may choose, and the gin statements of a choice.

A space is a TOML file with a line for each name of a gin binding: {low = 1e-5, high = 1e-2, log = true} is a range, of
integers if its ends are, and a list has the values themselves. Or it is a Python file with `suggest(trial)`, which asks
Optuna's trial and returns gin statements.
"""

import pathlib
import runpy
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from tflearn.config import files, reader
from tflearn.core.errors import UserValueError

# Gets Optuna's trial, returns gin statements.
Suggest = Callable[[Any], list[str]]

_KEYS = {'low', 'high', 'log', 'step'}


def folder() -> pathlib.Path:
    """Returns the folder of the packaged spaces, each of which is named as the gin file of its algorithm."""
    return files.folder() / 'spaces'


def resolve(space: str | None, gin_file: str) -> pathlib.Path:
    """Finds a space: by path, or by name among the packaged ones; by default that of the gin file's algorithm.

    Raises:
      ValueError: if there is none.
    """
    names = sorted(path.stem for path in folder().glob('*.toml'))
    if space is None:
        algorithms = [
            path.stem for path in reader.read(files.resolve(gin_file)).files if path.parent.name == 'algorithms'
        ]
        if not (found := [name for name in algorithms if name in names]):
            raise UserValueError(f'got no --space, and {gin_file} is of no packaged algorithm; need a space; write one')
        return folder() / f'{found[0]}.toml'
    path = pathlib.Path(space).expanduser()
    if path.is_file() and path.suffix in ('.toml', '.py'):
        return path.absolute()
    if space in names:
        return folder() / f'{space}.toml'
    raise UserValueError(f'got --space={space}; need a file that ends in .toml or .py, or one of {", ".join(names)}')


def read(path: pathlib.Path) -> Suggest:
    """Reads a space.

    Raises:
      ValueError: if it is none.
    """
    if path.suffix == '.py':
        suggest = runpy.run_path(str(path)).get('suggest')
        if not callable(suggest):
            raise UserValueError(f'got {path} without a function suggest(trial); need one that returns gin statements')
        return lambda trial: list(suggest(trial))
    try:
        space = tomllib.loads(path.read_text(encoding='utf-8'))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserValueError(
            f'got {path}, which is no TOML ({error}); need a name and its range on each line'
        ) from error
    for name, values in space.items():
        _check(path, name, values)
    return lambda trial: [f'{name} = {_suggest(trial, name, values)}' for name, values in space.items()]


def _suggest(trial: Any, name: str, values: Any) -> Any:
    """Returns what a trial chooses, as gin reads it."""
    if isinstance(values, list):  # as texts: Optuna stores no lists
        return trial.suggest_categorical(name, [_literal(value) for value in values])
    is_integer = isinstance(values['low'], int) and isinstance(values['high'], int)
    return (trial.suggest_int if is_integer else trial.suggest_float)(name, **values)


def _literal(value: Any) -> str:
    if isinstance(value, str) and value[:1] in ('@', '%'):  # a reference, a macro
        return value
    return repr(tuple(value) if isinstance(value, list) else value)


def _check(path: pathlib.Path, name: str, values: Any) -> None:
    if isinstance(values, list) and values:
        return
    if isinstance(values, Mapping) and {'low', 'high'} <= values.keys() <= _KEYS:
        ends = values['low'], values['high']
        if (
            all(type(end) in (int, float) for end in ends)
            and (0 if values.get('log') else -float('inf')) < ends[0] < ends[1]
        ):
            return
    raise UserValueError(
        f'got {name} = {values} in {path}; need {{low = 1e-5, high = 1e-2, log = true}} with low < high, and 0 < low '
        'with log, or a list of values'
    )
