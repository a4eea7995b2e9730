"""docs/api.md, made from the source: the public names of `tflearn`.

`python -m tests.architecture.api_page` writes it.
"""

import ast
import pathlib
from collections.abc import Iterator, Sequence

from tests.architecture import source_tree
from tests.architecture.settings_page import Definition, anchors, definitions, descriptions, sentence
from tests.architecture.source_tree import SourceFile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = 'docs/api.md'
HEADER = """# API

The public names: `from tflearn import Learner`. All else is importable too, and may move between versions.
`python -m tests.architecture.api_page` writes this page, and a test checks that it is current.
"""


def public(files: Sequence[SourceFile]) -> dict[str, Definition]:
    """Returns what the names in `tflearn.__all__` stand for, in their order."""
    nodes = ast.parse((ROOT / 'tflearn' / '__init__.pyi').read_text(encoding='utf-8')).body
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname or alias.name: f'{node.module}.{alias.name}' for node in imports for alias in node.names}
    known = definitions(files)
    # A module may hand on what another one defines.
    by_last_name = {full.rpartition('.')[2]: definition for full, definition in known.items()}
    return {name: known.get(homes[name]) or by_last_name[name] for name in sorted(homes)}


def _signature(name: str, node: ast.FunctionDef, skip: int = 0) -> str:
    """Returns the call with the names and defaults of its arguments."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args][skip:]
    texts = [argument.arg for argument in positional]
    for i, default in enumerate(reversed(arguments.defaults), 1):
        texts[-i] += f'={ast.unparse(default)}'
    texts += [f'*{arguments.vararg.arg}'] if arguments.vararg else ['*'] if arguments.kwonlyargs else []
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        texts.append(f'{argument.arg}={ast.unparse(default)}' if default else argument.arg)
    texts += [f'**{arguments.kwarg.arg}'] if arguments.kwarg else []
    return f'{name}({", ".join(texts)})'


def _members(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and not member.name.startswith('_'):
            yield member


def _lines(name: str, definition: Definition, fields: str | None) -> Iterator[str]:
    node = definition.node
    functions = [node] if isinstance(node, ast.FunctionDef) else [item for item in node.body if _is_constructor(item)]
    yield from ('', f'## {name}', '', f'`{definition.name}`')
    if functions:
        skip = 0 if isinstance(node, ast.FunctionDef) else 1
        yield from ('', '```text', _signature(name, functions[0], skip), '```')
    yield from ('', (ast.get_docstring(node) or '').split('\n\n')[0].replace('\n', ' '))
    entries = {item: text for function in [node, *functions] for item, text in descriptions(function).items()}
    if fields:
        yield from ('', f'Its fields are in [settings.md]({fields}).')
    elif entries:
        yield from ('', '| name | what it is |', '|---|---|')
        yield from (f'| `{item}` | {sentence(text)} |' for item, text in entries.items())
    if isinstance(node, ast.ClassDef) and (members := list(_members(node))):
        yield from ('', '| method or property | what it does |', '|---|---|')
        for member in members:
            is_property = any(ast.unparse(item) == 'property' for item in member.decorator_list)
            shown = member.name if is_property else _signature(member.name, member, 1)
            about = sentence((ast.get_docstring(member) or '').split('\n\n')[0].replace('\n', ' '))
            yield f'| `{shown}` | {about} |'


def _is_constructor(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == '__init__'


def page(files: Sequence[SourceFile]) -> str:
    """Returns what docs/api.md has to hold."""
    lines, fields = [HEADER.rstrip()], anchors(files)
    for name, definition in public(files).items():
        lines += _lines(name, definition, fields.get(definition.name))
    return '\n'.join([*lines, ''])


def main() -> None:
    """Writes the page of this checkout."""
    (ROOT / PAGE).write_text(page(source_tree.read(ROOT)), encoding='utf-8')


if __name__ == '__main__':
    main()
