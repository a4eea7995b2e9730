"""The BUILD files, made from what the files really import. `python -m tests.architecture.build_files` writes them.

One target per package, per program, per test and per benchmark; the vocabulary is one, what programs share is one.
"""

import collections
import dataclasses
import pathlib
import re
from collections.abc import Iterable, Sequence

from tests.architecture import source_tree
from tests.architecture.budget import COLLECTIONS
from tests.architecture.source_tree import SourceFile

HEADERS = {
    '': '# The map of the project, for `bazel query`: native rules, nothing to load. Outside libraries: setup.py.\n'
    '# All BUILD files are written by `python -m tests.architecture.build_files`.\n',
    'tflearn': '# Rooms depend on the vocabulary; they meet in jobs.\n',
    'scripts': '# One program per job.\n',
    'tests': '# The tests mirror the package.\n',
    'benchmarks': '# One program per measurement.\n',
}


@dataclasses.dataclass
class Target:
    """A rule of a BUILD file.

    Attributes:
      rule: 'py_library', 'py_binary' or 'py_test'.
      package: folder of the BUILD file; '' is the checkout.
      name: of the target in its package.
      files: its sources: paths relative to the package, or one pattern.
      deps: labels.
    """

    rule: str
    package: str
    name: str
    files: list[str] = dataclasses.field(default_factory=list)
    deps: set[str] = dataclasses.field(default_factory=set)

    @property
    def label(self) -> str:
        return f'//{self.package}:{self.name}'

    def text(self) -> str:
        """Returns the rule as it stands in its file."""
        own = f'//{self.package}'
        deps = sorted(label.removeprefix(own) if label.startswith(f'{own}:') else label for label in self.deps)
        deps.sort(key=lambda label: label.startswith('//'))
        attributes = [
            f"name = '{self.name}',",
            f'{"data" if self.name == "gin" else "srcs"} = {_list(sorted(self.files))},',
            "visibility = ['//visibility:public']," if self.rule == 'py_library' else '',
            f'deps = {_list(deps)},' if deps else '',
        ]
        return '\n'.join([f'{self.rule}(', *(f'    {attribute}' for attribute in attributes if attribute), ')', ''])


def _list(items: Sequence[str]) -> str:
    if len(items) == 1:
        return f"glob(['{items[0]}'])" if '*' in items[0] else f"['{items[0]}']"
    return '\n'.join(['[', *(f"        '{item}'," for item in items), '    ]'])


def expected(root: pathlib.Path) -> dict[str, str]:
    """Returns what the BUILD files of the checkout at `root` have to hold, by their paths."""
    rules = collections.defaultdict(list)
    for target in _targets(root):
        rules[target.package].append((target.rule, target.name, target.text()))
    return {
        str(pathlib.PurePosixPath(package, 'BUILD')): '\n'.join(
            [HEADERS[package], *(text for *_, text in sorted(found))]
        )
        for package, found in rules.items()
    }


def _targets(root: pathlib.Path) -> Iterable[Target]:
    """Returns all targets with their deps."""
    targets: dict[str, Target] = {}
    homes: dict[str, Target] = {}
    files = [file for file in source_tree.read(root) if file.parts[0] in HEADERS]
    for file in files:
        target = _target_of(file)
        target = homes['.'.join(file.parts)] = targets.setdefault(target.label, target)
        path = file.path.removeprefix(f'{target.package}/')
        if not any('*' in pattern for pattern in target.files):
            target.files.append(path)
    for file in files:
        if file.path == 'tflearn/__init__.py':
            continue  # it loads what it names on first use
        target = homes['.'.join(file.parts)]
        target.deps |= {
            label for name, _ in file.imports if (label := _label_of(name, homes)) not in (None, target.label)
        }
    if '//tflearn:config' in targets:
        targets['//tflearn:config'].deps.add('//:gin')
    return [*targets.values(), _gin_target(root, homes)]


def _target_of(file: SourceFile) -> Target:
    """Returns the target that `file` is part of, as yet without its files."""
    package, *rest = file.parts
    name = '/'.join(rest)
    is_program = re.search(r"^if __name__ == '__main__':", file.text, re.M)
    if package == 'tflearn':
        if len(rest) == 1:
            return Target('py_library', package, 'vocabulary')
        deep = any(folder.startswith(f'{package}/{rest[0]}/') for folder in COLLECTIONS)
        return Target('py_library', package, rest[0], [f'{rest[0]}/**/*.py' if deep else f'{rest[0]}/*.py'])
    if package == 'tests' and name.endswith('_test'):
        return Target('py_test', package, name)
    if package == 'scripts' and not is_program:
        return Target('py_library', package, 'setup')
    return Target('py_binary' if is_program else 'py_library', package, name)


def _gin_target(root: pathlib.Path, homes: dict[str, Target]) -> Target:
    """Returns the gin files' target: they import the packages whose factories they bind."""
    texts = [path.read_text(encoding='utf-8') for path in (root / 'gin').rglob('*.gin')]
    imports = [match.groups() for text in texts for match in re.finditer(r'^(?:from (\S+) )?import (\S+)', text, re.M)]
    labels = {_label_of('.'.join(filter(None, names)), homes) for names in imports}
    return Target('py_library', '', 'gin', ['gin/**/*.gin'], {label for label in labels if label})


def _label_of(name: str, homes: dict[str, Target]) -> str | None:
    """Returns the label of the target that holds the module `name`, or the module that `name` is in."""
    while name:
        target = homes.get(name) or homes.get(f'{name}.__init__')
        if target:
            return target.label
        name = name.rpartition('.')[0]
    return None


def main() -> None:
    """Writes the BUILD files of this checkout."""
    root = pathlib.Path(__file__).resolve().parents[2]
    for path, text in expected(root).items():
        (root / path).write_text(text, encoding='utf-8')


if __name__ == '__main__':
    main()
