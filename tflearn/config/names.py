"""Looks up the names in a run's gin file: modules, functions, and the nearest valid name."""

import dataclasses
import difflib
import functools
import importlib
import inspect
import pathlib
import pkgutil
import re
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tflearn.config.reader import FLAG, Import, Reference, Statements, import_text, leaves
from tflearn.core import extras
from tflearn.core.errors import UserImportError, UserValueError

_SOURCES = pathlib.Path(__file__).resolve().parents[1]


class UnknownNameError(Exception):
    """A name does not exist; the message is a half-sentence that gives the reason."""


@dataclasses.dataclass(frozen=True)
class Configurable:
    """A function or class whose arguments gin files bind.

    Attributes:
      function: the function or class; two names of one function are the same Configurable.
      module: the module it is looked up in.
      attribute: its name there.
    """

    function: Callable[..., Any]
    module: str = dataclasses.field(compare=False)
    attribute: str = dataclasses.field(compare=False)

    @property
    def name(self) -> str:
        """As gin files write it: module.function."""
        return f'{self.module.rpartition(".")[2]}.{self.attribute}'

    @property
    def full_name(self) -> str:
        return f'{self.module}.{self.attribute}'

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters that can be bound, by name."""
        try:
            parameters = inspect.signature(self.function).parameters
        except ValueError:  # Some functions written in C have no signature.
            return {'any': inspect.Parameter('any', inspect.Parameter.VAR_KEYWORD)}
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
        return {name: parameter for name, parameter in parameters.items() if parameter.kind not in positional}

    def takes(self, parameter: str) -> bool:
        anything = any(known.kind == inspect.Parameter.VAR_KEYWORD for known in self.parameters.values())
        return anything or parameter in self.parameters


def import_modules(imports: Iterable[Import]) -> None:
    """Imports what a run's gin files import.

    Raises:
      ValueError: if there is no such module.
      ImportError: if it needs a package that is not installed.
    """
    for statement in imports:
        try:
            importlib.import_module(statement.module)
        except ModuleNotFoundError as error:
            missing = error.name or ''
            if not f'{statement.module}.'.startswith(f'{missing}.'):
                raise UserImportError(
                    f'got the import of {statement.module} in {statement.place}, which needs the package {missing}; '
                    f'need it installed; {extras.install_command(missing) or "install it"}'
                ) from error
            raise UserValueError(
                f'got the import of {statement.module} in {statement.place}, but there is no module {missing}; need '
                f'one that exists: the nearest is {nearest(missing, _modules_near(missing))}'
            ) from error


def resolve(statements: Statements, jobs: Iterable[Configurable]) -> list[tuple[str, str, str]]:
    """Looks up every name in `statements` and sets the targets of bindings and references.

    Returns:
      The names that do not exist: as they were written, with their place and a half-sentence that
      gives the reason.
    """
    known = set(jobs)
    mistakes = []
    for binding in statements.bindings:
        uses: list[Any] = [binding] if binding.parameter else []
        uses += [leaf for leaf in leaves(binding.value) if isinstance(leaf, Reference)]
        for use in uses:
            try:
                first = use.selector.partition('.')[0]
                if binding.place == FLAG:
                    use.target = _find_from_anywhere(use.selector, binding.imports, known)
                else:
                    mine = [item for item in binding.imports if item.name == first]
                    use.target = _find(mine[-1], use.selector) if mine else None
                if use.target is None:
                    parameter = binding.parameter if use is binding else ''
                    advice = _provider(first, parameter, binding.imports, statements.imports, binding.place == FLAG)
                    raise UnknownNameError(f'no import provides {first!r}{advice}')
                known.add(use.target)
            except UnknownNameError as error:
                mistakes.append((use.written if use is binding else repr(use), binding.place, str(error)))
    return mistakes


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Returns the candidate that is most like `name`: one of those that end with the same parameter, if any does."""
    candidates = list(candidates)
    candidates = [each for each in candidates if each.rpartition('.')[2] == name.rpartition('.')[2]] or candidates
    return next(iter(difflib.get_close_matches(name, sorted(set(candidates)), 1, cutoff=0.0)), 'none')


