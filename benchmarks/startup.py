"""How long does a run take from the shell to its first environment step? Beside the import of its libraries alone.

    python benchmarks/startup.py --rounds=5

Interleaved: one process that imports TensorFlow, TF-Agents, Reverb (where it is) and Gymnasium, and ends;
`tflearn-launch` until the first environment step; and the three jobs by hand, started at once. The times of the phases
are those of the jobs' logs [s after the command]; the first environment step is recorded by the environment. Each row
is a median of the rounds.
"""

import datetime
import importlib.util
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, recorded_environment, recorded_runs  # noqa: E402

IMPORTS = 'import tflearn, tensorflow, tf_agents, gymnasium' + ', reverb' * bool(importlib.util.find_spec('reverb'))
SIDES = {'launch': ('launch',), 'by hand': recorded_runs.JOBS}
# Phase -> the job in whose log it is, and the text of its line.
PHASES = {
    'the train job has its libraries and settings': ('train', r'got no seed|training on \d+'),
    'the replay server listens': ('replay_server', r'replay server on port'),
    'the train job has the data and the agent': ('train', r'replica\(s\) fed by'),
    'the learner is made': ('train', r'learner: \d+ replica'),
}
FIRST_STEP = 'the first environment step'
_TIME = re.compile(r'^[IWE] (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) ', re.M)


def main() -> int:
    """Prints the table; returns 1 if `tflearn-launch` takes longer than --at_most imports."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--gin_file', default='ppo_cartpole')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--sides', nargs='+', choices=SIDES, default=list(SIDES))
    parser.add_argument('--at_most', type=float, default=1.6, help='of the imports')
    options = parser.parse_args()
    imports: list[float] = []
    times: dict[str, list[dict[str, float]]] = {side: [] for side in options.sides}
    for i in range(options.rounds):
        imports.append(import_secs())
        for side in options.sides:
            times[side].append(start(options.gin_file, SIDES[side], i))
            print(f'round {i + 1}: imports {imports[-1]:.2f} s, {side} {times[side][-1]}', file=sys.stderr, flush=True)
    print(table(imports, times))
    command_line.write(options.json, {'imports': imports, **times})
    ratios = [found[FIRST_STEP] / alone for found, alone in zip(times.get('launch', []), imports, strict=False)]
    return int(bool(ratios) and statistics.median(ratios) > options.at_most)


def import_secs() -> float:
    """Returns the seconds of a process that imports the libraries and ends."""
    begun = time.monotonic()
    subprocess.run([sys.executable, '-c', IMPORTS], check=True, capture_output=True, timeout=300)
    return time.monotonic() - begun


def start(gin_file: str, programs: tuple[str, ...], seed: int) -> dict[str, float]:
    """Starts a run, ends it after its first environment step, and returns when it reached each phase [s]."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'episodes.jsonl'
        recorded_runs.run(gin_file, path, seed, goal=float('inf'), limit_secs=0.1, programs=programs)
        with open(path, encoding='utf-8') as lines:
            given = json.loads(next(lines))['command']
        first_step, _ = recorded_environment.read(path)
        if first_step is None:
            raise RuntimeError(f'got no environment step within {recorded_runs.START_SECS:.0f} s')
        found = {}
        for phase, (job, text) in PHASES.items():
            logs = [path.with_name(f'{job}.log'), path.parent / 'run' / 'logs' / f'{job}.log']
            reached = next((at for log in logs if log.exists() and (at := _reached(log, text)) is not None), None)
            if reached is not None:
                found[phase] = round(reached - given, 2)
        return found | {FIRST_STEP: round(first_step - given, 2)}


def _reached(log: pathlib.Path, text: str) -> float | None:
    """Returns the time of the first line of a log that has the text [s since 1970]."""
    for line in log.read_text(encoding='utf-8', errors='replace').splitlines():
        at = _TIME.match(line)
        if at and re.search(text, line):
            return datetime.datetime.strptime(at.group(1), '%Y-%m-%d %H:%M:%S,%f').timestamp()
    return None


def table(imports: list[float], times: dict[str, list[dict[str, float]]]) -> str:
    """Returns the medians, with the median of the rounds' ratios to the imports."""
    alone = statistics.median(imports)
    lines = [f'| seconds after the command | {" | ".join(times)} |', '|---' * (1 + len(times)) + '|']
    lines.append(f'| one process imports the libraries and ends | {" | ".join([f"{alone:.1f}"] * len(times))} |')
    for phase in [*PHASES, FIRST_STEP]:
        cells = []
        for found in times.values():
            known = [one[phase] for one in found if phase in one]
            cells.append(f'{statistics.median(known):.1f}' if known else '-')
        lines.append(f'| {phase} | {" | ".join(cells)} |')
    ratios = [
        statistics.median(one[FIRST_STEP] / secs for one, secs in zip(found, imports, strict=True))
        for found in times.values()
    ]
    lines.append(f'| of the imports, median of the rounds | {" | ".join(f"{ratio:.2f}" for ratio in ratios)} |')
    return '\n'.join(lines)


if __name__ == '__main__':
    sys.exit(main())
