"""What do the algorithms learn, in how many steps, beside other libraries? A table's runs, by one resumable command.

    nice -n 19 python -m benchmarks.suite --rows ppo_cartpole dqn_cartpole --max_secs=7000
    python -m benchmarks.suite --budget

For each row of `rows.py`, in the order of budget.json, each fresh seed and each side it makes a run in processes of its
own, and adds a line to `benchmarks/results/`. What has a line with the same settings is not run again; to repeat a run,
remove its line. It can be killed at any time: a run without a line is made again from its start. With --max_secs no run
begins after that time. A run that fails has a line with its error. No run begins of a row whose hours are spent;
--budget prints them. Settings are chosen on the tuning seeds, 1 to 10, and not here: by tflearn seeds, whose default
seeds these are, and tflearn compare. Each result names its commit, so fresh seeds need a checkout without changes; when
what a gin file binds has changed, the results by it do not count any more.

Both sides evaluate by the mode, over the same number of episodes, at the same marks. Peers are run where their
environment is (requirements_peers.txt says how to make it). At the end `page.py` writes docs/results.md.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.suite import process as suite_process
from benchmarks.suite import results as suite_results
from benchmarks.suite import zoo
from benchmarks.suite.process import ROOT
from benchmarks.suite.rows import BUDGET, OURS, RESULTS, ROWS, SEEDS, Row

LIMIT_SECS = 7_000.0  # of a run
_ERROR_CHARS = 300


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the runs that are missing, then the page; returns 1 if a run failed."""
    options = _parser().parse_args(arguments)
    if options.budget:
        print(budget(options.results, options.rows))
        return 0
    failed = 0
    begun = time.monotonic()
    missing = _missing(options)
    for i, (key, side, seed) in enumerate(missing):
        if time.monotonic() - begun > options.max_secs:
            _log(f'{len(missing) - i} runs are left: --max_secs={options.max_secs:g} is over')
            break
        hours = sum(_estimated_secs(options.results, *each[:2]) for each in missing[i:]) / 3600
        _log(f'run {i + 1} of {len(missing)}: {key}, {side}, seed {seed}; all that are left take about {hours:.1f} h')
        if seed >= ROWS[key].fresh_seed and suite_process.revision().endswith('-dirty'):
            _log(f'got a checkout with changes for the fresh seed {seed}; need a commit: it is named by the result')
            return 1
        result = run(ROWS[key], side, seed, options.peers_python)
        suite_results.append(options.results, key, result)
        failed += result['error'] is not None
        _log(f'{key}, {side}, seed {seed}: {result["error"] or result["curve"][-1]}, {result["secs"]:.0f} s')
    if not options.no_page:
        command = [sys.executable, '-m', 'benchmarks.suite.page', f'--results={options.results}']
        subprocess.run(command, check=True, cwd=ROOT, timeout=LIMIT_SECS)
    return int(failed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f'rows: {", ".join(BUDGET)}',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sides = [OURS, *zoo.MODULES]
    default = ', default: all'
    parser.add_argument(
        '--rows', nargs='+', choices=BUDGET, default=list(BUDGET), metavar='ROW', help=f'see below{default}'
    )
    parser.add_argument('--sides', nargs='+', choices=sides, default=sides, help=f'who learns{default} that a row has')
    parser.add_argument(
        '--seeds', type=int, nargs='+', help=f'of the runs; default: the first {SEEDS} fresh ones of a row'
    )
    parser.add_argument('--budget', action='store_true', help='only prints the hours of each row: given, spent, left')
    parser.add_argument('--max_secs', type=float, default=float('inf'), help='begins no run after so long')
    parser.add_argument(
        '--peers_python',
        type=pathlib.Path,
        default=ROOT / 'peers_environment' / 'bin' / 'python',
        help="the interpreter of the peers' environment; without it there are only our runs",
    )
    parser.add_argument('--results', type=pathlib.Path, default=RESULTS, help='directory of the lines')
    parser.add_argument('--no_page', action='store_true', help='only runs')
    return parser


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def budget(directory: pathlib.Path, keys: Sequence[str]) -> str:
    """Returns a table: the hours of each row's fresh seeds that are its budget, were spent, and are needed still."""
    lines = ['| row | budget, h | spent, h | needed, h | runs that are missing |', '|---|---|---|---|---|']
    totals = [0.0, 0.0, 0.0, 0]
    for key in keys:
        missing = [each for each in _wanted(ROWS[key], None) if each not in _done(directory, key)]
        needed = sum(_estimated_secs(directory, key, side) for side, _ in missing) / 3600
        cells = [BUDGET[key], _spent_hours(directory, key), needed, len(missing)]
        totals = [total + cell for total, cell in zip(totals, cells, strict=True)]
        lines.append('| {} | {:.1f} | {:.1f} | {:.1f} | {} |'.format(key, *cells))
    return '\n'.join([*lines, '| all | {:.1f} | {:.1f} | {:.1f} | {} |'.format(*totals)])


def _wanted(row: Row, seeds: Sequence[int] | None) -> list[tuple[str, int]]:
    """Returns (side, seed): of a seed all sides; without `seeds` of the first fresh ones."""
    numbers = seeds or range(row.fresh_seed, row.fresh_seed + SEEDS)
    return [(side, seed) for seed in numbers for side in (OURS, *row.peers)]


def _done(directory: pathlib.Path, key: str) -> set[tuple[str, int]]:
    return {(each['side'], each['seed']) for each in suite_results.read(directory, key, ROWS[key])}


def _spent_hours(directory: pathlib.Path, key: str) -> float:
    """Returns the hours of a row's runs with fresh seeds."""
    row = ROWS[key]
    return (
        sum(each['secs'] for each in suite_results.read(directory, key, row) if each['seed'] >= row.fresh_seed) / 3600
    )


def _missing(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Returns (row, side, seed) of the runs that have no line yet, of rows within their budget."""
    found = []
    for key in options.rows:
        if (spent := _spent_hours(options.results, key)) >= BUDGET[key]:
            _log(f'{key}: no more runs, {spent:.1f} h are spent of its budget of {BUDGET[key]:g} h')
            continue
        done = _done(options.results, key)
        found += [
            (key, side, seed)
            for side, seed in _wanted(ROWS[key], options.seeds)
            if side in options.sides and (side == OURS or options.peers_python.exists()) and (side, seed) not in done
        ]
    return found


def _estimated_secs(directory: pathlib.Path, key: str, side: str) -> float:
    """Returns the median of the runs that the side has had of that row; before there is one, the row's estimate."""
    row = ROWS[key]
    runs = suite_results.by_side(suite_results.read(directory, key, row)).get(side, [])
    secs = [each['secs'] for each in runs if each['error'] is None]
    return statistics.median(secs) if secs else 60 * row.minutes


def run(row: Row, side: str, seed: int, peers_python: pathlib.Path) -> dict[str, Any]:
    """Makes a run and returns its line; `error` is None unless it failed.

    Args:
      peers_python: the interpreter of the peers' environment.
    """
    settings = row.settings(side)
    with tempfile.TemporaryDirectory() as temporary:
        output, log = pathlib.Path(temporary, 'result.json'), pathlib.Path(temporary, 'log')
        program = ['benchmarks.suite.run'] if side == OURS else ['benchmarks.suite.peers', f'--side={side}']
        flags = [
            f'--settings={json.dumps(settings)}',
            f'--seed={seed}',
            f'--output={output}',
            f'--parent={os.getpid()}',
        ]
        command = [sys.executable if side == OURS else str(peers_python), '-m', *program, *flags]
        start = time.monotonic()
        with log.open('w', encoding='utf-8') as written:
            try:
                process = subprocess.run(
                    command, stdout=written, stderr=subprocess.STDOUT, cwd=ROOT, timeout=LIMIT_SECS, check=False
                )
                error = None if process.returncode == 0 else f'exit status {process.returncode}'
            except subprocess.TimeoutExpired:
                error = f'no end after {LIMIT_SECS:g} s'
        secs = round(time.monotonic() - start, 1)
        if error is not None:
            error = f'{error}: {_reason(log).replace(temporary, "...")}'[:_ERROR_CHARS]
        result = {} if error else json.loads(output.read_text(encoding='utf-8'))
    named = {'commit': suite_process.revision(), 'starts': suite_process.STARTS}
    return {'side': side, 'seed': seed, 'error': error, 'secs': secs, **named, **result, 'settings': settings}


def _reason(log: pathlib.Path) -> str:
    """Returns the last error that a run logged; that a program of it failed is none. Without one, its last line."""
    lines = log.read_text(encoding='utf-8', errors='replace').strip().split('\n')
    errors = [line for line in lines if 'Error' in line and 'CalledProcessError' not in line]
    return (errors or lines)[-1]


if __name__ == '__main__':
    sys.exit(main())
