"""What the names in a run's gin file stand for: imports modules, looks up functions, finds the nearest valid name."""

import dataclasses
import difflib
import functools
import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable, Iterable
from typing import Any

from tflearn import extras
from tflearn.config.reader import FLAG, Binding, Import
from tflearn.errors import UserImportError, UserValueError

# Imports a module by its name, or makes an outline of it.
Load = Callable[[str], types.ModuleType]


class UnknownNameError(Exception):
    """A name stands for nothing; the message is a half-sentence that says why."""


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
        """What can be bound, by name."""
        try:
            parameters = inspect.signature(self.function).parameters
        except ValueError:  # Some functions written in C tell nothing.
            return {'any': inspect.Parameter('any', inspect.Parameter.VAR_KEYWORD)}
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
        return {name: parameter for name, parameter in parameters.items() if parameter.kind not in positional}

    def takes(self, parameter: str) -> bool:
        anything = any(known.kind == inspect.Parameter.VAR_KEYWORD for known in self.parameters.values())
        return anything or parameter in self.parameters


def import_modules(imports: Iterable[Import], load: Load = importlib.import_module) -> None:
    """Imports what a run's gin files import.

    Args:
      imports: the statements.
      load: imports a module, or makes its outline.

    Raises:
      ValueError: if there is no such module.
      ImportError: if it needs a package that is not installed.
    """
    for statement in imports:
        try:
            load(statement.module)
        except ModuleNotFoundError as error:
            missing = error.name or ''
            if not f'{statement.module}.'.startswith(f'{missing}.'):
                raise UserImportError(
                    f'got the import of {statement.module} in {statement.place}, which needs the package {missing}; '
                    f'need it installed; {extras.install_command(missing) or "install it"}'
                ) from error
            raise UserValueError(
                f'got the import of {statement.module} in {statement.place}, but there is no module {missing}; need '
                f'one that exists: the nearest is {nearest(missing, _modules_near(missing, load))}'
            ) from error


def find(
    binding: Binding, selector: str, known: Iterable[Configurable], load: Load = importlib.import_module
) -> Configurable:
    """Looks up a name that `binding` uses.

    A file's names begin with a module that the same file imports. The command line's may begin with a module that any
    file of the run imports, may be the full path, and may leave out the module when one function of the run alone has
    that name.

    Args:
      binding: where the name is used.
      selector: the name, without scope and parameter.
      known: the functions and classes that the run is known to use.
      load: see `import_modules`.

    Raises:
      UnknownNameError: if there is none, or several.
    """
    if binding.place != FLAG:
        imports = [item for item in binding.imports if item.name == selector.partition('.')[0]]
        return _find_from(imports[-1:], selector, load)
    found = {item for item in known if f'.{item.full_name}'.endswith(f'.{selector}')}
    if not found:
        starting = {item for item in binding.imports if f'{selector}.'.startswith((f'{item.name}.', f'{item.symbol}.'))}
        found = {_find_from([item], selector, load) for item in starting}
    if len(found) > 1:
        names = ' and '.join(sorted(item.full_name for item in found))
        raise UnknownNameError(f'this may be {names} (write one of them in full)')
    return found.pop() if found else _find_from([], selector, load)


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Returns the candidate that is most like `name`."""
    return next(iter(difflib.get_close_matches(name, sorted(set(candidates)), 1, cutoff=0.0)), 'none')


def callables(imports: Iterable[Import], load: Load = importlib.import_module) -> list[str]:
    """The names of the public functions and classes that the imported modules define; `load`: see `import_modules`."""
    names = []
    for item in imports:
        module = load(item.symbol)
        for name, value in vars(module).items():
            if callable(value) and not name.startswith('_') and getattr(value, '__module__', '') == module.__name__:
                names.append(f'{item.name}.{name}')
    return names


def _find_from(imports: list[Import], selector: str, load: Load) -> Configurable:
    if not imports:
        raise UnknownNameError(f'no import provides {selector.partition(".")[0]!r}')
    (item,) = imports
    value: Any = load(item.symbol)
    module: types.ModuleType = value
    attributes: list[str] = []
    start = item.symbol if f'{selector}.'.startswith(f'{item.symbol}.') else item.name
    for part in [part for part in selector[len(start) :].split('.') if part]:
        try:
            value = getattr(value, part)
        except AttributeError as error:
            raise UnknownNameError(f'{".".join([module.__name__, *attributes])} has no {part!r}') from error
        if isinstance(value, types.ModuleType):
            module, attributes = value, []
        else:
            attributes.append(part)
    if not callable(value):
        raise UnknownNameError(f'{selector} is no function or class')
    return Configurable(value, module.__name__, '.'.join(attributes))


def _modules_near(missing: str, load: Load) -> list[str]:
    """The modules beside the one that is missing, and the one above it."""
    above = missing.rpartition('.')[0]
    if not above:
        return [module.name for module in pkgutil.iter_modules()]
    package = load(above)
    return [above, *(f'{above}.{module.name}' for module in pkgutil.iter_modules(getattr(package, '__path__', ())))]
