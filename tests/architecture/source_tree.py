"""The Python files of the checkout as syntax trees: what each of them refers to, and where."""

import ast
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence

FOLDERS = ('tflearn', 'scripts', 'tests', 'benchmarks', 'gin', 'tools')


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """One Python file.

    Attributes:
      path: relative to the checkout, with slashes.
      text: what the file holds.
    """

    path: str
    text: str

    @functools.cached_property
    def syntax(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree: rules look at them again and again, and walking takes longer than parsing."""
        return [*ast.walk(self.syntax)]

    @functools.cached_property
    def _lines(self) -> list[bytes]:
        return self.text.encode().splitlines()

    def segment(self, node: ast.expr) -> str:
        """Returns the text of an expression; for one line faster than `ast.get_source_segment`."""
        if node.lineno == node.end_lineno:
            return self._lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
        return ast.get_source_segment(self.text, node) or ''

    @property
    def parts(self) -> tuple[str, ...]:
        """Folders and the file's name without its ending."""
        return pathlib.PurePosixPath(self.path).with_suffix('').parts

    @functools.cached_property
    def imports(self) -> list[tuple[str, int]]:
        """Full names that the file imports, each with its line; `from a import b` is 'a.b'."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [(alias.name, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                package = [*self.parts[: -node.level], *filter(None, [node.module])] if node.level else [node.module]
                # The folder scripts/ is installed under another name.
                base = '.'.join(package).replace('tflearn_scripts', 'scripts')
                found += [(f'{base}.{alias.name}', node.lineno) for alias in node.names]
        return found

    @functools.cached_property
    def references(self) -> list[tuple[str, int]]:
        """Full names that the file imports or reaches by attributes, each with its line.

        After `import tensorflow as tf`, `tf.function` is a reference to 'tensorflow.function'.
        """
        full_names = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                # Without `as`, `import a.b` binds `a`.
                whole = [
                    (alias.asname, alias.name) if alias.asname else (alias.name.split('.')[0],) * 2
                    for alias in node.names
                ]
                full_names |= dict(whole)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                full_names |= {alias.asname or alias.name: f'{node.module}.{alias.name}' for alias in node.names}
        found = list(self.imports)
        for node in self.nodes:
            if isinstance(node, ast.Attribute):
                first, *rest = dotted_name(node).split('.')
                if first in full_names:
                    found.append(('.'.join([full_names[first], *rest]), node.lineno))
        return found

    def at(self, line: int) -> str:
        return f'{self.path}:{line}'


def dotted_name(node: ast.expr) -> str:
    """Returns 'a.b.c' for that expression; '' where it does not begin with a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted_name(node.value)):
        return f'{owner}.{node.attr}'
    return ''


def is_within(name: str, prefixes: Sequence[str]) -> bool:
    """Says whether the dotted `name` is one of `prefixes` or something in it."""
    return any(name == prefix or name.startswith(f'{prefix}.') for prefix in prefixes)


def read(root: pathlib.Path) -> list[SourceFile]:
    """Returns all Python files of the checkout at `root`, ordered by path."""
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob('*.py'))
    return [SourceFile(path.relative_to(root).as_posix(), path.read_text(encoding='utf-8')) for path in paths]


def functions(file: SourceFile) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yields every function and method of `file`."""
    for node in file.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
