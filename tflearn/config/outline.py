"""Outlines of modules: the names and parameters in their source, read without importing anything.

An outline stands in for its module where names are checked before TensorFlow, which most modules import, is loaded.
What the source does not show is taken to be right: what is decorated takes any argument, what is assigned may be
anything.
"""

import ast
import functools
import importlib.machinery
import inspect
import itertools
import pathlib
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

_ANYTHING = inspect.Signature([inspect.Parameter('anything', inspect.Parameter.VAR_KEYWORD)])
_PLAIN_TYPES = {'int': int, 'float': float, 'str': str, 'bool': bool}
_DEFAULT = object()  # Some default: its value is not looked at.
# What a module is given names by that its statements do not show.
_DYNAMIC = re.compile(rb'\b(globals|locals|vars|setattr|exec)\(|\b(sys\.modules|__dict__|__path__)\b')


class Stub:
    """Stands for a function or class of a module.

    Attributes:
      is_opaque: whether the source does not show what it is; it may be another name of something.
    """

    def __init__(self, module: str, name: str, signature: inspect.Signature = _ANYTHING, is_opaque: bool = False):
        self.__module__, self.__name__, self.__signature__ = module, name, signature
        self.is_opaque = is_opaque

    def __call__(self, **_: Any) -> None:
        """So that it is callable."""

    def __getattr__(self, name: str) -> 'Stub':
        if name.startswith('__'):
            raise AttributeError(name)
        return Stub(self.__module__, name, is_opaque=True)


class Outlines:
    """The outlines of the modules that were asked for."""

    def __init__(self) -> None:
        self._outlines: dict[str, types.ModuleType] = {}
        self._open: set[str] = set()  # Modules that may have more names than their source shows.

    def load(self, name: str) -> types.ModuleType:
        """Returns the outline of a module, as `importlib.import_module` returns the module.

        Raises:
          ModuleNotFoundError: if there is no such module, or it imports a package that is not there.
        """
        if name not in self._outlines:
            self._outlines[name] = self._read(name)
        return self._outlines[name]

    def _read(self, name: str) -> types.ModuleType:
        outline = types.ModuleType(name)
        vars(outline)['__getattr__'] = functools.partial(self._attribute, name, {})
        try:
            spec = _spec(name)
        except ModuleNotFoundError:
            if above := name.rpartition('.')[0]:
                self.load(above)
            if above not in self._open:
                raise
            self._open.add(name)
            return outline
        if spec.submodule_search_locations is not None:
            outline.__path__ = list(spec.submodule_search_locations)
        try:
            source = pathlib.Path(spec.origin).read_bytes() if spec.origin else b''  # a folder without __init__.py
            body = ast.parse(source).body
        except (OSError, SyntaxError, ValueError):  # No source, or one that the job will report.
            self._open.add(name)
            return outline
        is_package = spec.submodule_search_locations is not None
        imported = _imported_names(body, name if is_package else name.rpartition('.')[0])
        for package in {module.partition('.')[0] for module, _ in imported.values()} - sys.modules.keys():
            _spec(package)
        if imported.get('annotations') == ('__future__', 'annotations'):
            _make_annotations_text(body)
        assigned = set(_assigned_names(body))
        for attribute in assigned:
            if not attribute.startswith('__'):
                setattr(outline, attribute, Stub(name, attribute, is_opaque=True))
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                again = statement.name in vars(outline)
                signature = _ANYTHING if again else _signature(statement)
                setattr(outline, statement.name, Stub(name, statement.name, signature))
        shown = {*assigned, *imported, *vars(outline)}
        if '*' in shown or isinstance(vars(outline)['__getattr__'], Stub) or _DYNAMIC.search(source):
            self._open.add(name)
        vars(outline)['__getattr__'] = functools.partial(self._attribute, name, imported)
        return outline

    def _attribute(self, module: str, imported: Mapping[str, tuple[str, str]], name: str) -> Any:
        """Returns what a module has beside its own functions and classes: what it imports, and its submodules."""
        try:
            if name in imported and imported[name] != (module, name):  # A package may import modules of its own.
                origin, symbol = imported[name]
                return getattr(self.load(origin), symbol) if symbol else self.load(origin)
            _spec(f'{module}.{name}')
            return self.load(f'{module}.{name}')
        except (ModuleNotFoundError, AttributeError) as error:
            if name.startswith('__') or not (module in self._open or name in imported):
                raise AttributeError(f'module {module!r} has no attribute {name!r}') from error
            return Stub(module, name, is_opaque=True)


