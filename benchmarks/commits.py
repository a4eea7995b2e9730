"""Is one commit slower than another, or one lane? Benchmarks of two checkouts, or two Pythons, interleaved.

    python -m benchmarks.commits OLD NEW --rounds=9 --json=FILE
    python -m benchmarks.commits CLASSIC/bin/python CURRENT/bin/python --cases 'train steps' serving start-up \\
        'PPO to a return' 'DQN to a return' --rounds=5 --at_least=0.9 --json=FILE

OLD and NEW are checkouts with an environment of their own in `.venv`, or the Pythons that run this checkout. In each
round each benchmark runs once in both, first in the one, in the next round first in the other; what is in FILE is not
run again. A ratio is new / old of speed, so above 1 is faster, or old / new of memory. The table has the median of the
rounds' ratios and its 95% interval, by a bootstrap over rounds. Memory is that of the largest process. Exits with 1 if
a median is below --at_least and its interval excludes 1.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = {
    'train steps': ['train_loops', '--secs=2', '--cases', 'DQN 100-50', 'PPO 64-64', 'SAC 256-256'],
    'learner': ['learner', '--cases=dqn', '--num_stored=20000', '--sides=mirror,xla_loop,prioritized_mirror'],
    'collection': ['collect', '--secs=2', '--ours', 'native', 'in_process', 'worker_processes'],
    'serving': ['serving', '--cases=mlp', '--clients=4'],
    'start-up': ['startup', '--sides', 'launch', '--at_most=100'],
    'PPO to a return': ['time_to_return', '--sides=PPO'],
    'DQN to a return': ['time_to_return', '--task=dqn', '--sides=DQN'],
    'quickstart': ['time_to_return', '--task=dqn', '--sides', 'DQN launch'],
}
_DRAWS = 10_000
# With TF-Agents' Keras, whatever a benchmark imports first.
_START = 'import runpy, sys, tflearn; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__")'
_LIMIT = ': limit'  # rows of the agent's train step alone


def main() -> int:
    """Runs what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('old', type=pathlib.Path, help='a checkout, or a Python')
    parser.add_argument('new', type=pathlib.Path, help='a checkout, or a Python')
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--cases', nargs='+', choices=CASES, default=list(CASES))
    parser.add_argument('--at_least', type=float, default=0.95, help='the lowest ratio that is good enough')
    parser.add_argument('--json', type=pathlib.Path, required=True, help='keeps the figures of each round')
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = json.loads(options.json.read_text()) if options.json.exists() else {}
    for i in range(options.rounds):
        for case in options.cases:
            for side in ('old', 'new') if i % 2 == 0 else ('new', 'old'):
                key = f'{case} {i} {side}'
                if key not in found:
                    found[key] = measure(getattr(options, side).absolute(), case, i)
                    options.json.write_text(json.dumps(found, indent=1))
                    print(key, found[key], file=sys.stderr, flush=True)
    print('| what | old | new | ratio | 95% interval |\n|---|---|---|---|---|')
    slower = False
    for name, (old, new) in rounds(found, options).items():
        ratios = np.divide(new, old) if name.endswith('/s') else np.divide(old, new)
        draws = np.random.default_rng(0).choice(ratios, (_DRAWS, len(ratios)))
        low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
        median = statistics.median(ratios)
        slower |= median < options.at_least and high < 1
        print(
            f'| {name} | {statistics.median(old):.4g} | {statistics.median(new):.4g} | {median:.2f} | '
            f'{low:.2f} to {high:.2f} |'
        )
    return int(slower)


def rounds(found: Mapping[str, Mapping[str, float]], options: argparse.Namespace) -> dict[str, tuple[list, list]]:
    """Returns figure -> its values of all rounds in both checkouts; a figure that one of them has not is left out."""
    values: dict[str, tuple[list[float], list[float]]] = {}
    for case in options.cases:
        for i in range(options.rounds):
            old, new = (found[f'{case} {i} {side}'] for side in ('old', 'new'))
            for name in old.keys() & new.keys():
                both = values.setdefault(f'{case}: {name}', ([], []))
                both[0].append(old[name])
                both[1].append(new[name])
    return dict(sorted(values.items()))


def measure(side: pathlib.Path, case: str, i: int) -> dict[str, float]:
    """Runs a benchmark of a checkout, or by a Python; returns its figures, whose names end in their units."""
    checkout, python = (ROOT, side) if side.is_file() else (side, side / '.venv/bin/python')
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder, 'result.json')
        program, *flags = CASES[case]
        flags += [f'--first_seed={i + 1}', '--seeds=1'] if program == 'time_to_return' else ['--rounds=1']
        command = [str(python), '-c', _START, f'benchmarks/{program}.py', *flags, f'--json={output}']
        with open(pathlib.Path(folder, 'log'), 'w+') as log:
            process = subprocess.Popen(command, cwd=checkout, stdout=log, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if not output.exists():
                log.seek(0)
                sys.exit(f'{side}: {case} failed: {log.read()[-2000:]}')
        figures = read(json.loads(output.read_text()))
    return {**figures, 'largest process, MB': usage.ru_maxrss / 1e3}


def read(results: Any) -> dict[str, float]:
    """Returns the figures of a benchmark's results, with their units in their names."""
    if isinstance(results, list):
        rows = [each for each in results if _LIMIT not in each['case'] and 'p99' not in each['metric']]
        found = {f'{each["case"]}: {_metric(each)}, {each["unit"]}': each['ours'] for each in rows}
        plain = {f'{each["case"]}: plain, {each["unit"]}': each['limit'] for each in rows if _is_loop(each)}
        return found | plain
    if 'launch' in results:
        return {f'{name}, s': secs for name, secs in results['launch'][0].items()}
    ((run,),) = results.values()
    return {'training, s': run['secs'], 'whole command, s': run['command_secs']}


def _metric(row: Mapping[str, Any]) -> str:
    return str(row['metric']).partition(';')[0]  # behind it is what differs from run to run


def _is_loop(row: Mapping[str, Any]) -> bool:
    return str(row['metric']).startswith('XLA')  # beside the plain program


if __name__ == '__main__':
    sys.exit(main())
