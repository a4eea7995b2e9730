"""How many environment steps a second does IMPALA collect, move and train on, beside RLlib's?

    python benchmarks/impala.py --rllib_python=rllib_environment/bin/python

CartPole-v1, an MLP 64-64 that policy and value share, fragments of 50 steps that go on from one episode into the next,
as RLlib has them by default, each step trained on once. Ours are the programs that users start: a replay server, a
collector and a learner, each a process. RLlib's IMPALA has an environment of its own:
benchmarks/requirements_rllib.txt shows how to make it; gymnasium's native vector environment steps on both sides. Both
have the best setting that was found for two cores. Each round starts both sides, one after the other; a ratio is the
median of the ratios of the rounds.
"""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, tables  # noqa: E402
from tests.testing import console_programs  # noqa: E402
from tflearn.core.waiting import wait_until  # noqa: E402
from tflearn.files.run_dir import RunDir, read_json  # noqa: E402
from tflearn.launch.local import free_address  # noqa: E402

FRAGMENT = 50
NUM_ENVIRONMENTS = 256
BATCH = 128
OURS = (
    f'collect.num_environments={NUM_ENVIRONMENTS}',
    f'Slicing.sequence_length={FRAGMENT + 1}',
    f'Slicing.stride={FRAGMENT}',
    'Slicing.pad_episodes=False',
    'Slicing.cross_episodes=True',
    'NetworkOptions.shared=True',
    f'BatchItems.per_replica={BATCH}',
    f'Queue.max_size={2 * BATCH}',
    'train.StopConditions.num_train_steps=1_000_000_000',
    'train.Intervals.publish_interval_steps=2',
    'train.Intervals.export_interval_steps=1_000_000',
    'train.Device.inter_op_threads=1',
)
RLLIB = ('--num_env_runners=1', '--num_environments=128', '--batch_steps=8000', '--broadcast_interval=2')
WARM_UP_SECS = 8.0
START_SECS = 180.0
WANTED = 10


def main() -> int:
    """Measures both sides alternately, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--secs', type=float, default=10.0, help='of each side in a round')
    parser.add_argument('--gin_bindings', action='append', default=[], help='on top of our setting')
    parser.add_argument('--rllib_flags', type=str.split, default=RLLIB, help="instead of RLlib's setting, in quotes")
    parser.add_argument('--rllib_python', type=pathlib.Path, default=ROOT / 'rllib_environment' / 'bin' / 'python')
    parser.add_argument('--quick', action='store_true', help='one short round')
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.secs = 1, 3.0
    rates: dict[str, list[float]] = {'ours': [], 'rllib': []}
    version = 'none: there is no ' + str(options.rllib_python)
    for _ in range(options.rounds):
        rates['ours'].append(_ours(options.secs, [*OURS, *options.gin_bindings]))
        if options.rllib_python.exists():
            rate, version = _rllib(options.rllib_python, options.secs, options.rllib_flags)
            rates['rllib'].append(rate)
        print({name: [round(rate) for rate in values] for name, values in rates.items()}, flush=True)
    rows = [_row(rates, version)]
    print(tables.table(rows))
    if rates['rllib']:
        print(f'{tables.ratio(rates["ours"], rates["rllib"]):.1f}x (wanted: {WANTED}x)')
    command_line.write(options.json, rows)
    return 0


def _ours(secs: float, bindings: Sequence[str]) -> float:
    """Returns steps per second of a run that is started for it."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir(pathlib.Path(folder) / 'run')
        flags = [f'--root_dir={run_dir.root}', '--gin_file=impala_cartpole', f'--coordinator_address={free_address()}']
        flags += [f'--gin_bindings={binding}' for binding in bindings]

        def metric(job: str, name: str) -> float:
            return (read_json(run_dir.status(job)) or {}).get(name) or 0

        def next_report() -> tuple[float, float]:
            """Waits until the learner has reported a new train step; returns the time and the step."""
            old = metric('train', 'train_step')
            wait_until(lambda: metric('train', 'train_step') > old, 'a train step', START_SECS, poll_secs=0.005)
            return time.perf_counter(), metric('train', 'train_step')

        with _programs(flags, ('replay_server', 'train', 'collect')):
            next_report()
            _sleep(WARM_UP_SECS)
            start, before = next_report()
            _sleep(secs)
            end, after = next_report()
            # Of an item's rows those between two episodes are no steps.
            steps_per_item = metric('collect_0', 'env_steps') / metric('replay_server', 'inserts')
    return (after - before) * BATCH * min(steps_per_item, FRAGMENT) / (end - start)


@contextlib.contextmanager
def _programs(flags: Sequence[str], jobs: Sequence[str]) -> Iterator[None]:
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    processes = []
    try:
        for job in jobs:
            command = [sys.executable, '-m', *console_programs.words(job), *flags]
            processes.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _rllib(python: pathlib.Path, secs: float, flags: Sequence[str]) -> tuple[float, str]:
    command = [str(python), str(ROOT / 'benchmarks' / 'impala_rllib.py'), f'--secs={secs}', *flags]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    reported = json.loads(done.stdout.splitlines()[-1])
    return reported['steps'] / reported['secs'], f'RLlib {reported["version"]}'


def _sleep(secs: float) -> None:
    end = time.monotonic() + secs
    wait_until(lambda: time.monotonic() >= end, 'the end of the time', 2 * secs + 1)


def _row(rates: dict[str, list[float]], version: str) -> dict[str, object]:
    peer = rates['rllib']
    return {
        'case': 'CartPole-v1: IMPALA',
        'metric': f'steps collected, moved and trained on, beside {version}',
        'ours': statistics.median(rates['ours']),
        'peer': statistics.median(peer) if peer else None,
        'limit': None,
        'ratio_to_peer': tables.ratio(rates['ours'], peer) if peer else None,
        'ratio_to_limit': None,
        'unit': 'environment steps/s',
        'rounds': len(rates['ours']),
    }


if __name__ == '__main__':
    sys.exit(main())
