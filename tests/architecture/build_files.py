"""The BUILD files, made from what the files really import. `python -m tests.architecture.build_files` writes them."""

import collections
import dataclasses
import pathlib
import re
from collections.abc import Iterable, Sequence

from tests.architecture import source_tree
from tests.architecture.budget import COLLECTIONS
from tests.architecture.source_tree import SourceFile

PUBLIC = "package(default_visibility = ['//visibility:public'])\n"
HEADERS = {
    '': '# The map of the project, for `bazel query`: native rules, nothing to load. Outside libraries: setup.py.\n'
    '# Both BUILD files are written by `python -m tests.architecture.build_files`.\n'
    f'\n{PUBLIC}',
    'tflearn': f'# A target for each package.\n\n{PUBLIC}',
}


@dataclasses.dataclass
class Target:
    """A rule of a BUILD file.

    Attributes:
      package: folder of the BUILD file; '' is the checkout.
      name: of the target in its package.
      files: its sources: paths relative to the package, or one pattern.
      deps: labels.
    """

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
            f'deps = {_list(deps)},' if deps else '',
        ]
        return '\n'.join(['py_library(', *(f'    {attribute}' for attribute in attributes if attribute), ')', ''])


def _list(items: Sequence[str]) -> str:
    if len(items) == 1:
        return f"glob(['{items[0]}'])" if '*' in items[0] else f"['{items[0]}']"
    return '\n'.join(['[', *(f"        '{item}'," for item in items), '    ]'])


def expected(root: pathlib.Path, files: Iterable[SourceFile]) -> dict[str, str]:
    """Returns what the BUILD files of the checkout at `root`, with these Python files, have to hold, by their paths."""
    rules = collections.defaultdict(list)
    for target in _targets(root, files):
        rules[target.package].append((target.name, target.text()))
    return {
        str(pathlib.PurePosixPath(package, 'BUILD')): '\n'.join(
            [HEADERS[package], *(text for *_, text in sorted(found))]
        )
        for package, found in rules.items()
    }


def _targets(root: pathlib.Path, files: Iterable[SourceFile]) -> Iterable[Target]:
    """Returns all targets with their deps."""
    targets: dict[str, Target] = {}
    homes: dict[str, Target] = {}
    files = [file for file in files if file.parts[0] in HEADERS]
    for file in files:
        target = _target_of(file)
        homes['.'.join(file.parts)] = targets.setdefault(target.label, target)
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
    if len(rest) == 1:
        return Target(package, package, ['*.py'])
    if rest[0] == 'extensions' and len(rest) > 2:
        return Target(package, '/'.join(rest[:2]), [f'{"/".join(rest[:2])}/*.py'])
    deep = any(folder.startswith(f'{package}/{rest[0]}/') for folder in COLLECTIONS)
    return Target(package, rest[0], [f'{rest[0]}/**/*.py' if deep else f'{rest[0]}/*.py'])


def _gin_target(root: pathlib.Path, homes: dict[str, Target]) -> Target:
    """Returns the gin files' target: they import the packages whose factories they bind."""
    texts = [path.read_text(encoding='utf-8') for path in (root / 'gin').rglob('*.gin')]
    imports = [match.groups() for text in texts for match in re.finditer(r'^(?:from (\S+) )?import (\S+)', text, re.M)]
    labels = {_label_of('.'.join(filter(None, names)), homes) for names in imports}
    return Target('', 'gin', ['gin/**/*.gin'], {label for label in labels if label})


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
    for path, text in expected(root, source_tree.read(root)).items():
        (root / path).write_text(text, encoding='utf-8')


if __name__ == '__main__':
    main()