def callables(imports: Iterable[Import]) -> list[str]:
    """Returns the names of the public functions and classes that the imported modules define."""
    names = []
    for item in imports:
        module = importlib.import_module(item.symbol)
        for name, value in vars(module).items():
            if callable(value) and not name.startswith('_') and getattr(value, '__module__', '') == module.__name__:
                names.append(f'{item.name}.{name}')
    return names


def _find_from_anywhere(selector: str, imports: Iterable[Import], known: Iterable[Configurable]) -> Configurable | None:
    """Looks up a name on the command line.

    It may begin with a module that any file of the run imports, may be the full path, and may leave
    out the module when one function of the run alone has that name.
    """
    found = {item for item in known if f'.{item.full_name}'.endswith(f'.{selector}')}
    if not found:
        starting = {item for item in imports if f'{selector}.'.startswith((f'{item.name}.', f'{item.symbol}.'))}
        found = {_find(item, selector) for item in starting}
    if len(found) > 1:
        names = ' and '.join(sorted(item.full_name for item in found))
        raise UnknownNameError(f'this may be {names} (write one of them in full)')
    return found.pop() if found else None


def _find(item: Import, selector: str) -> Configurable:
    """Looks up a name that begins with an import."""
    start = item.symbol if f'{selector}.'.startswith(f'{item.symbol}.') else item.name
    value: Any = importlib.import_module(item.symbol)
    module: types.ModuleType = value
    attributes: list[str] = []
    for part in filter(None, selector[len(start) :].split('.')):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            raise UnknownNameError(f'{".".join([module.__name__, *attributes])} has no {part!r}') from error
        attributes.append(part)
        if isinstance(value, types.ModuleType):
            module, attributes = value, []
    if not callable(value):
        raise UnknownNameError(f'{selector} is no function or class')
    return Configurable(value, module.__name__, '.'.join(attributes))


def _provider(first: str, parameter: str, mine: Iterable[Import], imports: Sequence[Import], is_flag: bool) -> str:
    """Returns what would provide the first part of a name, in brackets; '' if nothing does.

    Args:
      parameter: what is bound of it; '' if it is a value.
      mine: the imports that the place of the name has.
      imports: those of all files of the run.
    """

    def line(module: str, name: str) -> str:
        text = import_text(module, name)
        return f"--gin_bindings='{text}'" if is_flag else f'the line {text}'

    if elsewhere := [item for item in imports if item.name == first]:
        return f' (add {line(elsewhere[0].symbol, first)})'
    if written := [f'{item.name}.{first}' for item in mine if _has(item.symbol, first)]:
        found = _find_from_anywhere(written[0], mine, ())
        return f' (write {written[0]})' if not parameter or (found and found.takes(parameter)) else ''
    if modules := [path for path in _SOURCES.rglob(f'{first}.py') if path.parent != _SOURCES]:
        return f' (add {line(_module(modules[0]), first)})'
    definition = re.compile(rf'^(class|def) {first}\b', re.MULTILINE)
    for path in sorted(_SOURCES.rglob('*.py')):
        if definition.search(path.read_text(encoding='utf-8')):
            return f' (add {line(_module(path), path.stem)} and write {path.stem}.{first})'
    return ''


def _has(module: str, name: str) -> bool:
    try:
        return callable(getattr(importlib.import_module(module), name))
    except (AttributeError, ImportError):
        return False


def _module(path: pathlib.Path) -> str:
    return '.'.join(path.relative_to(_SOURCES.parent).with_suffix('').parts)


def _modules_near(missing: str) -> list[str]:
    """Returns the modules beside the one that is missing, and the one above it."""
    above = missing.rpartition('.')[0]
    if not above:
        return [module.name for module in pkgutil.iter_modules()]
    paths = getattr(importlib.import_module(above), '__path__', ())
    return [above, *(f'{above}.{module.name}' for module in pkgutil.iter_modules(paths))]
