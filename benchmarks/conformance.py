"""Does every agent take every kind of observation and action, over every path of the data, as users run it?

    python -m benchmarks.conformance

Runs the cells of `tests/testing/conformance_cells.py` that have each pair of agent, observation, action and path, and a
cell for each choice that an agent refuses. A cell's result is a line of the file, with the commit, and pairs that are
there are not run again, so the program can be stopped and started. At the end it prints the tables.
"""

import argparse
import collections
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from tests.testing import conformance_cells as cells
from tests.testing import forks, plain_loader
from tests.testing.plain_loader import PlainLoader

TRAINED, REFUSED, FAILED = 'trained', 'refused', 'failed'
CELLS_OF_A_PROCESS = 5
TIMEOUT_SECS = 3_600.0
Results = dict[cells.Cell, dict[str, Any]]


def main() -> int:
    """Runs the cells that are not in the file, prints the tables; returns 1 if one failed or is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--file', type=pathlib.Path, default=pathlib.Path('conformance.jsonl'), help='the results')
    parser.add_argument('--secs', type=float, default=None, help='begins no further process after this time')
    parser.add_argument('--again', action='store_true', help='runs cells that failed again')
    parser.add_argument('--quick', action='store_true', help='the first two cells only')
    parser.add_argument('--cells', help='runs these in this process: a JSON list')
    options = parser.parse_args()
    if options.cells:
        run_here([(*cell,) for cell in json.loads(options.cells)], options.file.resolve())
        return 0
    done, start = read(options.file), time.monotonic()
    trained = cells.cover(2, [cell for cell in done if cells.possible(*cell)] or cells.cover(1))
    chosen = trained[:2] if options.quick else [*trained, *cells.refused()]
    wanted = [cell for cell in chosen if cell not in done or (options.again and done[cell]['result'] == FAILED)]
    for i in range(0, len(wanted), CELLS_OF_A_PROCESS):
        if options.secs is not None and time.monotonic() - start > options.secs:
            break
        given = json.dumps(wanted[i : i + CELLS_OF_A_PROCESS])
        arguments = (f'--file={options.file.resolve()}', f'--cells={given}')
        print(forks.run('benchmarks.conformance', *arguments, timeout=TIMEOUT_SECS).stdout, end='', flush=True)
    done = read(options.file)
    print(tables(done))
    results = collections.Counter(done[cell]['result'] if cell in done else 'open' for cell in chosen)
    print(', '.join(f'{count} {result}' for result, count in results.items()))
    return int(bool(results['open'] or results[FAILED]))


def read(file: pathlib.Path) -> Results:
    """Returns the newest result of each cell of a file that is still to be had; nothing if there is none."""
    lines = file.read_text().splitlines() if file.exists() else []
    results = [json.loads(line) for line in lines if line.endswith('}')]  # the last line may be half written
    newest = {tuple(result['cell']): result for result in results}
    known = {cell: result for cell, result in newest.items() if cell[0] in cells.AGENTS}
    return {cell: result for cell, result in known.items() if result['result'] in (FAILED, expected(cell))}


def expected(cell: cells.Cell) -> str:
    """Returns what a cell's result is to be."""
    return TRAINED if cells.possible(*cell) else REFUSED


def run_here(chosen: list[cells.Cell], file: pathlib.Path) -> None:
    """Runs cells; adds their results to the file."""
    newest = ['git', 'log', '-1', '--format=%h', '--', 'tflearn']  # that changed what is tested
    commit = subprocess.run(newest, capture_output=True, text=True, check=True, cwd=forks.CHECKOUT)
    with plain_loader.started() as plain:
        for cell in chosen:
            result = {'cell': cell, **run(cell, plain), 'commit': commit.stdout.strip()}
            with file.open('a') as out:
                out.write(json.dumps(result) + '\n')
            print(*cell, result['result'], f'{result["secs"]:.1f} s', result['detail'], sep=' - ', flush=True)


def run(cell: cells.Cell, plain: PlainLoader) -> dict[str, Any]:
    """Runs a cell; returns its result."""
    start, detail, result = time.monotonic(), '', expected(cell)
    with tempfile.TemporaryDirectory() as folder:
        try:
            if result == REFUSED:
                detail = cells.refusal(cell, pathlib.Path(folder))
                assert detail.startswith('got ') and '\n' not in detail, detail
            else:
                one = cells.Run(cell, pathlib.Path(folder))
                one.train()
                one.check(plain)
        except Exception as error:  # the next cells are still to be run
            result, detail = FAILED, f'{type(error).__name__}: {error}'[:500]
    return {'result': result, 'secs': round(time.monotonic() - start, 1), 'detail': detail}


def tables(done: Mapping[cells.Cell, Mapping[str, Any]]) -> str:
    """Returns the results as Markdown: for each agent and value of a factor, how many cells were trained."""
    return '\n\n'.join(table(done, factor) for factor in (1, 2, 3))


def table(done: Mapping[cells.Cell, Mapping[str, Any]], factor: int) -> str:
    """Returns the table of a factor: 1 is the observation, 2 the action, 3 the path."""
    values = [*cells.FACTORS[factor]]
    can_work = {(cell[0], cell[factor]) for cell in itertools.product(*cells.FACTORS) if cells.possible(*cell)}
    lines = ['| | ' + ' | '.join(values) + ' |', '|---' * (len(values) + 1) + '|']
    for agent in cells.AGENTS:
        entries = []
        for value in values:
            found = [line['result'] for cell, line in done.items() if cell[0] == agent and cell[factor] == value]
            counts = collections.Counter(found)
            no_result = 'open' if (agent, value) in can_work or not counts[REFUSED] else REFUSED
            entries.append(f'{counts[FAILED]} failed' if counts[FAILED] else str(counts[TRAINED] or no_result))
        lines.append(f'| {agent} | ' + ' | '.join(entries) + ' |')
    return '\n'.join(lines)


if __name__ == '__main__':
    sys.exit(main())
