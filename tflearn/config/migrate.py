"""Rewrites the names of version 0.1 in a gin file; its comments and its layout stay."""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

from tflearn.config import moved, moved_settings, outline, reader
from tflearn.config.moved_settings import Replacement, Setting
from tflearn.config.reader import Binding, Import, Reference, Statements, join_scope
from tflearn.errors import UserValueError

# A string or a comment; or a name with a dot.
_NAME = re.compile(r"""('[^'\n]*'|"[^"\n]*"|\#.*)|\b[A-Za-z_]\w*(?:\.\w+)+""")


def migrate(path: pathlib.Path) -> tuple[str, list[str]]:
    """Returns the new text of a gin file, and a line for each change. Included files are read, but stay as they are.

    Raises:
      ValueError: if it is no gin file, or has a name of version 0.1 that has to be replaced by hand.
    """
    statements = reader.read(path)
    file = _File(path, [item for item in statements.imports if _line(path, item.place)])
    file.rewrite_imports()
    for binding, new in moved.replaced_bindings(statements):
        if _line(path, binding.place):
            file.replace(binding, new, statements)
    file.add_needed(moved.settings(statements))
    file.rewrite_names()
    return ''.join(file.lines), file.changes()


def others_to_migrate(path: pathlib.Path) -> list[str]:
    """Returns the files that the gin file includes and that have names of version 0.1 too."""
    places = [place for _, place, _ in moved.old_names(reader.read(path)) if not _line(path, place)]
    return list(dict.fromkeys(place.rpartition(':')[0] for place in places))


class _File:
    """The lines of a gin file while they are rewritten: a removed one is empty, one with an import added holds two."""

    def __init__(self, path: pathlib.Path, imports: Sequence[Import]):
        self._path, self._imports = path, imports
        self._old = path.read_text(encoding='utf-8').splitlines(keepends=True)
        self.lines = list(self._old)
        # By module, what it is called in the new file: `import a.b` brings no other part of `a`.
        self._names = {item.module: item.name if item.symbol == item.module else item.module for item in imports}
        self._needed: dict[str, tuple[int, Setting]] = {}  # by name: the first line that needs it

    def changes(self) -> list[str]:
        """Returns a line for each line that changed."""
        return [
            f'{self._path}:{number}: {old.strip()} -> {" + ".join(new.splitlines()).strip() or "removed"}'
            for number, (old, new) in enumerate(zip(self._old, self.lines, strict=True), 1)
            if old != new
        ]

    def rewrite_imports(self) -> None:
        for item in self._imports:
            if not (new := moved.new_name(item.module)):
                continue
            package, _, last = new.rpartition('.')
            self._names.pop(item.module, None)
            self._names[new], statement = new, f'import {new}'
            if item.symbol == item.module:
                is_renamed = item.name != item.module.rpartition('.')[2] or last in self._names.values()
                statement = f'from {package} import {last}{f" as {item.name}" if is_renamed else ""}'
                self._names[new] = item.name if is_renamed else last
            index = (_line(self._path, item.place) or 0) - 1
            self.lines[index] = re.sub(r'(from|import) [^#\n]*[^#\s]', statement, self.lines[index], count=1)

    def rewrite_names(self) -> None:
        for index, line in enumerate(self.lines):
            if not re.match(r'(from|import|include)\b', line):
                self.lines[index] = _NAME.sub(self._rewritten, line)

    def replace(self, binding: Binding, replacement: Replacement, statements: Statements) -> None:
        """Rewrites a binding; `Queue.versions_ahead` replaced three settings of each collector.

        Raises:
          ValueError: if it is in a block of another function.
        """
        index = (_line(self._path, binding.place) or 0) - 1
        new = replacement.settings[0].name if replacement.settings else ''
        if binding.written not in self.lines[index]:
            function = moved.full_name(binding.selector, self._imports)
            if new.rpartition('.')[0] != (moved.new_name(function) or function):
                raise UserValueError(
                    f'got {binding.written} in a block in {binding.place}; need one line {binding.written} = '
                    f'{binding.value!r}, which can be rewritten; take it out of the block'
                )
            self.lines[index] = self.lines[index].replace(binding.parameter, new.rpartition('.')[2], 1)
        if new != moved.VERSIONS_AHEAD or 'CollectOptions' not in binding.selector:
            self._write(index, binding, replacement)
            return
        has_value = any(item.parameter == 'versions_ahead' for item in statements.bindings)
        if binding.parameter == 'versions_ahead':
            self.lines[index] = self.lines[index].replace(binding.written, self._short(moved.VERSIONS_AHEAD))
        elif binding.parameter == 'max_sequences_per_version' and not has_value:
            self.lines[index] = f'{self._short(moved.VERSIONS_AHEAD)} = 0\n'
        else:
            self.lines[index] = ''

    def _write(self, index: int, binding: Binding, replacement: Replacement) -> None:
        """Replaces a line by the new bindings."""
        line = self.lines[index]
        if not replacement.settings:
            self.lines[index] = ''
            return
        first, *others = replacement.settings
        if first.value != binding.value:
            line = re.sub(r"""=\s*(['"]).*?\1""", f'= {self._short_value(first.value)}', line, count=1)
        self.lines[index] = line.replace(binding.written, join_scope(binding.scope, self._short(first.name)), 1)
        self.lines[index] += ''.join(f'{self._short(item.name)} = {self._short_value(item.value)}\n' for item in others)
        for needed in replacement.needed:
            self._needed[needed.name] = (min(index, self._needed.get(needed.name, (index,))[0]), needed)

    def add_needed(self, run: Sequence[Setting]) -> None:
        """Adds the bindings that others need, before them, unless the run has them and not another part instead."""
        bound = {item.name: repr(item.value).rpartition('.')[2] for item in run}
        for index, setting in reversed(self._needed.values()):
            kind = repr(setting.value).rpartition('.')[2]
            other = setting.name in moved_settings.CHOICES and bound.get(setting.name) != kind
            if other or setting.name not in bound:
                line = f'{self._short(setting.name)} = {self._short_value(setting.value)}\n'
                self.lines[index] = line + self.lines[index]

    def _short_value(self, value: Any) -> str:
        return f'@{self._short(value.selector)}()' if isinstance(value, Reference) else repr(value)

    def _rewritten(self, match: re.Match[str]) -> str:
        new = None if match[1] else moved.new_name(moved.full_name(match[0], self._imports))
        return self._short(new) if new else match[0]

    def _short(self, name: str) -> str:
        """Returns a full name as the new file writes it, which imports its module if it did not before."""
        modules = [module for module in self._names if name.startswith(f'{module}.')]
        if not modules:
            modules = [outline.module_of(name)]
            package, _, last = modules[0].rpartition('.')
            self._names[modules[0]] = last
            index = max(_line(self._path, item.place) or 0 for item in self._imports) - 1
            self.lines[index] += f'from {package} import {last}\n'
        module = max(modules, key=len)
        return f'{self._names[module]}{name[len(module) :]}'


def _line(path: pathlib.Path, place: str) -> int | None:
    """Returns the line number of a place in this file; None if it is elsewhere."""
    file, _, number = place.rpartition(':')
    return int(number) if file == str(path) else None