def _spec(name: str) -> importlib.machinery.ModuleSpec:
    """Finds a module as `import` does, without importing the packages it is in."""
    path: Any = None
    spec: Any = None
    parts = name.split('.')
    for end in range(1, len(parts) + 1):
        part = '.'.join(parts[:end])
        found = (finder.find_spec(part, path) for finder in sys.meta_path) if end == 1 or path is not None else ()
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None:
            raise ModuleNotFoundError(f'No module named {part!r}', name=part)
        path = spec.submodule_search_locations
    return spec


def _imported_names(body: list[ast.stmt], package: str) -> dict[str, tuple[str, str]]:
    """Returns what the module imports whatever happens: by its name here, the module and the name there, or ''."""
    names = {}
    for statement in body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                whole = alias.name if alias.asname else alias.name.partition('.')[0]
                names[alias.asname or whole] = (whole, '')
        elif isinstance(statement, ast.ImportFrom):
            module = statement.module or ''
            if statement.level:
                parts = package.split('.')
                module = '.'.join([*parts[: len(parts) - statement.level + 1], *([module] if module else [])])
            names.update({alias.asname or alias.name: (module, alias.name) for alias in statement.names})
    return names


def _assigned_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yields the names that come about otherwise than by one plain `def` or `class` of the module."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Import | ast.ImportFrom):
                yield from (alias.asname or alias.name.partition('.')[0] for alias in node.names)


def _make_annotations_text(body: list[ast.stmt]) -> None:
    """Does what `from __future__ import annotations` does: no annotation is a type, so no value is of another one."""
    for node in itertools.chain.from_iterable(map(ast.walk, body)):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            node.annotation = ast.Constant(ast.unparse(node.annotation))


def _signature(node: ast.FunctionDef | ast.ClassDef) -> inspect.Signature:
    decorators = [ast.unparse(decorator).partition('(')[0].rpartition('.')[2] for decorator in node.decorator_list]
    if isinstance(node, ast.FunctionDef):
        return _ANYTHING if decorators else _of_function(node.args)
    if node.bases or node.keywords or decorators not in ([], ['dataclass']):
        return _ANYTHING
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == '__init__' and not statement.decorator_list:
            return _of_function(statement.args, is_method=True)
    return _of_dataclass(node) if decorators else _ANYTHING


def _of_function(arguments: ast.arguments, is_method: bool = False) -> inspect.Signature:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[Any] = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    kinds: list[Any] = [inspect.Parameter.POSITIONAL_ONLY] * len(arguments.posonlyargs)
    kinds += [inspect.Parameter.POSITIONAL_OR_KEYWORD] * len(arguments.args)
    parameters = [_parameter(*parts) for parts in zip(positional, kinds, defaults, strict=True)][int(is_method) :]
    if arguments.vararg:
        parameters.append(_parameter(arguments.vararg, inspect.Parameter.VAR_POSITIONAL, None))
    parameters += [
        _parameter(argument, inspect.Parameter.KEYWORD_ONLY, default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        parameters.append(_parameter(arguments.kwarg, inspect.Parameter.VAR_KEYWORD, None))
    return inspect.Signature(parameters)


def _of_dataclass(node: ast.ClassDef) -> inspect.Signature:
    parameters = []
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if 'ClassVar' in ast.unparse(statement.annotation):
            continue
        argument = ast.arg(statement.target.id, statement.annotation)
        parameters.append(_parameter(argument, inspect.Parameter.KEYWORD_ONLY, statement.value))
    return inspect.Signature(parameters)


def _parameter(argument: ast.arg, kind: Any, default: ast.expr | None) -> inspect.Parameter:
    return inspect.Parameter(
        argument.arg,
        kind,
        default=inspect.Parameter.empty if default is None else _DEFAULT,
        annotation=_annotation(argument.annotation),
    )


def _annotation(node: ast.expr | None) -> Any:
    """Returns an annotation of plain types as it is, of others what stands for no type."""
    if isinstance(node, ast.Name) and node.id in _PLAIN_TYPES:
        return _PLAIN_TYPES[node.id]
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        left, right = _annotation(node.left), _annotation(node.right)
        if inspect.Parameter.empty not in (left, right) and not (left is right is None):
            return left | right
    return inspect.Parameter.empty
