"""The commands that texts tell users to run are there. A rule takes the files and returns the violations."""

import pathlib
import re
from collections.abc import Sequence

from scripts import commands
from tests.architecture.source_tree import SourceFile

FOLDERS = ('tflearn', 'scripts', 'benchmarks', 'tools', 'docs', 'gin', 'docker', '.github')
ENDINGS = ('.md', '.toml', '.gin', '.yaml', '.yml', '.svg', '.html', '.ipynb', '')
VERBS = {verb for group in commands.VERBS.values() for verb in group}
# What has such a name and is no command of a user's.
OTHERS = {
    'agents': 'the distribution',
    **dict.fromkeys(('supervise', 'worker'), 'scripts start them on clusters'),
    **dict.fromkeys(('delta', 'model', 'stamp', 'valkey'), 'names of files, and of an encoding'),
}
_PROGRAM = re.compile(r'(?<![\w./#-])tflearn-([a-z][a-z_-]*[a-z])')
# In quotes, after a folder, or before a flag: elsewhere `tflearn` begins a sentence.
_VERB = re.compile(r'(?<=[`\'"/$])tflearn ([a-z][\w-]*)|\btflearn ([a-z][\w-]*)(?= --\w)')


def command_names(files: Sequence[SourceFile]) -> list[str]:
    """Checks that each program tflearn-NAME and each verb `tflearn NAME` in a text is there."""
    problems = []
    for file in files:
        if file.parts[0] in ('tests', 'CHANGELOG') or file.path.startswith('benchmarks/results/'):
            continue
        for i, line in enumerate(file.text.splitlines(), 1):
            programs = {name for name in _PROGRAM.findall(line) if name not in {*commands.PROGRAMS, *OTHERS}}
            verbs = {''.join(groups) for groups in _VERB.findall(line)} - VERBS
            wrong = [*(f'tflearn-{name}' for name in programs), *(f'tflearn {name}' for name in verbs)]
            problems += [f'{file.at(i)}: got {each}; need a command of scripts/commands.py' for each in sorted(wrong)]
    return problems


def texts(root: pathlib.Path) -> list[SourceFile]:
    """Returns the files of texts that tell users what to run, apart from Python."""
    paths = [path for folder in FOLDERS for path in (root / folder).rglob('*') if path.suffix in ENDINGS]
    paths = [path for path in sorted([*root.glob('*.md'), *paths]) if path.is_file()]
    return [SourceFile(path.relative_to(root).as_posix(), path.read_text(encoding='utf-8')) for path in paths]
