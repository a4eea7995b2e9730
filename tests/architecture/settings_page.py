"""docs/settings.md, made from the source: every setting that gin can bind.

`python -m tests.architecture.settings_page` writes it. Settings are the arguments of the jobs and of the factories
that gin hands to them, and the fields of the dataclasses among these.
"""

import ast
import dataclasses
import inspect
import pathlib
import re
from collections.abc import Iterator, Sequence

from tests.architecture import source_tree
from tests.architecture.source_tree import SourceFile
from tflearn.config.preview import outlines
from tflearn.core.settings import Rule, rules

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = 'docs/settings.md'
JOBS, AGENTS, ENVIRONMENTS = (f'tflearn.{package}.' for package in ('jobs', 'agents', 'environments'))
# Title, functions that gin files call, and their arguments that come from elsewhere.
SECTIONS = (
    (
        'Jobs',
        rf'{JOBS}((replay_server|collect|train|synchronous|train_offline|evaluate|supervised)\.\2|supervised\.from_files)',
        {'run'},
    ),
    ('The product loop', r'tflearn\.product\.loop\.loop', {'run'}),
    ('Algorithms', rf'{AGENTS}\w+\.make_agent', {'self', 'problem', 'specs', 'train_step', 'experience'}),
    (
        'Transforms',
        r'tflearn\.transforms\.(transformed\.make_agent|(image|rewards|stack|normalize|hindsight|rnd)\.\w+'
        r'|statistics\.(Running|Window|Ema))',
        {'specs', 'train_step', 'experience'},
    ),
    (
        'Optimizers and schedules',
        r'tflearn\.optimization\.(optimizers\.OptimizerOptions|schedules\.[a-z]\w+)',
        set(),
    ),
    ('Networks', r'tflearn\.networks\.\w+\.(make_network|from_\w+)', {'spec', 'name'}),
    (
        'Environments',
        rf'{ENVIRONMENTS}((tasks\.)?\w+\.(make|record|from_dm_env)|vector_env\.in_(worker_)?process(es)?)',
        {'num_environments', 'seed', 'folder'},
    ),
)
UNITS = {'secs': 's', 'seconds': 's', 'gb': 'GB', 'bytes': 'bytes', 'items': 'items', 'episodes': 'episodes'}
HEADER = """# Settings

All settings that a gin file or `--gin_bindings` can bind, as `name = value`; import the module as shown. Bind what has
no default. Other values than the declared ones are refused, with the line that binds them, before a job begins.
Several names of one setting, such as `train.Dataset` and `reader.Dataset`, are equal: bind any of them.
`python -m tests.architecture.settings_page` writes this page, and a test checks that it is current. `--help` shows the
flags of a program.
"""

Owner = ast.FunctionDef | ast.ClassDef
LOAD = outlines()
FACTORY = 'tflearn.agents.algorithm', 'Factory', '__call__'  # what functions that `factory` decorates take besides


@dataclasses.dataclass(frozen=True)
class Definition:
    """A function or dataclass whose arguments are settings; `common` are those that its decorator adds."""

    name: str  # full name
    node: Owner
    file: SourceFile
    common: 'Definition | None' = None

    @property
    def module(self) -> str:
        return self.name.rpartition('.')[0]

    @property
    def short(self) -> str:
        return '.'.join(self.name.split('.')[-2:])

    def arguments(self) -> Iterator[tuple[str, ast.expr | None, ast.expr | None, SourceFile]]:
        """Yields name, annotation and default of each, and the file where they stand."""
        own = [(*each, self.file) for each in self._own()]
        if self.common:
            names = {name for name, *_ in own}
            yield from (each for each in self.common.arguments() if each[0] not in names)
        yield from own

    def texts(self) -> dict[str, str]:
        """Returns what each is."""
        return (self.common.texts() if self.common else {}) | descriptions(_constructor(self.node) or self.node)

    def _own(self) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
        constructor = _constructor(self.node)
        if isinstance(self.node, ast.ClassDef) and constructor is None:
            for field in self.node.body:
                if isinstance(field, ast.AnnAssign) and not field.target.id.startswith('_') and not _is_constant(field):
                    yield field.target.id, field.annotation, field.value
            return
        arguments = (constructor or self.node).args
        positional = [*arguments.posonlyargs, *arguments.args][constructor is not None :]
        missing = [None] * (len(positional) - len(arguments.defaults))
        for argument, default in zip(positional, [*missing, *arguments.defaults], strict=True):
            yield argument.arg, argument.annotation, default
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            yield argument.arg, argument.annotation, default


