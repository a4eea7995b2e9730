"""Checks a run's configuration before its jobs start, without TensorFlow: by outlines of modules.

An outline has the names and parameters that are in a module's source, read without importing anything. What the source
does not show raises `UnclearNameError`; functions that are decorated take any argument. The jobs check all of it
again, and what cannot be checked here."""

import ast
import collections
import contextlib
import functools
import importlib.machinery
import inspect
import itertools
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tflearn.config import checks
from tflearn.config.names import Configurable, Load, UnclearNameError
from tflearn.config.reader import Binding, Macro, Reference
from tflearn.core import settings

_ANYTHING = inspect.Signature([inspect.Parameter('anything', inspect.Parameter.VAR_KEYWORD)])
_PLAIN_TYPES = (int, float, str, bool)
_TYPING = ('typing', 'collections.abc', settings.__name__)  # what types and ranges are written with
# Code that may give a module names that are not in its source.
_DYNAMIC = re.compile(
    r'\b(globals|locals|setattr|exec)\(|\bvars\(\)|\b(sys\.modules|__dict__|__getattr__|__path__)\b|\bimport \*'
)


def outlines() -> Load:
    """Returns a function that returns the outline of a module, as `importlib.import_module` returns the module.

    It raises ModuleNotFoundError if there is no such module, or it imports a package that is not there;
    UnclearNameError if the package it would be in may make it.
    """

    @functools.cache
    def load(name: str) -> types.ModuleType:
        try:
            spec = _spec(name)
        except ModuleNotFoundError:
            above, _, last = name.rpartition('.')
            if above:
                getattr(load(above), last, None)  # Raises UnclearNameError where the package may make it.
            raise
        return _Outline(name, spec, load)

    return load


class _Outline(types.ModuleType):
    """The names of one module. Its own attributes are dunder names, which no function of a module has."""

    def __init__(self, name: str, spec: importlib.machinery.ModuleSpec, load: Load):
        super().__init__(name)
        self.__load__, self.__source__ = load, ''
        if spec.submodule_search_locations is not None:
            self.__path__ = list(spec.submodule_search_locations)
        try:
            self.__source__ = pathlib.Path(spec.origin).read_text(encoding='utf-8') if spec.origin else ''
            body = ast.parse(self.__source__).body
        except (OSError, SyntaxError, ValueError):  # No source, or an error that the job will report.
            self.__source__, body = 'import *', []
        imported = _imported_names(body, name if hasattr(self, '__path__') else name.rpartition('.')[0])
        self.__imported__ = imported
        for package in {module.partition('.')[0] for module, _ in imported.values()} - sys.modules.keys():
            _spec(package)
        has_types = imported.get('annotations') != ('__future__', 'annotations')
        self.__types__ = _Types(self, body if has_types else [])
        times = self.__bound__ = collections.Counter(_bound_names(body))
        for node in body:
            # A `__getattr__` of the module would be called for its names.
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith('__'):
                signature = _signature(node, self.__types__) if times[node.name] == 1 else _ANYTHING
                setattr(self, node.name, _Stub(name, node.name, signature))

    def __getattr__(self, name: str) -> Any:
        """Returns what a module has besides its own functions and classes: what it imports, and its submodules."""
        if not name.startswith('__'):
            module = self.__name__
            try:
                if self.__imported__.get(name, (module, name)) != (module, name):
                    source, symbol = self.__imported__[name]
                    origin = self.__load__(source)
                    return getattr(origin, symbol) if symbol else origin
                _spec(f'{module}.{name}')
                return self.__load__(f'{module}.{name}')
            except (ModuleNotFoundError, AttributeError):
                if name in self.__bound__ or _may_make(self, name):
                    raise UnclearNameError(f'{module}.{name}') from None
        raise AttributeError(f'module {self.__name__!r} has no attribute {name!r}')


