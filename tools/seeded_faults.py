"""Seeds faults into the code, one at a time, and counts how many the default tests find.

    python -m tools.seeded_faults list --number=200 --out=tools/seeded_faults.json
    python -m tools.seeded_faults run --faults=tools/seeded_faults.json --out=found.jsonl [--checkout=DIR] [--workers=2]
    python -m tools.seeded_faults compare before.jsonl after.jsonl

A fault is a small change of one expression: another comparison, operator or constant, `and` for `or`,
a negated condition, `min` for `max`. `list` draws them with a fixed seed from the modules of `MODULES`, in
equal shares. Each is kept as its module, function and statement, so that the same fault can be seeded into
another commit, where the module may be in another package.

`run` copies the checkout, and for each fault runs the tests of its package that the default command runs,
and the conformance rows, to the first failure or for at most `--seconds` of CPU time. A fault is `found` by
a failed test or by one that hangs, `missed` when none fails in time, `gone` where the commit has no such
statement. An interrupted run goes on where it was: faults that are in the output are not run again.
"""

import argparse
import ast
import collections
import copy
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

# Module (its file's name within tflearn/) -> the folders of its tests. Those that a commit does not have are left out.
MODULES = {
    'chunks.py': ('replay', 'sampling'),
    'layout.py': ('core', 'replay', 'sampling'),
    'ring_source.py': ('sampling',),
    'ring_buffer.py': ('sampling',),
    'queue_source.py': ('sampling',),
    'minibatches.py': ('sampling',),
    'mix.py': ('sampling',),
    'mirror.py': ('sampling',),
    'parts.py': ('agents',),
    'control.py': ('coordinator',),
    'estimators.py': ('data', 'extensions/product'),
}
# Where a commit has it.
CONFORMANCE = ('tests/runs/conformance_test.py', 'tests/conformance_test.py')
SEED = 1
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
}
CALLS = {'min': 'max', 'max': 'min', 'minimum': 'maximum', 'maximum': 'minimum', 'any': 'all', 'all': 'any'}
# Statements whose words no test should have to know.
MESSAGES = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    lists = commands.add_parser('list', help='draw faults')
    lists.add_argument('--number', type=int, default=200)
    lists.add_argument('--out', type=pathlib.Path, required=True)
    runs = commands.add_parser('run', help='seed each fault, and run the tests')
    runs.add_argument('--faults', type=pathlib.Path, required=True)
    runs.add_argument('--out', type=pathlib.Path, required=True)
    runs.add_argument('--checkout', type=pathlib.Path, default=pathlib.Path('.'))
    runs.add_argument('--seconds', type=float, default=120.0, help='CPU seconds for the tests of a fault')
    runs.add_argument('--workers', type=int, default=2)
    compares = commands.add_parser('compare', help='show what two commits find')
    compares.add_argument('before', type=pathlib.Path)
    compares.add_argument('after', type=pathlib.Path)
    given = parser.parse_args(argv)
    if given.command == 'list':
        return write_list(given.number, given.out)
    if given.command == 'run':
        return run(given.faults, given.out, given.checkout.resolve(), given.seconds, given.workers)
    return compare(given.before, given.after)


def write_list(number: int, out: pathlib.Path) -> int:
    """Draws faults from each module in equal shares, and writes them;
    prints how many each module has.
    """
    draw = random.Random(SEED)
    shares = {name: draw.sample(each, len(each)) for name in MODULES if (each := list(faults_of(name)))}
    chosen: list[dict[str, Any]] = []
    while len(chosen) < number and any(shares.values()):
        chosen += [each.pop() for each in shares.values() if each]
    chosen = sorted(chosen[:number], key=lambda fault: (fault['module'], fault['function'], fault['before']))
    out.write_text(json.dumps(chosen, indent=1) + '\n', encoding='utf-8')
    for name, count in collections.Counter(fault['module'] for fault in chosen).items():
        print(f'{count:4d} {name}')
    return 0


def faults_of(module: str) -> Iterator[dict[str, Any]]:
    """Yields the faults of a module that are unambiguous:
    whose statement stands once in its function.
    """
    tree = ast.parse(path_of(pathlib.Path('.'), module).read_text(encoding='utf-8'))
    for name, function in functions(tree):
        statements = list(own_statements(function))
        times = collections.Counter(ast.unparse(statement) for statement in statements)
        for statement in statements:
            before = ast.unparse(statement)
            if times[before] > 1:
                continue
            for after in dict.fromkeys(changes(statement)):
                if after != before:
                    yield {'module': module, 'function': name, 'before': before, 'after': after}


