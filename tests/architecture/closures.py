"""What an import loads: the project's modules and their code lines, agents and packaged tasks left out.

A reader who wants to know what a job does has to hold all that it loads, whoever imports it.
"""

import ast
import functools
import json
import pathlib
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEFT_OUT = ('tflearn/agents/', 'tflearn/extensions/tasks/')
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
# One process imports TensorFlow, and for each entry a copy of it imports the entry: TensorFlow takes seconds.
PROGRAM = """
import json, os, sys
import tensorflow, tf_agents.agents

for statement in sys.argv[1:]:
    sys.stdout.flush()
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            os._exit(1)
        continue
    exec(statement)
    paths = [getattr(module, '__file__', None) for name, module in sys.modules.items() if name.startswith('tflearn')]
    print(json.dumps([path for path in paths if path]), flush=True)
    os._exit(0)
"""


def loaded(statements: list[str]) -> list[dict[str, int]]:
    """Returns for each import statement the files that it loads, relative to the checkout, with their code lines."""
    done = subprocess.run(
        [sys.executable, '-c', PROGRAM, *statements], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('[')]
    files = [[pathlib.Path(path).relative_to(ROOT).as_posix() for path in paths] for paths in found]
    return [{name: code_lines(ROOT / name) for name in names if not name.startswith(LEFT_OUT)} for names in files]


@functools.cache
def code_lines(path: pathlib.Path) -> int:
    """Returns the lines that hold a token which is neither a comment nor part of a docstring."""
    with path.open('rb') as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in NO_CODE]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)
