"""Reads a run's gin file: its statements in order, those of included files in place,
each with its file and line.

Nothing is looked up or imported here; names.py does that.
"""

import dataclasses
import os
import pathlib
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gin import config_parser
from tflearn.config import files
from tflearn.core.errors import UserValueError

FLAG = '--gin_bindings'
_MOST_NESTED = 50  # brackets in brackets, modules in modules: Python's recursion has an end

# What gin's parser raises; TypeError: a list as a key; the last two: brackets in brackets in
# brackets, without end.
_NO_GIN = (SyntaxError, ValueError, TypeError, tokenize.TokenError, StopIteration, RecursionError, MemoryError)


@dataclasses.dataclass(eq=False)
class Reference:
    """`@scope/selector` or, evaluated, `@scope/selector()`.
    `target` is the function, once it is looked up.
    """

    scope: str
    selector: str
    evaluate: bool
    target: Any = None

    def __repr__(self) -> str:
        return f'@{join_scope(self.scope, self.selector)}{"()" if self.evaluate else ""}'


@dataclasses.dataclass(frozen=True)
class Macro:
    """`%name`."""

    name: str

    def __repr__(self) -> str:
        return f'%{self.name}'


@dataclasses.dataclass(frozen=True)
class Import:
    """An import statement: `name` is the module `symbol` after `module` is imported."""

    name: str
    module: str
    symbol: str
    place: str


@dataclasses.dataclass
class Binding:
    """`scope/selector.parameter = value`, or the definition of the macro `selector` when there is no parameter.

    Attributes:
      value: a Python value that may hold References and Macros.
      place: file and line, or FLAG.
      imports: the imports of its file; for FLAG, those of all files.
      target: the function whose parameter it binds, once it is looked up; None for a macro.
    """

    scope: str
    selector: str
    parameter: str
    value: Any
    place: str
    imports: Sequence[Import]
    target: Any = None

    @property
    def written(self) -> str:
        """The name as the user wrote it."""
        return join_scope(self.scope, f'{self.selector}.{self.parameter}' if self.parameter else self.selector)

    @property
    def owner(self) -> Any:
        """The function or, for a macro, its name."""
        return self.target or self.written


@dataclasses.dataclass
class Statements:
    """The statements of a run's files and flags."""

    bindings: list[Binding] = dataclasses.field(default_factory=list)
    imports: list[Import] = dataclasses.field(default_factory=list)
    files: dict[pathlib.Path, str] = dataclasses.field(default_factory=dict)  # what was read


def read(gin_file: pathlib.Path | None, flag_bindings: Sequence[str] = ()) -> Statements:
    """Reads a gin file, all that it includes, and the bindings of the command line,
    which come last.

    Args:
      flag_bindings: gin statements that may use the imports of any file.

    Raises:
      ValueError: if a file is missing or is not gin; the message names file and line.
    """
    statements = Statements()
    if gin_file:
        _read_file(gin_file, statements, ())
    for text in flag_bindings:
        _read_text(text, None, statements, (), statements.imports)
    return statements


def join_scope(scope: str, name: str) -> str:
    return f'{scope}/{name}' if scope else name


def import_text(module: str, name: str) -> str:
    """Returns the statement that imports a module as `name`."""
    package, _, last = module.rpartition('.')
    text = f'from {package} import {last}' if package else f'import {last}'
    return text if name == last else f'{text} as {name}'


def leaves(value: Any) -> Iterator[Reference | Macro]:
    """Yields the references and macros in a value, however deep."""
    if isinstance(value, Reference | Macro):
        yield value
    else:
        for item in _items(value):
            yield from leaves(item)


def macros(bindings: Iterable[Binding]) -> dict[str, Any]:
    """Returns what the macros among bindings stand for, by name."""
    return {each.written: each.value for each in bindings if not each.parameter}


