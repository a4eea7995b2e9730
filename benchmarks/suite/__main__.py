"""What do the algorithms learn, in how many steps, beside other libraries? A table's runs, by one resumable command.

    python -m benchmarks.suite --rows ppo_cartpole dqn_cartpole --seeds=5 --max_secs=7000

For each row of `rows.py`, each seed and each side it makes a run in processes of its own, and adds a line to
`benchmarks/results/`. What has a line with the same settings is not run again; to repeat a run, remove its line. With
--max_secs no run begins after that time, so the command can be run in parts; a run that was killed has no line and is
made again from its start. A run that fails has a line with its error.

Both sides evaluate by the mode, over the same number of episodes, at the same marks. Peers are run where their
environment is (requirements_peers.txt says how to make it). There, too, are the statistics made of the lines
(`statistics.py`, by rliable); `page.py` then writes docs/results.md and its pictures.
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

from benchmarks.suite import results as suite_results
from benchmarks.suite import zoo
from benchmarks.suite.rows import OURS, RESULTS, ROWS, Row

ROOT = pathlib.Path(__file__).resolve().parents[2]

LIMIT_SECS = 7_000.0  # of a run
_ERROR_CHARS = 300


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the runs that are missing, then the statistics and the page; returns 1 if a run failed."""
    options = _parser().parse_args(arguments)
    failed = 0
    begun = time.monotonic()
    missing = _missing(options)
    for i, (key, side, seed) in enumerate(missing):
        if time.monotonic() - begun > options.max_secs:
            _log(f'{len(missing) - i} runs are left: --max_secs={options.max_secs:g} is over')
            break
        hours = sum(_estimated_secs(options.results, *each[:2]) for each in missing[i:]) / 3600
        _log(f'run {i + 1} of {len(missing)}: {key}, {side}, seed {seed}; all that are left take about {hours:.1f} h')
        result = run(ROWS[key], side, seed, options.peers_python)
        suite_results.append(options.results, key, result)
        failed += result['error'] is not None
        _log(f'{key}, {side}, seed {seed}: {result["error"] or result["curve"][-1]}, {result["secs"]:.0f} s')
    if not options.no_page and options.peers_python.exists():
        for program, python in (('statistics', options.peers_python), ('page', sys.executable)):
            command = [python, '-m', f'benchmarks.suite.{program}', f'--results={options.results}']
            subprocess.run(command, check=True, cwd=ROOT, timeout=LIMIT_SECS)
    return int(failed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f'rows: {", ".join(ROWS)}',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sides = [OURS, *zoo.MODULES]
    default = ', default: all'
    parser.add_argument(
        '--rows', nargs='+', choices=ROWS, default=list(ROWS), metavar='ROW', help=f'see below{default}'
    )
    parser.add_argument('--sides', nargs='+', choices=sides, default=sides, help=f'who learns{default} that a row has')
    parser.add_argument('--seeds', type=int, default=5, help='runs of each side, with the seeds 1, 2, ...; default: 5')
    parser.add_argument('--max_secs', type=float, default=float('inf'), help='begins no run after so long')
    parser.add_argument(
        '--peers_python',
        type=pathlib.Path,
        default=ROOT / 'peers_environment' / 'bin' / 'python',
        help="the interpreter of the peers' environment; without it there are only our runs, and no page",
    )
    parser.add_argument('--results', type=pathlib.Path, default=RESULTS, help='directory of the lines')
    parser.add_argument('--no_page', action='store_true', help='only runs')
    return parser


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _missing(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Returns (row, side, seed) of the runs that have no line yet: of a row all seeds, of a seed all sides."""
    found = []
    for key in options.rows:
        row = ROWS[key]
        done = {(each['side'], each['seed']) for each in suite_results.read(options.results, key, row)}
        sides = [side for side in (OURS, *row.peers) if side in options.sides]
        sides = [side for side in sides if side == OURS or options.peers_python.exists()]
        wanted = [(side, seed) for seed in range(1, options.seeds + 1) for side in sides]
        found += [(key, *each) for each in wanted if each not in done]
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
    return {'side': side, 'seed': seed, 'error': error, 'secs': secs, **result, 'settings': settings}


def _reason(log: pathlib.Path) -> str:
    """Returns the last error that a run logged; that a program of it failed is none. Without one, its last line."""
    lines = log.read_text(encoding='utf-8', errors='replace').strip().split('\n')
    errors = [line for line in lines if 'Error' in line and 'CalledProcessError' not in line]
    return (errors or lines)[-1]


if __name__ == '__main__':
    sys.exit(main())
