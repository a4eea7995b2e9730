"""Does every agent take every kind of structured observation and action, over every path of the data?

    python -m benchmarks.conformance

Each cell collects from an environment, trains a step, exports the policy, loads it in TensorFlow alone and compares its
actions; or the agent refuses it in one line. A cell's result is a line of the file, and cells whose line is there are
not run again, so the program can be stopped and started. At the end it prints the table.
"""

import argparse
import collections
import json
import pathlib
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.testing import conformance_cells as cells
from tests.testing import replay

PASSED, REFUSED, FAILED = 'passed', 'refused', 'failed'
Results = dict[tuple[str, ...], dict[str, Any]]


def main() -> int:
    """Runs the cells that are not in the file, prints the table; returns 1 if one failed or is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--file', type=pathlib.Path, default=pathlib.Path('conformance.jsonl'), help='the results')
    parser.add_argument('--secs', type=float, default=None, help='begins no further cell after this time')
    parser.add_argument('--again', action='store_true', help='runs cells that failed again')
    parser.add_argument('--quick', action='store_true', help='the first five cells only')
    options = parser.parse_args()
    warnings.simplefilter('ignore', np.VisibleDeprecationWarning)
    chosen = cells.CELLS[:5] if options.quick else cells.CELLS
    done = read(options.file)
    start = time.monotonic()
    for cell in chosen:
        if cell in done and not (options.again and done[cell]['result'] == FAILED):
            continue
        if options.secs is not None and time.monotonic() - start > options.secs:
            break
        done[cell] = run(cell)
        with options.file.open('a') as file:
            file.write(json.dumps(done[cell]) + '\n')
        print(*cell, done[cell]['result'], f'{done[cell]["secs"]:.1f} s', sep=' - ', flush=True)
    print(table(done))
    results = collections.Counter(done[cell]['result'] if cell in done else 'missing' for cell in chosen)
    print(', '.join(f'{count} {result}' for result, count in results.items()))
    return int(bool(results['missing'] or results[FAILED]))


def read(file: pathlib.Path) -> Results:
    """Returns the newest result of each cell of a file; nothing if there is none."""
    lines = file.read_text().splitlines() if file.exists() else []
    results = [json.loads(line) for line in lines if line.endswith('}')]  # the last line may be half written
    return {(result['agent'], result['task'], result['path']): result for result in results}


def run(cell: tuple[str, str, str]) -> dict[str, Any]:
    """Runs a cell; returns its result."""
    start, detail = time.monotonic(), ''
    result = PASSED if cells.possible(*cell) else REFUSED
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        try:
            if result == REFUSED:
                detail = cells.refusal(*cell)
            else:
                with replay.serving(path) as serve:
                    cells.run(*cell, path / 'policies', serve)
        except Exception as error:  # the next cells are still to be run
            result, detail = FAILED, f'{type(error).__name__}: {error}'[:500]
    agent, task, way = cell
    secs = round(time.monotonic() - start, 1)
    return {'agent': agent, 'task': task, 'path': way, 'result': result, 'secs': secs, 'detail': detail}


def table(done: Mapping[tuple[str, ...], Mapping[str, Any]]) -> str:
    """Returns the results as Markdown: for each task and agent the number of paths that passed, of those it has."""
    lines = ['| | ' + ' | '.join(cells.AGENTS) + ' |', '|---' * (len(cells.AGENTS) + 1) + '|']
    for task in cells.TASKS:
        entries = []
        for agent in cells.AGENTS:
            results = [done.get((agent, task, path), {}).get('result') for path in cells.PATHS]
            wanted = sum(cells.possible(agent, task, path) for path in cells.PATHS)
            entries.append(f'{results.count(PASSED)} of {wanted}' if wanted else 'refused')
        lines.append(f'| {task} | ' + ' | '.join(entries) + ' |')
    return '\n'.join(lines)


if __name__ == '__main__':
    sys.exit(main())
