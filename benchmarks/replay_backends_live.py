"""How fast do whole runs train over each replay backend? CartPole by separate jobs, Reverb against Valkey, interleaved.

    python benchmarks/replay_backends_live.py --rounds=3 --json=results.json

Starts `tflearn-launch` with DQN (a mirrored uniform replay) and PPO (a queue), both as in `gin/`, without a target, and
takes the train steps/s of its status while it trains. The server is the job replay_server and what it has started;
`cores` is its processor time for each second, the memory its resident set. The jobs share this machine.
"""

import collections
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import psutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line  # noqa: E402
from tflearn.core.waiting import wait_until  # noqa: E402
from tflearn.files.run_dir import RunDir, read_json  # noqa: E402
from tflearn.replay import backend  # noqa: E402

KINDS = (backend.REVERB, backend.VALKEY)
GIN_FILES = {'DQN': 'dqn_cartpole', 'PPO': 'ppo_cartpole'}
_DEADLINE_SECS, _WARM_UP_SECS = 180.0, 5.0


def main() -> int:
    """Measures, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--secs', type=float, default=15.0, help='of each measurement')
    parser.add_argument('--quick', action='store_true', help='one short round, to see that it works')
    options = parser.parse_args()
    rounds, secs = (1, 2.0) if options.quick else (options.rounds, options.secs)
    found: dict[str, dict[str, list[dict[str, float]]]] = {name: collections.defaultdict(list) for name in GIN_FILES}
    for _ in range(rounds):
        for name, gin_file in GIN_FILES.items():
            for kind in random.sample(KINDS, len(KINDS)):
                found[name][kind].append(measure(gin_file, kind, secs))
                print(name, kind, found[name][kind][-1], file=sys.stderr, flush=True)
    print(table(found))
    command_line.write(options.json, found)
    return 0


def measure(gin_file: str, kind: str, secs: float) -> dict[str, float]:
    """Returns what one run does once it trains."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir(pathlib.Path(folder) / 'run')
        bindings = ('evaluate.evaluate.target_return=None', 'train.StopConditions.num_train_steps=1_000_000_000')
        command = [sys.executable, '-m', 'scripts.launch', f'--root_dir={run_dir.root}', f'--gin_file={gin_file}']
        command += [f'--replay_backend={kind}', *(f'--gin_bindings={binding}' for binding in bindings)]
        with (pathlib.Path(folder) / 'log').open('w+') as log:
            launch = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            try:
                begin = _later(run_dir, launch, 0.0, _WARM_UP_SECS)
                job = psutil.Process(read_json(run_dir.status('replay_server'))['pid'])
                server = [job, *job.children(recursive=True)]
                before = _cpu_secs(server)
                end = _later(run_dir, launch, begin['time'], secs)
                cpu, memory = _cpu_secs(server) - before, sum(each.memory_info().rss for each in server)
            finally:
                launch.send_signal(signal.SIGINT)
                launch.wait(_DEADLINE_SECS)
        took = end['time'] - begin['time']
        return {
            'train steps/s': (end['train_step'] - begin['train_step']) / took,
            'cores': cpu / took,
            'memory, MB': memory / 1e6,
        }


def _later(run_dir: RunDir, launch: subprocess.Popen, since: float, secs: float) -> dict[str, Any]:
    """Returns the learner's first status that is so much newer, or so long after its first train step."""
    first = since

    def is_later() -> dict[str, Any] | None:
        nonlocal first
        if launch.poll() is not None:
            raise RuntimeError(f'got the end of the run, exit status {launch.returncode}; need one that trains')
        status: dict[str, Any] = read_json(run_dir.status('train')) or {}
        if status.get('train_step'):
            first = first or status['time']
            return status if status['time'] >= first + secs else None
        return None

    return wait_until(is_later, 'train steps', _DEADLINE_SECS, poll_secs=0.05)


def _cpu_secs(processes: list[psutil.Process]) -> float:
    times = [each.cpu_times() for each in processes]
    return sum(each.user + each.system for each in times)


def table(found: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """Returns the medians as a Markdown table."""
    lines = [
        "| | train steps/s: Reverb | Valkey | ratio | the server's cores: Reverb | Valkey "
        '| memory, MB: Reverb | Valkey |',
        '|---' * 8 + '|',
    ]
    for name, by_kind in found.items():
        both = [by_kind[kind] for kind in KINDS]
        rates, cores, memory = (
            [statistics.median(each[column] for each in rounds) for rounds in both]
            for column in ('train steps/s', 'cores', 'memory, MB')
        )
        pairs = zip(*([each['train steps/s'] for each in rounds] for rounds in both), strict=True)
        ratio = statistics.median(valkey / reverb for reverb, valkey in pairs)
        cells = [f'{rate:,.0f}' for rate in rates] + [f'{ratio:.2f}'] + [f'{share:.2f}' for share in cores]
        lines.append(f'| {" | ".join([name, *cells, *(f"{size:,.0f}" for size in memory)])} |')
    return '\n'.join(lines)


if __name__ == '__main__':
    sys.exit(main())