def path_of(root: pathlib.Path, module: str) -> pathlib.Path:
    """Returns the only file of tflearn/ with this name."""
    found = list((root / 'tflearn').rglob(module))
    if len(found) != 1:
        raise SystemExit(f'got {len(found)} files named {module} in {root / "tflearn"}; need one')
    return found[0]


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yields the functions of a module and of its classes, by their qualified names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f'{node.name}.{each.name}', each) for each in node.body if isinstance(each, ast.FunctionDef))


def own_statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Yields the simple statements, and the heads of compound ones with their bodies,
    but no messages.
    """
    for node in ast.walk(function):
        is_text = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call)
        if not isinstance(node, ast.stmt) or isinstance(node, MESSAGES) or is_text:
            continue
        if 'logging.' in ast.unparse(node):
            continue
        # Compound statements are changed in their conditions only; what is in them comes by itself.
        yield node


def changes(statement: ast.stmt) -> Iterator[str]:
    """Yields the statement with one expression changed, as source."""
    blocks = [child for child in ast.walk(statement) if child is not statement and isinstance(child, ast.stmt)]
    inner = {id(node) for block in blocks for node in ast.walk(block)}
    messages = {id(node) for each in ast.walk(statement) if isinstance(each, ast.JoinedStr) for node in ast.walk(each)}
    nodes = list(ast.walk(statement))
    for i, node in enumerate(nodes):
        if id(node) in inner or id(node) in messages:
            continue
        for change in replacements(node):
            other = copy.deepcopy(statement)
            change(list(ast.walk(other))[i])
            yield ast.unparse(ast.fix_missing_locations(other))


def replacements(node: ast.AST) -> Iterator[Any]:
    """Yields functions that change a copy of the node in place."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        kind = COMPARISONS[type(node.ops[0])]
        yield lambda copied: copied.ops.__setitem__(0, kind())
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        operator = OPERATORS[type(node.op)]
        yield lambda copied: setattr(copied, 'op', operator())
    elif isinstance(node, ast.BoolOp):
        boolean = ast.And if isinstance(node.op, ast.Or) else ast.Or
        yield lambda copied: setattr(copied, 'op', boolean())
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield lambda copied: setattr(copied, 'test', ast.UnaryOp(ast.Not(), copied.test))
    elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        yield lambda copied: setattr(
            copied, 'value', not copied.value if type(copied.value) is bool else copied.value + 1
        )
    elif isinstance(node, ast.Name) and node.id in CALLS:
        yield lambda copied: setattr(copied, 'id', CALLS[copied.id])
    elif isinstance(node, ast.Attribute) and node.attr in CALLS:
        yield lambda copied: setattr(copied, 'attr', CALLS[copied.attr])


def seed_fault(root: pathlib.Path, fault: dict[str, Any]) -> tuple[pathlib.Path, str] | None:
    """Returns the file and its text with the fault;
    None where the checkout has no such statement.
    """
    path = path_of(root, fault['module'])
    source = path.read_text(encoding='utf-8')
    lines = source.splitlines(keepends=True)
    for name, function in functions(ast.parse(source)):
        if name != fault['function']:
            continue
        found = [each for each in own_statements(function) if ast.unparse(each) == fault['before']]
        if len(found) == 1:
            first, last = found[0].lineno - 1, found[0].end_lineno
            indent = ' ' * found[0].col_offset
            text = ''.join(f'{indent}{line}\n' for line in fault['after'].splitlines())
            return path, ''.join([*lines[:first], text, *lines[last:]])
    return None


def run(faults: pathlib.Path, out: pathlib.Path, checkout: pathlib.Path, seconds: float, workers: int) -> int:
    """Runs the tests for each fault that has no line in `out`; prints a line for each."""
    done = {json.dumps(line['fault']) for line in _lines(out)} if out.exists() else set()
    waiting = [fault for fault in json.loads(faults.read_text(encoding='utf-8')) if json.dumps(fault) not in done]
    print(f'{len(done)} faults are done, {len(waiting)} to do', flush=True)
    with tempfile.TemporaryDirectory(prefix='seeded_faults_') as folder, futures.ThreadPoolExecutor(workers) as pool:
        copies = [pathlib.Path(folder, str(i)) for i in range(workers)]
        for each in copies:
            _copy(checkout, each)
        free = list(copies)

        def one(fault: dict[str, Any]) -> dict[str, Any]:
            root = free.pop()
            try:
                return {'fault': fault, **_result(root, fault, seconds)}
            finally:
                free.append(root)

        for number, line in enumerate(pool.map(one, waiting), start=1):
            with out.open('a', encoding='utf-8') as file:
                file.write(json.dumps(line) + '\n')
            where = f'{line["fault"]["module"]} {line["fault"]["function"]}'
            print(f'{number}/{len(waiting)} {line["result"]:6s} {line["secs"]:5.0f} s {where} {line["by"]}', flush=True)
    return 0