def resolved(value: Any, defined: Mapping[str, Any]) -> Any:
    """Returns a value in which macros, however deep,
    are replaced by what they stand for (see `macros`).
    """
    if isinstance(value, Macro) and value.name in defined:
        others = {name: each for name, each in defined.items() if name != value.name}
        return resolved(defined[value.name], others)
    if isinstance(value, list | tuple):
        return type(value)(resolved(each, defined) for each in value)
    if isinstance(value, dict):
        return {resolved(key, defined): resolved(each, defined) for key, each in value.items()}
    return value


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list | tuple) else ()


def _is_nested(value: Any, levels: int) -> bool:
    """Returns whether a value has more than so many levels of brackets."""
    return isinstance(value, dict | list | tuple) and (
        levels == 0 or any(_is_nested(item, levels - 1) for item in _items(value))
    )


class _Delegate(config_parser.ParserDelegate):
    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        scope, _, selector = scoped_configurable_name.rpartition('/')
        return Reference(scope, selector, evaluate)

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


def _read_file(path: pathlib.Path, statements: Statements, including: tuple[pathlib.Path, ...]) -> None:
    # Pathlib's own raises for links that go round in a circle.
    real = pathlib.Path(os.path.realpath(path))
    if real in including:
        raise UserValueError(f'got {path}, which includes itself through {including[-1]}; remove one of the includes')
    try:
        text = path.read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise UserValueError(f'got the gin file {path}, which cannot be read ({error}); need a text file') from error
    statements.files[path] = text
    _read_text(text, path, statements, (*including, real), [])


def _read_text(
    text: str,
    path: pathlib.Path | None,
    statements: Statements,
    including: tuple[pathlib.Path, ...],
    imports: list[Import],
) -> None:
    """Appends the statements of `text` to `statements`;
    `imports` are those that its names may refer to.
    """
    for statement in _parsed(text, path):
        place = f'{path}:{statement.location.line_num}' if path else FLAG
        if isinstance(statement, config_parser.BindingStatement):
            scope, selector, parameter, value, _ = statement
            if _is_nested(value, _MOST_NESTED):
                name = join_scope(scope, f'{selector}.{parameter}')
                raise UserValueError(f'got {name} in {place}, of many brackets; need at most {_MOST_NESTED} levels')
            statements.bindings.append(Binding(scope, selector, parameter, value, place, imports))
        elif isinstance(statement, config_parser.IncludeStatement):
            _read_file(_included(statement.filename, path, place), statements, including)
        elif isinstance(statement, config_parser.ImportStatement) and not statement.module.startswith('__gin__.'):
            module = statement.module
            if module.count('.') > _MOST_NESTED:
                raise UserValueError(f'got the import of {module:.60}... in {place}; need a module that exists')
            renamed = statement.is_from or statement.alias
            symbol = module if renamed else module.partition('.')[0]
            imports.append(Import(statement.bound_name(), module, symbol, place))
            if imports is not statements.imports:
                statements.imports.append(imports[-1])


def _parsed(text: str, path: pathlib.Path | None) -> Iterator[Any]:
    """Yields gin's statements. Raises ValueError if `text` is not gin."""
    try:
        parser = config_parser.ConfigParser(text, _Delegate())
        while statement := parser.parse_statement():
            yield statement
    except _NO_GIN as error:
        lines = text.rstrip().splitlines() or ['']
        number = min(getattr(error, 'lineno', None) or len(lines), len(lines))
        message = (str((error.args or ['it ends too early'])[0]).splitlines() or [''])[-1].strip().rstrip('.')
        raise UserValueError(
            f'got {lines[number - 1].strip()!r} in {f"{path}:{number}" if path else FLAG}, which is no gin statement '
            f'({message}); need one like module.function.parameter = value, with text values in quotes'
        ) from error


def _included(name: str, path: pathlib.Path | None, place: str) -> pathlib.Path:
    """Returns the included file: next to the file that includes it, or found as a run's file is."""
    if path and os.path.isfile(path.parent / name):
        return path.parent / name
    try:
        return files.resolve(name)
    except ValueError as error:
        raise UserValueError(f'{error} (it is included in {place})') from error