class _Types(dict[str, Any]):
    """The types and ranges that a module's names stand for, as far as they are known without an import of it."""

    def __init__(self, outline: _Outline, body: list[ast.stmt]):
        super().__init__({kind.__name__: kind for kind in _PLAIN_TYPES if body})
        self._outline = outline
        self._own = {
            node.targets[0].id: node.value
            for node in body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }

    def __missing__(self, name: str) -> Any:
        module, symbol = self._outline.__imported__.get(name, ('', ''))
        if module in _TYPING and symbol:
            return getattr(importlib.import_module(module), symbol)
        if symbol and _is_own(module):
            return self._outline.__load__(module).__types__[symbol]
        if (found := self.value(self._own.pop(name))) is None:  # KeyError for a name of something else
            raise KeyError(name)
        self[name] = found
        return found

    def value(self, annotation: ast.expr) -> Any:
        """Returns what an annotation stands for, or None."""
        if isinstance(annotation, ast.Name | ast.Subscript | ast.BinOp | ast.Constant):
            with contextlib.suppress(NameError, TypeError, AttributeError, ModuleNotFoundError):
                return eval(ast.unparse(_WithoutArguments().visit(annotation)), {'__builtins__': {}}, self)
        return None


class _WithoutArguments(ast.NodeTransformer):
    """Leaves out what functions take and return, whose types are often those of libraries."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Called by the base class."""
        return node.value if ast.unparse(node.value) == 'Callable' else self.generic_visit(node)


def _is_own(module: str) -> bool:
    return module.partition('.')[0] == __name__.partition('.')[0]


def _may_make(outline: _Outline, name: str) -> bool:
    """Returns whether code of the module may give it such a name. Our own code makes only names that it writes."""
    is_dynamic = _DYNAMIC.search(outline.__source__) is not None
    return is_dynamic and (not _is_own(outline.__name__) or repr(name) in outline.__source__)


class _Stub:
    """A stand-in for a function or class of a module."""

    def __init__(self, module: str, name: str, signature: inspect.Signature):
        self.__module__, self.__name__, self.__signature__ = module, name, signature

    def __call__(self, **_: Any) -> None:
        """Makes it callable."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith('__') else UnclearNameError(name)


def _spec(name: str) -> importlib.machinery.ModuleSpec:
    """Finds a module as `import` does, without importing its packages."""
    path: Any = None
    spec: Any = None
    for part in itertools.accumulate(name.split('.'), '{}.{}'.format):
        try:
            spec = next(filter(None, (finder.find_spec(part, path) for finder in sys.meta_path)), None)
        except KeyError:  # a folder without __init__.py in another one, which is not imported
            spec = importlib.machinery.ModuleSpec(part, None, is_package=True)
            last = part.rpartition('.')[2]
            spec.submodule_search_locations = [str(pathlib.Path(folder, last)) for folder in path]
        if spec is None:
            raise ModuleNotFoundError(f'No module named {part!r}', name=part)
        path = spec.submodule_search_locations or []
    return spec


def _imported_names(body: list[ast.stmt], package: str) -> dict[str, tuple[str, str]]:
    """Returns what the top level of a module imports: by its name here, the module and the name there, or ''."""
    names = {}
    for statement in body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                module = alias.name if alias.asname else alias.name.partition('.')[0]
                names[alias.asname or module] = (module, '')
        elif isinstance(statement, ast.ImportFrom):
            parts = package.split('.')[: 1 - statement.level or None] if statement.level else []
            module = '.'.join([*parts, *filter(None, [statement.module])])
            names.update({alias.asname or alias.name: (module, alias.name) for alias in statement.names})
    return names


def _bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yields the names that the module binds, but for imports at its top level, one as often as it is bound."""
    for statement in body:
        definition = isinstance(statement, ast.FunctionDef | ast.ClassDef)
        is_import = isinstance(statement, ast.Import | ast.ImportFrom)
        for node in [statement] if definition else ast.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.alias) and not is_import:  # in `if` or `try`
                yield node.asname or node.name.partition('.')[0]


