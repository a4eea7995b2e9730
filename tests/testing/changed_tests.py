"""Prints the files of tests that a change may affect: those which import a changed file, directly or through others.

For whoever works on it, by `scripts/test --changed`: what no import shows (a name that is put together, a file's path)
is found by text or not at all, so continuous integration runs all tests.
"""

import ast
import functools
import pathlib
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

from tests.architecture import source_tree
from tests.architecture.source_tree import SourceFile

ROOT = pathlib.Path(__file__).parents[2]
# What they change is not known by imports.
ALL_DEPEND_ON = ('pyproject.toml', 'setup.py', 'requirements/')
# Modules that a text names, as programs of tests do.
_MODULES = re.compile(r'\b(?:tflearn|scripts|tests|benchmarks)(?:\.\w+)+')
# The beginning of an f-string, `f'scripts.{program}'`: all modules of that package.
_PACKAGE = re.compile(r'(?:tflearn|scripts)(?:\.\w+)*\.')


def changed(root: pathlib.Path = ROOT) -> set[str]:
    """Returns the files that differ from where this branch began, those that git does not know yet too."""

    def git(*arguments: str) -> str:
        ended = subprocess.run(['git', *arguments], cwd=root, capture_output=True, text=True)
        return ended.stdout.strip() if ended.returncode == 0 else ''

    bases = (git('merge-base', 'HEAD', branch) for branch in ('@{upstream}', 'origin/main', 'main'))
    base = next(filter(None, bases), 'HEAD')
    names = [git('diff', '--name-only', '--no-renames', base), git('ls-files', '--others', '--exclude-standard')]
    return {*'\n'.join(names).split('\n')} - {''}


def affected(files: Sequence[SourceFile], changes: Collection[str], public: Mapping[str, str]) -> list[str]:
    """Returns the paths of files of tests that changes may affect.

    Args:
      files: the Python files of the checkout, as they are now.
      changes: paths of files that were changed, added or removed.
      public: the module of each public name, 'tflearn.train': 'tflearn.api.training'.
    """
    tests = [file.path for file in files if file.path.startswith('tests/') and file.path.endswith('_test.py')]
    if any(path.startswith(ALL_DEPEND_ON) for path in changes):
        return tests
    by_path = {file.path: file for file in files}
    known = {*by_path, *(path for path in changes if path.endswith('.py'))}
    needs = {path: _needs(file, known, public) for path, file in by_path.items()}
    others = [pathlib.PurePosixPath(path) for path in changes if not path.endswith('.py')]
    # 'dqn_cartpole' is the name of a gin file; of other files tests have names with endings.
    words = {path.stem if path.suffix == '.gin' else path.name for path in others}
    found = []
    for test in tests:
        own = _closure([test], needs)
        conftests = [path for path in map(str, _conftests(test)) if path in by_path]
        named = any(word in by_path[path].text for path in own if path in by_path for word in words)
        if test in changes or named or _closure([test, *conftests], needs) & {*changes}:
            found.append(test)
    return found


def _needs(file: SourceFile, known: Collection[str], public: Mapping[str, str]) -> set[str]:
    """Returns the paths of files that a file names: by imports, and outside of the package by texts too."""
    names = {name for name, _ in file.references}
    if file.parts[0] != 'tflearn':  # where texts are registries of what most users of a module do not load
        texts = list(_texts(file))
        names |= {name for text in texts for name in _MODULES.findall(text)}
        names |= {text for text in texts if _PACKAGE.fullmatch(text)}
    paths = set()
    for name in names:
        if name.endswith('.'):
            paths |= {path for path in known if path.startswith(name.replace('.', '/'))}
        for full in (name, *([public[name]] if name in public else ())):
            paths |= _paths(full, known)
    return paths - {file.path}


def _texts(file: SourceFile) -> Iterable[str]:
    return (node.value for node in file.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


@functools.cache
def _candidates(name: str) -> list[str]:
    """Returns the paths of modules that the import of a dotted name may run: its packages, and itself."""
    parts = [part for part in name.split('.') if part]
    folders = ['/'.join(parts[: i + 1]) for i in range(len(parts))]
    return [path for folder in folders for path in (f'{folder}.py', f'{folder}/__init__.py')]


def _paths(name: str, known: Collection[str]) -> set[str]:
    return {path for path in _candidates(name) if path in known}


def _conftests(test: str) -> Iterable[pathlib.PurePosixPath]:
    return (folder / 'conftest.py' for folder in pathlib.PurePosixPath(test).parents)


def _closure(paths: Iterable[str], needs: Mapping[str, Collection[str]]) -> set[str]:
    found, new = set(), [*paths]
    while new:
        path = new.pop()
        if path not in found:
            found.add(path)
            new += needs.get(path, ())
    return found


def public_names(root: pathlib.Path = ROOT) -> dict[str, str]:
    """Returns the module of each public name of the package, by its full name."""
    body = ast.parse((root / 'tflearn' / '__init__.pyi').read_text(encoding='utf-8')).body
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    return {f'tflearn.{each.asname or each.name}': node.module or '' for node in imports for each in node.names}


if __name__ == '__main__':
    sys.stdout.writelines(f'{path}\n' for path in affected(source_tree.read(ROOT), changed(), public_names()))
