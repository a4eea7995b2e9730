"""Size limits and forbidden names. A rule takes the files and returns the violations."""

import ast
import re
from collections.abc import Iterator, Sequence

from tests.architecture.source_tree import SourceFile, functions

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_STORY_LINES = 120  # of a job, which is read from top to bottom
MAX_CONSTRUCTOR_ARGUMENTS = 8
MAX_BINARY_LINES = 40
# Drop-ins: another library defines their constructors' arguments.
GIVEN_CONSTRUCTORS = (
    'tflearn/extensions/tf_agents/tf_agents_learner.py',
    'tflearn/extensions/tf_agents/tf_agents_ppo_learner.py',
)
# Folders within a package: of files that are alike and do not know each other.
COLLECTIONS = ('tflearn/replay/reverb', 'tflearn/replay/valkey')
# The classes of `Experience.replay` and `Queue.training`.
REPLAY_KINDS = {'Uniform', 'Prioritized', 'Queue', 'Iteration', 'Reuse'}
MAX_KIND_QUESTIONS = 8
UNCLEAR_VERBS = {'Gives', 'Lets', 'Says', 'Knows', 'Notes'}
FORBIDDEN_WORDS = {'util', 'utils', 'common', 'helper', 'helpers', 'misc'}


def file_lines(files: Sequence[SourceFile]) -> list[str]:
    """Checks that no file is too long."""
    return [
        f'{file.path}: got {lines} lines; need at most {MAX_FILE_LINES}; divide it by idea'
        for file in files
        if (lines := len(file.text.splitlines())) > MAX_FILE_LINES
    ]


def binary_lines(files: Sequence[SourceFile]) -> list[str]:
    """Checks that a program in scripts/ is flags and one call: its code lines, without docstrings and blank ones."""
    return [
        f'{file.path}: got {lines} lines of code; need at most {MAX_BINARY_LINES}; a job belongs into tflearn/jobs/, '
        'what programs share into a module of scripts/ that is none'
        for file in files
        if file.parts[0] == 'scripts' and re.search(r'^def main\((program: str)?\)', file.text, re.M)
        if (lines := _code_lines(file)) > MAX_BINARY_LINES
    ]


def function_lines(files: Sequence[SourceFile]) -> list[str]:
    """Checks the longest functions; the one of a job, which has its module's name, tells a story and may be longer."""
    return [
        f'{file.at(node.lineno)}: got {lines} lines in {node.name}; need at most {most}; divide it'
        for file in files
        for node in functions(file)
        for most in [MAX_STORY_LINES if _is_job(file, node.name) else MAX_FUNCTION_LINES]
        if (lines := _lines(node)) > most
    ]


def docstring_verbs(files: Sequence[SourceFile]) -> list[str]:
    """Checks that docstrings do not begin with a verb that leaves open what a function returns or does."""
    return [
        f'{file.at(node.lineno)}: got a docstring that begins with {verb}; say what is returned, made, set or sent'
        for file in files
        if file.parts[0] != 'tests'
        for node in ast.walk(file.syntax)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if (verb := (ast.get_docstring(node) or '').partition(' ')[0]) in UNCLEAR_VERBS
    ]


def _is_job(file: SourceFile, name: str) -> bool:
    return file.parts == ('tflearn', 'jobs', name)


def constructor_arguments(files: Sequence[SourceFile]) -> list[str]:
    """Checks that no constructor takes too many arguments. (A dataclass writes none, so it has none to count.)"""
    return [
        f'{file.at(node.lineno)}: got {count} arguments of a constructor; need at most {MAX_CONSTRUCTOR_ARGUMENTS}; '
        'put those that belong together into a frozen dataclass, or make two classes'
        for file in files
        if file.path not in GIVEN_CONSTRUCTORS
        for node in functions(file)
        if node.name == '__init__' and (count := len(_arguments(node)) - 1) > MAX_CONSTRUCTOR_ARGUMENTS
    ]


def kinds_of_replay(files: Sequence[SourceFile]) -> list[str]:
    """Checks that few places ask which class a replay or its training is: the classes answer by their attributes."""
    found = [
        file.at(node.lineno)
        for file in files
        if file.parts[0] in ('tflearn', 'scripts')
        for node in file.nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) == 'isinstance' and len(node.args) == 2
        if any(ast.unparse(part).split('.')[-1] in REPLAY_KINDS for part in ast.walk(node.args[1]))
    ]
    if len(found) <= MAX_KIND_QUESTIONS:
        return []
    return [
        f'{", ".join(found)}: got {len(found)} isinstance on {", ".join(sorted(REPLAY_KINDS))}; need at most '
        f'{MAX_KIND_QUESTIONS}; ask for what it does, such as learns_from_old_items, or give the kinds an attribute'
    ]


def hints(files: Sequence[SourceFile]) -> list[str]:
    """Checks that every argument and every result in the package has a type hint."""
    problems = []
    for file in files:
        if file.parts[0] not in ('tflearn', 'scripts'):
            continue
        for node in functions(file):
            missing = [
                argument.arg
                for argument in _arguments(node)
                if argument.annotation is None and argument.arg not in ('self', 'cls')
            ]
            if node.returns is None and node.name != '__init__':
                missing.append('the result')
            if missing:
                problems.append(f'{file.at(node.lineno)}: got no type of {", ".join(missing)} of {node.name}; add it')
    return problems


def depth(files: Sequence[SourceFile]) -> list[str]:
    """Checks that the package is never deeper than tflearn/<package>/<file>.py, except for the `COLLECTIONS`."""
    return [
        f'{file.path}: got a folder within a package; need tflearn/<package>/<file>.py; move it up'
        for file in files
        if file.parts[0] == 'tflearn'
        and len(file.parts) > 3 + (file.parts[1] == 'extensions')
        and '/'.join(file.parts[:-1]) not in COLLECTIONS
    ]


def names(files: Sequence[SourceFile]) -> list[str]:
    """Checks that no file, folder, function or class is named after not knowing what it is."""
    problems = []
    for file in files:
        for line, name in [(1, part) for part in file.parts] + list(_defined(file)):
            if found := FORBIDDEN_WORDS.intersection(_words(name)):
                problems.append(
                    f'{file.at(line)}: got {", ".join(found)} in the name {name}; need a noun of the domain or a verb; '
                    'say what it is'
                )
    return problems


def _defined(file: SourceFile) -> Iterator[tuple[int, str]]:
    for node in file.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def _words(name: str) -> set[str]:
    """Returns the words of a snake_case or CamelCase name, in lower case."""
    return set(re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower().split('_'))


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    arguments = node.args
    variadic = [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *variadic]


def _docstring_lines(node: ast.AST) -> int:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    if ast.get_docstring(node, clean=False) is None:
        return 0
    return node.body[0].end_lineno - node.body[0].lineno + 1


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return node.end_lineno - node.lineno + 1 - _docstring_lines(node)


def _code_lines(file: SourceFile) -> int:
    docstrings = sum(_docstring_lines(node) for node in file.nodes)
    return sum(1 for line in file.text.splitlines() if line.strip()) - docstrings