def _copy(checkout: pathlib.Path, to: pathlib.Path) -> None:
    listed = subprocess.run(['git', 'ls-files', '-z'], cwd=checkout, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split('\0')):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        if (checkout / name).is_file():
            shutil.copy2(checkout / name, to / name)


def _result(root: pathlib.Path, fault: dict[str, Any], seconds: float) -> dict[str, Any]:
    seeded, start = seed_fault(root, fault), time.monotonic()
    if seeded is None:
        return {'result': 'gone', 'by': '', 'secs': 0.0}
    path, text = seeded
    original = path.read_text(encoding='utf-8')
    path.write_text(text, encoding='utf-8')
    try:
        result, by = 'missed', ''
        # One after the other, whatever order a checkout gives its tests within one command.
        for files in (tests_of(root, fault['module']), [name for name in CONFORMANCE if (root / name).exists()]):
            if result == 'missed' and seconds > 0:
                result, by, used = _tests(root, files, seconds)
                seconds -= used
    finally:
        path.write_text(original, encoding='utf-8')
    return {'result': result, 'by': by, 'secs': round(time.monotonic() - start, 1)}


def tests_of(root: pathlib.Path, module: str) -> list[str]:
    """Returns the test files of the module's package: first those that name the module."""
    stem = pathlib.Path(module).stem
    folders = [root / 'tests' / name for name in MODULES[module]]
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.rglob('*_test.py'))]
    named = [stem in path.name or f' {stem}' in path.read_text(encoding='utf-8') for path in files]
    ordered = [
        path for wanted in (True, False) for path, is_named in zip(files, named, strict=True) if is_named == wanted
    ]
    return [str(path.relative_to(root)) for path in ordered]


def _tests(root: pathlib.Path, files: Sequence[str], seconds: float) -> tuple[str, str, float]:
    """Runs the files to the first failure; also returns the CPU seconds.

    The deadline is in CPU seconds, so that a busy machine finds as much as a quiet one.
    """
    command = [sys.executable, '-B', '-m', 'pytest', '-x', '-q', '--no-header', '-p', 'no:cacheprovider', *files]
    environment = {**os.environ, 'PYTHONPATH': str(root), 'PYTHONDONTWRITEBYTECODE': '1'}
    process = subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        errors='replace',
    )
    chunks: list[str] = []
    with futures.ThreadPoolExecutor(1) as reader:
        reading = reader.submit(lambda: chunks.extend(process.stdout or []))
        deadline, out_of_time, used = time.monotonic() + 5 * seconds, False, 0.0
        while process.poll() is None:
            used = max(used, _cpu_secs(process.pid))
            out_of_time = used > seconds or time.monotonic() > deadline
            if out_of_time:
                break
            _wait(process, 1.0)
        if process.poll() is None or out_of_time:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reading.result()
    last = [line for line in chunks if line.startswith(('FAILED', 'ERROR'))]
    if out_of_time:
        # As many tests as fit have passed, or one of them hangs: the same for each commit that is compared.
        hangs = time.monotonic() > deadline
        return ('found', 'a test that does not end', used) if hangs else ('missed', 'no failure in time', used)
    if process.returncode == 0:
        return 'missed', '', used
    return 'found', (last[0].split(' - ')[0].strip() if last else f'exit status {process.returncode}'), used


def _wait(process: subprocess.Popen[str], secs: float) -> None:
    try:
        process.wait(secs)
    except subprocess.TimeoutExpired:
        return


def _cpu_secs(pid: int) -> float:
    """Returns the CPU seconds of a process and of its children that have ended;
    0 when it is gone.
    """
    try:
        fields = pathlib.Path(f'/proc/{pid}/stat').read_text(encoding='utf-8').rpartition(')')[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / os.sysconf('SC_CLK_TCK')


def compare(before: pathlib.Path, after: pathlib.Path) -> int:
    """Prints a table of what two commits find;
    returns 1 if the second finds fewer of those that both have.
    """
    results = [{json.dumps(line['fault']): line for line in _lines(path)} for path in (before, after)]
    both = [
        key
        for key in results[0]
        if key in results[1] and 'gone' not in (results[0][key]['result'], results[1][key]['result'])
    ]
    found = [sum(side[key]['result'] == 'found' for key in both) for side in results]
    for key in both:
        one, other = (side[key]['result'] for side in results)
        if one != other:
            fault = results[0][key]['fault']
            print(f'{one} -> {other}: {fault["module"]} {fault["function"]}: {fault["before"]!r} -> {fault["after"]!r}')
    gone = sum(line['result'] == 'gone' for line in results[1].values())
    print(f'{len(both)} faults in both: {found[0]} found before, {found[1]} after; {gone} statements are gone')
    return int(found[1] < found[0])


def _lines(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]


if __name__ == '__main__':
    sys.exit(main())