def _signature(node: ast.FunctionDef | ast.ClassDef, known: _Types) -> inspect.Signature:
    """Returns the signature of a function, a class with an `__init__`, or a dataclass; else one that takes anything."""
    decorators = {ast.unparse(decorator).partition('(')[0].rpartition('.')[2] for decorator in node.decorator_list}
    if isinstance(node, ast.FunctionDef):
        return _ANYTHING if decorators - {'checked'} else _of_arguments(node.args, known)
    if node.bases or node.keywords or decorators - {'dataclass', 'checked_dataclass'}:
        return _ANYTHING
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == '__init__':
            del statement.args.args[:1]  # self
            return _of_arguments(statement.args, known)
    if not decorators:
        return _ANYTHING
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and 'ClassVar' not in ast.unparse(item)]
    names = [ast.arg(ast.unparse(field.target), field.annotation) for field in fields]
    defaults = [field.value for field in fields]
    arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=names, kw_defaults=defaults, defaults=[])
    return _of_arguments(arguments, known)


def _of_arguments(arguments: ast.arguments, known: _Types) -> inspect.Signature:
    """Returns the signature of a function with these arguments: defaults are `...`, other types are left out."""
    kinds = {}
    for node in ast.walk(arguments):
        if isinstance(node, ast.arg) and node.annotation:
            kinds[node.arg], node.annotation = known.value(node.annotation), None
    arguments.defaults = [ast.Constant(...) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(...) for default in arguments.kw_defaults]
    namespace: dict[str, Any] = {}
    exec(f'def function({ast.unparse(arguments)}): pass', namespace)  # only names of the module
    plain = inspect.signature(namespace['function'])
    return plain.replace(
        parameters=[each.replace(annotation=kinds.get(each.name) or each.empty) for each in plain.parameters.values()]
    )


def check(
    gin_file: pathlib.Path,
    flag_bindings: Sequence[str],
    jobs: Iterable[str],
    check_factory: Callable[[str, Mapping[str, Any]], None] = lambda *_: None,
) -> list[Binding] | None:
    """Checks names, required values and required packages; returns what `effective` returns.

    Args:
      jobs: the modules of the run's jobs, each of which has a function of its name.
      check_factory: checks a function that the run uses, by its full name and the values bound to its arguments; a
        value is None if only gin can evaluate it, or if a module of the run may register more names.

    Raises:
      ValueError: what `job_config.configure` raises; or what `check_factory` raises.
      ImportError: if a module that the files import needs a package that is not installed.
    """
    load = outlines()
    functions = [_function(job, load) for job in jobs]
    with contextlib.suppress(UnclearNameError):  # The jobs will check it.
        statements, roots = checks.read_run(gin_file, flag_bindings, functions[0], load)
        final = checks.final(statements.bindings, roots)
        for function in functions:
            checks.check_required(function, checks.GIVEN_BY_PROGRAMS, final, gin_file)
        registers = any(item.module.partition('.')[0] != 'tflearn' for item in statements.imports)
        for item in checks.reach(final, roots):
            if isinstance(item, Configurable):
                values = {bound.parameter: _plain_value(bound) for bound in final if bound.target == item}
                check_factory(item.full_name, {**values, 'name': None} if registers else values)
        return final
    return None


def effective(gin_file: pathlib.Path, flag_bindings: Sequence[str], job: str) -> list[Binding] | None:
    """Returns the effective bindings of a run, see `checks.final`.

    Args:
      job: the full name of the module of one of the run's jobs.

    Returns:
      None if only an import of its modules shows whether its names exist.

    Raises:
      ValueError, ImportError: see `check`.
    """
    load = outlines()
    with contextlib.suppress(UnclearNameError):
        statements, roots = checks.read_run(gin_file, flag_bindings, _function(job, load), load)
        return checks.final(statements.bindings, roots)
    return None


def _function(job: str, load: Load) -> Configurable:
    """Returns the function of a job's module, which has its name."""
    name = job.rpartition('.')[2]
    return Configurable(getattr(load(job), name), job, name)


def _plain_value(binding: Binding) -> Any:
    """Returns the value of a binding if it is the same in all scopes and gin need not evaluate it."""
    return None if binding.scope or isinstance(binding.value, Macro | Reference) else binding.value