def _is_constant(field: ast.AnnAssign) -> bool:
    return ast.unparse(field.annotation).startswith('ClassVar')


def _constructor(node: Owner) -> ast.FunctionDef | None:
    """Returns the constructor of a class that is no dataclass."""
    return next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == '__init__'), None)


def full_names(file: SourceFile) -> dict[str, str]:
    """Returns what the names of a module stand for."""
    module = '.'.join(file.parts)
    own = {node.name: f'{module}.{node.name}' for node in file.syntax.body if isinstance(node, Owner)}
    values = {
        target.id: f'{module}.{target.id}'
        for node in file.syntax.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {name.rpartition('.')[2]: name for name, _ in file.imports} | own | values


def definitions(files: Sequence[SourceFile]) -> dict[str, Definition]:
    """Returns the public functions and classes of the library by their full names."""
    found = {
        f'{".".join(file.parts)}.{node.name}': Definition(f'{".".join(file.parts)}.{node.name}', node, file)
        for file in files
        if file.parts[0] == 'tflearn'
        for node in file.syntax.body
        if isinstance(node, Owner) and not node.name.startswith('_')
    }
    if factory := found.get('.'.join(FACTORY[:2])):
        (call,) = (item for item in factory.node.body if getattr(item, 'name', '') == FACTORY[2])
        common = Definition('.'.join(FACTORY), call, factory.file)
        for name, each in found.items():
            if 'factory' in map(ast.unparse, each.node.decorator_list):
                found[name] = dataclasses.replace(each, common=common)
    return found


def _is_dataclass(definition: Definition) -> bool:
    return isinstance(definition.node, ast.ClassDef) and any(
        'dataclass' in ast.unparse(decorator) for decorator in definition.node.decorator_list
    )


def _types(annotation: ast.expr) -> Iterator[ast.expr]:
    """Yields the parts of an annotation that name what a value is: not what a function takes or returns."""
    if isinstance(annotation, ast.BinOp):
        yield from (*_types(annotation.left), *_types(annotation.right))
    elif isinstance(annotation, ast.Name | ast.Attribute):
        yield annotation


def dataclasses_of(definition: Definition, given: set[str], known: dict[str, Definition]) -> Iterator[Definition]:
    """Yields the dataclasses that the settings of `definition` take, and theirs."""
    for name, annotation, _, file in definition.arguments():
        if name in given or annotation is None:
            continue
        names = full_names(file)
        for node in _types(annotation):
            first, _, rest = source_tree.dotted_name(node).partition('.')
            full = '.'.join(filter(None, [names.get(first, ''), rest]))
            if (found := known.get(full)) and _is_dataclass(found):
                yield found
                yield from dataclasses_of(found, given, known)


def descriptions(node: Owner) -> dict[str, str]:
    """Returns the entries of the docstring's Args or Attributes."""
    text = ast.get_docstring(node) or ''
    section = re.search(r'^(?:Args|Attributes):\n(.*?)(?=^\w|\Z)', text, re.MULTILINE | re.DOTALL)
    entries = re.split(r'^ {2}(?=\w+: )', section[1], flags=re.MULTILINE) if section else []
    return {name: ' '.join(rest.split()) for name, _, rest in (entry.partition(': ') for entry in entries if entry)}


def sentence(text: str) -> str:
    """Returns the first sentence, as a cell of a table."""
    first = re.split(r'(?<=[\w)\]][.])\s+(?=[A-Z])', text)[0]
    return re.sub(r'(?<![.])[.]$', '', first).replace('|', r'\|')


def _default(file: SourceFile, node: ast.expr | None, known_values: dict[str, str]) -> str:
    if node is None:
        return ''
    if isinstance(node, ast.Call) and source_tree.dotted_name(node.func).endswith('field'):
        found = {keyword.arg: keyword.value for keyword in node.keywords}
        if 'default_factory' in found:
            return f'`{ast.unparse(found["default_factory"])}()`'
        return _default(file, found.get('default'), known_values)
    first, _, rest = source_tree.dotted_name(node).partition('.')
    full = '.'.join(filter(None, [full_names(file).get(first, ''), rest]))
    text = known_values.get(full) or file.segment(node)
    return f'`{text}`'


def constant_values(files: Sequence[SourceFile]) -> dict[str, str]:
    """Returns the source of each module's constants by their full names."""
    return {
        f'{".".join(file.parts)}.{node.targets[0].id}': file.segment(node.value)
        for file in files
        if file.parts[0] == 'tflearn'
        for node in file.syntax.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def _unit(name: str, text: str) -> str:
    if bracket := re.search(r'\[([a-z ]+|GB)\]', text):
        return UNITS.get(bracket[1], bracket[1])
    if (last := name.rpartition('_')[2]) in UNITS:
        return UNITS[last]
    steps = re.search(r'\b(train|environment) steps\b', text) if re.search('steps|interval|period', name) else None
    return f'{steps[1]} steps' if steps else 'steps' if last == 'steps' else ''


def _rules(definition: Definition) -> dict[str, Rule]:
    """Returns the declared ranges and choices of the settings that have them."""
    parameters = inspect.signature(getattr(LOAD(definition.module), definition.node.name)).parameters
    return rules({name: parameter.annotation for name, parameter in parameters.items()})


def names_in_jobs(files: Sequence[SourceFile]) -> dict[str, list[str]]:
    """Returns the names by which gin files bind what train jobs import, such as `train.Dataset`, by full names."""
    found: dict[str, list[str]] = {}
    for file in files:
        if '.'.join(file.parts) in (f'{JOBS}train', f'{JOBS}train_offline'):
            for name in dict.fromkeys(name for name, _ in file.imports):
                found.setdefault(name, []).append(f'{file.parts[-1]}.{name.rpartition(".")[2]}')
    return found


def section(
    definition: Definition, given: set[str], constants: dict[str, str], others: Sequence[str] = ()
) -> Iterator[str]:
    """Yields the section of a function or dataclass, without the settings that come from elsewhere.

    Args:
      others: further names of it.
    """
    package, _, module = definition.module.rpartition('.')
    about = sentence((ast.get_docstring(definition.node) or '').split('\n\n')[0].replace('\n', ' '))
    end = '' if about.endswith(')') else '.'
    named = f', or {", ".join(f"`{each}`" for each in others)}' if others else ''
    yield from ('', f'### {definition.short}', '', f'`from {package} import {module}`{named}. {about}{end}', '')
    yield from ('| setting | default | values | unit | what it is |', '|---|---|---|---|---|')
    texts = definition.texts()
    found = _rules(definition)
    for name, _, default, file in definition.arguments():
        if name not in given:
            text, shown = texts.get(name, ''), _default(file, default, constants)
            unit = '' if shown in ('`True`', '`False`') else _unit(name, text)
            values = found[name].needs('') if name in found else ''
            yield f'| `{name}` | {shown} | {values} | {unit} | {sentence(text)} |'


def settings(files: Sequence[SourceFile]) -> Iterator[tuple[str, list[Definition], set[str]]]:
    """Yields the sections: title, owners of settings, and the arguments that are none."""
    known = definitions(files)
    shown: set[str] = set()
    for title, pattern, given in SECTIONS:
        roots = [item for name, item in known.items() if re.fullmatch(pattern, name)]
        owners = roots + [found for root in roots for found in dataclasses_of(root, given, known)]
        new = list({owner.name: owner for owner in owners if owner.name not in shown}.values())
        shown |= {owner.name for owner in new}
        yield title, new, given


def anchors(files: Sequence[SourceFile]) -> dict[str, str]:
    """Returns links to what the page describes, by full names."""
    owners = [owner for _, found, _ in settings(files) for owner in found]
    return {owner.name: f'settings.md#{owner.short.lower().replace(".", "")}' for owner in owners}


def page(files: Sequence[SourceFile]) -> str:
    """Returns what docs/settings.md has to hold."""
    constants, others = constant_values(files), names_in_jobs(files)
    lines = [HEADER.rstrip()]
    for title, owners, given in settings(files):
        lines += ['', f'## {title}']
        for owner in owners:
            lines += section(owner, given, constants, others.get(owner.name, ()))
    return '\n'.join([*lines, ''])


def main() -> None:
    """Writes the page of this checkout."""
    (ROOT / PAGE).write_text(page(source_tree.read(ROOT)), encoding='utf-8')


if __name__ == '__main__':
    main()
