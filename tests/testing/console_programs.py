"""The programs of scripts/ and the verbs of `tflearn`, by the names of their modules: 'replay_server', 'data'."""

import importlib
import sys

from scripts import commands

PROGRAMS = tuple(program.replace('-', '_') for program in commands.PROGRAMS)
VERBS = tuple(verb.replace('-', '_') for verbs in commands.VERBS.values() for verb in verbs)


def name(program: str) -> str:
    """Returns what users call: 'tflearn-replay-server', 'tflearn data'."""
    return f'tflearn{" " if program in VERBS else "-"}{program.replace("_", "-")}'


def words(program: str) -> tuple[str, ...]:
    """Returns what `python -m` calls: ('scripts.replay_server',), ('scripts', 'data')."""
    return ('scripts', program.replace('_', '-')) if program in VERBS else (f'scripts.{program}',)


def main(program: str, *arguments: str) -> None:
    """Runs it in this process."""
    module, *verb = words(program)
    sys.argv = [name(program), *verb, *arguments]
    importlib.import_module('scripts.__main__' if verb else module).main()
