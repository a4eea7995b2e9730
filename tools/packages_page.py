"""The site's page of packages: in reading order, what each may import, and its modules."""

import ast
import pathlib
from collections.abc import Iterator, Sequence

from tests.architecture import layers, source_tree
from tests.architecture.source_tree import SourceFile
from tests.testing.algorithms import ALGORITHMS

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = 'packages.md'
HEADER = """# Packages and modules

In reading order. Imports point up this list only, and only to the packages in a package's row.
[Architecture](architecture.md) has the picture, and the [glossary](where.md#glossary) the words.
"""


def _about(file: SourceFile) -> str:
    """Returns the first paragraph of a module's docstring, as one line."""
    return ' '.join((ast.get_docstring(file.syntax) or '').split('\n\n')[0].split()).replace('|', r'\|')


def _init(package: str) -> str:
    return f'tflearn/{package.replace(".", "/")}/__init__.py'


def _lines(files: Sequence[SourceFile]) -> Iterator[str]:
    own = {file.path: file for file in files if file.parts[0] == 'tflearn'}
    packages = [name for name in layers.PACKAGES if name != 'scripts']
    above: list[str] = []
    yield from (HEADER, '| package | what it is | may import |', '|---|---|---|')
    for name in packages:
        row = layers.PACKAGES[name]
        imports = (
            'all above' if set(above) <= set(row) and above else ', '.join(f'`{each}`' for each in row) or 'nothing'
        )
        yield f'| [`{name.replace(".", "/")}/`](#{name.replace(".", "")}) | {_about(own[_init(name)])} | {imports} |'
        above.append(name)
    for name in packages:
        inside = [file for _, file in sorted(own.items()) if layers.package_of(file) == name]
        inside = [file for file in inside if file.parts[-1] != '__init__']
        yield from ('', f'## {name}', '')
        if name == 'agents':
            yield from ('[Algorithms](algorithms.md) has an example of each. What they are made of:', '')
            inside = [file for file in inside if file.parts[-1] not in ALGORITHMS]
        yield from ('| module | what it is |', '|---|---|')
        for file in inside:
            yield f'| `{"/".join(file.parts[1 + len(name.split(".")) :])}.py` | {_about(file)} |'


def page() -> str:
    """Returns the page."""
    return '\n'.join(_lines(source_tree.read(ROOT))) + '\n'
