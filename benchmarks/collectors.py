"""Runs with 1, 2, 4 collect jobs: does every collector proceed, is the ratio kept, and what if collectors are killed?

    python benchmarks/collectors.py --gin_file=dqn_cartpole --collectors=1,2,4 --num_train_steps=15000
    python benchmarks/collectors.py --gin_file=dqn_cartpole --collectors=2 --kill_every_secs=5 --num_train_steps=60000

Every job is a process of its own. Meanwhile the replay server is asked, twenty times a second, how many chunks came and
how many times weights were published: a pause is the longest time without one, from the first train steps on. A
collector that is killed (SIGKILL, one after the other) is started again at once.
"""

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import reverb

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, tables  # noqa: E402
from tflearn.actors.evaluation_record import EvaluationRecord  # noqa: E402
from tflearn.files.run_dir import RunDir, read_json  # noqa: E402
from tflearn.launch.local import free_address  # noqa: E402

POLL_SECS = 0.05
TIMEOUT_SECS = 900.0
PUBLISH_INTERVAL_STEPS = 50
MIN_PUBLICATIONS = 20  # before that, programs are compiled


@dataclasses.dataclass
class Outcome:
    """What one run came to.

    Attributes:
      env_steps_per_sec: of all collectors together, from the first train steps to the last.
      train_steps_per_sec: of the learner, from the first train steps to the last.
      ratio: samples per insert that the learner reports, divided by its target.
      collect_pause_secs: longest time in which no chunk came.
      train_pause_secs: longest time in which no weights were published.
      kills: collectors killed.
      best_greedy_return: the best mean of 20 greedy episodes.
    """

    env_steps_per_sec: float
    train_steps_per_sec: float
    ratio: float
    collect_pause_secs: float
    train_pause_secs: float
    kills: int
    best_greedy_return: float


class Jobs:
    """The jobs of a run as processes, with their logs in its directory."""

    def __init__(self, root: pathlib.Path, gin_file: str, bindings: Sequence[str]):
        self.address = free_address()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        flags = [f'--gin_bindings={binding}' for binding in bindings]
        self._flags = [
            f'--root_dir={root}',
            f'--gin_file={gin_file}',
            f'--coordinator_address={free_address()}',
            *flags,
        ]
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def start(self, job: str, name: str | None = None) -> None:
        """Starts a job; a collect job has a name."""
        flags = [*self._flags, *([f'--collector_name={name}'] if name else [])]
        flags += [f'--replay_address={self.address}'] if job == 'replay_server' else []
        with (self._root / f'{name or job}.log').open('a') as log:
            environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
            self.processes[name or job] = subprocess.Popen(
                [sys.executable, '-m', f'scripts.{job}', *flags], stdout=log, stderr=log, env=environment
            )

    def kill(self, name: str) -> None:
        """Ends a job at once."""
        self.processes[name].kill()
        self.processes[name].wait()

    def end(self) -> None:
        """Ends what still runs."""
        for name in self.processes:
            self.kill(name)


class Pulse:
    """When a count that only rises rose last, and the longest time in which it did not."""

    def __init__(self) -> None:
        self.count = 0
        self.longest_secs = 0.0
        self._changed_at = time.monotonic()

    def see(self, count: int) -> None:
        """Takes in the count of now."""
        now = time.monotonic()
        self.longest_secs = max(self.longest_secs, now - self._changed_at)
        if count != self.count:
            self.count, self._changed_at = count, now

    def forget(self) -> None:
        """Begins again."""
        self.longest_secs, self._changed_at = 0.0, time.monotonic()


def main() -> int:
    """Runs and prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--gin_file', default='dqn_cartpole')
    parser.add_argument('--gin_bindings', action='append', default=[])
    parser.add_argument('--collectors', default='1,2,4', help='how many, one run for each')
    parser.add_argument('--num_train_steps', type=int, default=15_000)
    parser.add_argument('--kill_every_secs', type=float, default=None, help='kills a collector that often')
    parser.add_argument('--quick', action='store_true', help='one short run, to see whether this program works')
    options = parser.parse_args()
    if options.quick:
        options.collectors, options.num_train_steps = '1', 3_000
    bindings = [
        *(
            f'train.StopConditions.num_train_steps={options.num_train_steps}',
            f'train.Intervals.publish_interval_steps={PUBLISH_INTERVAL_STEPS}',
        ),
        'evaluate.target_return=None',
        *options.gin_bindings,
    ]
    rows: list[dict[str, Any]] = []
    for count in map(int, options.collectors.split(',')):
        with tempfile.TemporaryDirectory() as root, jobs(pathlib.Path(root), options.gin_file, bindings, count) as run:
            rows += _rows(count, _watch(run, RunDir(root), options.kill_every_secs))
        print(tables.table(rows), flush=True)
    command_line.write(options.json, rows)
    return 0


@contextlib.contextmanager
def jobs(root: pathlib.Path, gin_file: str, bindings: Sequence[str], num_collectors: int) -> Iterator[Jobs]:
    """Starts all jobs of a run; ends them."""
    run = Jobs(root, gin_file, bindings)
    try:
        run.start('replay_server')
        run.start('train')
        run.start('evaluate')
        for i in range(num_collectors):
            run.start('collect', f'collect_{i}')
        yield run
    finally:
        run.end()


def _watch(run: Jobs, run_dir: RunDir, kill_every_secs: float | None) -> Outcome:
    """Looks on until training is over."""
    chunks, publications, kills = Pulse(), Pulse(), 0
    deadline, began, first = time.monotonic() + TIMEOUT_SECS, None, {}
    client = reverb.Client(run.address)
    while run.processes['train'].poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f'training did not end within {TIMEOUT_SECS:.0f} s; see {run_dir.root}')
        with contextlib.suppress(RuntimeError, reverb.errors.DeadlineExceededError):
            info = client.server_info(timeout=2)
            chunks.see(info['replay'].rate_limiter_info.insert_stats.completed)
            publications.see(info['variables'].rate_limiter_info.insert_stats.completed)
        if began is None and publications.count >= MIN_PUBLICATIONS:
            began, first = time.monotonic(), read_json(run_dir.status('train')) or {}
            chunks.forget()
            publications.forget()
        elif began and kill_every_secs and time.monotonic() - began > (kills + 1) * kill_every_secs:
            names = sorted(name for name in run.processes if name.startswith('collect'))
            name = names[kills % len(names)]
            run.kill(name)
            run.start('collect', name)
            kills += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.processes['train'].wait(POLL_SECS)
    if run.processes['train'].returncode or began is None:
        raise RuntimeError(f'the train job ended with {run.processes["train"].returncode}')
    last = read_json(run_dir.status('train')) or {}
    secs = time.monotonic() - began
    result = read_json(run_dir.train_result) or {}
    target = (read_json(run_dir.status('replay_server')) or {})['samples_per_insert_target']
    return Outcome(
        (result['env_steps'] - first['env_steps']) / secs,
        (result['train_step'] - first['train_step']) / secs,
        last['samples_per_insert'] / target,
        chunks.longest_secs,
        publications.longest_secs,
        kills,
        max(evaluation['mean_return'] for evaluation in EvaluationRecord(run_dir.evaluations).evaluations),
    )


def _rows(count: int, outcome: Outcome) -> list[dict[str, Any]]:
    units = {'env_steps_per_sec': 'steps/s', 'train_steps_per_sec': 'steps/s', 'ratio': 'of the target'}
    nothing = dict.fromkeys(('peer', 'limit', 'ratio_to_peer', 'ratio_to_limit'))
    return [
        {
            'case': f'{count} collectors',
            'metric': name.removesuffix('_secs').replace('_', ' '),
            'ours': value,
            **nothing,
            'unit': units.get(name, 's' if name.endswith('_secs') else ''),
            'rounds': 1,
        }
        for name, value in dataclasses.asdict(outcome).items()
    ]


if __name__ == '__main__':
    sys.exit(main())
