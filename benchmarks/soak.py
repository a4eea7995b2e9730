"""Do memory, threads and file handles of all jobs stay as they are while a run goes on with everything on?

    python benchmarks/soak.py --secs=1200 --picture=soak.png

`tflearn-launch` runs DQN on CartPole without an end: replay server, learner, two collectors, evaluations; summaries,
checkpoints and exports of which few are kept; a coordinator alone. `tflearn-serve` serves the newest policy to a client
in this process, and `tflearn data record` writes episodes to files.
Prints a table, and exits with 1 if a process grew by more than 5 % between the first and the last third after the
warm-up, or was started again. docs/operate.md has the last result.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import recorded_runs  # noqa: E402
from tests.testing import console_programs  # noqa: E402
from tflearn.files.run_dir import RunDir, read_json  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402

MAX_GROWTH = 1.05
_METRICS = ('RSS, MB', 'threads', 'file handles')
_START_SECS, _STOP_SECS = 600.0, 90.0
_BINDINGS = (
    'train.StopConditions.num_train_steps=1_000_000_000',
    'evaluate.evaluate.target_return=None',
    'experience.Uniform.max_size=5_000',  # is full before the warm-up is over
    'train.LearnerOptions.checkpoint_interval_steps=1_000',
    'train.SummaryOptions.interval_steps=200',
    'train.Intervals.export_interval_steps=1_000',
    'train.ExportOptions.keep_last=2',
    'train.ExportOptions.update_interval_steps=500',
    'train.ExportOptions.keep_updates=5',
    'replay_server.replay_server.checkpoint_interval_secs=15.0',
)
Sample = dict[str, tuple[int, tuple[float, ...]]]  # by process: its id and its metrics


def main() -> int:
    """Runs everything, prints the table; returns 1 if something grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--secs', type=float, default=1200.0)
    parser.add_argument('--warm_up_share', type=float, default=0.25, help='of the seconds')
    parser.add_argument('--interval_secs', type=float, default=5.0)
    parser.add_argument('--root_dir', type=pathlib.Path, default=None)
    parser.add_argument('--picture', type=pathlib.Path, default=None, help='a PNG file')
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run_dir = RunDir(options.root_dir or name)
        with _programs(run_dir) as (launch, record, address):
            client = Client(address)
            pids = lambda: _pids(run_dir, launch.pid, record.pid)  # noqa: E731
            _wait(lambda: len(pids()) == 11 and _runs(run_dir) and client.answered, launch)
            times, samples = _watch(pids, launch, options.secs, options.interval_secs)
            client.stop.set()
    first = int(options.warm_up_share * len(samples))
    rows, sound = _rows(samples[first:])
    sys.stdout.write('\n'.join(['| process | metric | first third | last third | ratio |', '|---' * 5 + '|', *rows]))
    failed = dict(client.failed)
    sys.stdout.write(f'\n{client.answered} requests answered, failed: {failed}; {len(samples)} samples\n')
    if options.picture:
        _draw(options.picture, times, samples, times[first])
    return 0 if sound and not client.failed else 1


class Client:
    """Asks the served policy for actions, again and again.

    Attributes:
      answered: the requests that were answered.
      failed: how many were not, after the first that was, by their status.
      stop: ends it when set.
    """

    def __init__(self, address: str):
        """Starts to ask, in a thread of its own."""
        self.answered = 0
        self.failed: collections.Counter[str] = collections.Counter()
        self.stop = threading.Event()
        threading.Thread(target=self._ask, args=(address,), daemon=True).start()

    def _ask(self, address: str) -> None:
        import grpc
        import numpy as np

        from tflearn.extensions.serving.client import PolicyClient

        client = PolicyClient(address)
        inputs = {'observation': np.zeros((3, 4), np.float32)}
        while not self.stop.wait(0.02):
            try:
                client.predict(inputs)
                self.answered += 1
            except grpc.RpcError as error:
                if self.answered and not self.stop.is_set():
                    self.failed[error.code().name] += 1


@contextlib.contextmanager
def _programs(run_dir: RunDir) -> Iterator[tuple['subprocess.Popen[bytes]', 'subprocess.Popen[bytes]', str]]:
    """Starts the run, the server of its policies and the recording; gives the first, the last, and the address."""
    port = free_port()
    run = ['launch', '--gin_file=dqn_cartpole', '--num_collectors=2', '--coordinator_alone']
    run += [f'--gin_bindings={text}' for text in _BINDINGS]
    served = ['serve', f'--port={port}', f'--metrics_port={free_port()}', f'--connect_timeout_secs={_START_SECS}']
    episodes = f'--output={run_dir.root / "episodes"}'
    recorded = ['data', 'record', '--policy=random', '--gin_file=dqn_cartpole', episodes, '--episodes=1000000000']
    with contextlib.ExitStack() as stack:
        started = []
        for program, *flags in (run, served, recorded):
            command = [sys.executable, '-m', *console_programs.words(program), *flags, f'--root_dir={run_dir.root}']
            log = run_dir.root / f'{program}.txt'
            started.append(stack.enter_context(recorded_runs.process(command, log, _STOP_SECS)))
        yield started[0], started[2], f'localhost:{port}'


def _runs(run_dir: RunDir) -> bool:
    status = read_json(run_dir.status('train')) or {}
    return str(status.get('state')).startswith('running')


def _pids(run_dir: RunDir, launch: int, record: int) -> dict[str, int]:
    """Returns the processes: the jobs by their status, launch and its other children, and this one, which asks."""
    jobs = ('coordinator', 'replay_server', 'train', 'evaluate', 'collect_0', 'collect_1', 'serve')
    found = {job: int((read_json(run_dir.status(job)) or {}).get('pid', 0)) for job in jobs}
    found |= {'launch': launch, 'client': os.getpid(), 'record': record}
    for path in pathlib.Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if 'scripts.warm_parent' in (path / 'cmdline').read_text() and _parent(path) == launch:
                found['warm_parent'] = int(path.name)
    return {name: pid for name, pid in found.items() if pid}


def _parent(path: pathlib.Path) -> int:
    return int((path / 'stat').read_text().rpartition(')')[2].split()[1])


def _watch(
    pids: Callable[[], dict[str, int]], launch: 'subprocess.Popen[bytes]', secs: float, interval_secs: float
) -> tuple[list[float], list[Sample]]:
    start, times, samples = time.monotonic(), [], []
    while (now := time.monotonic() - start) < secs:
        if launch.poll() is not None:
            raise RuntimeError(f'tflearn-launch ended with {launch.returncode}')
        times.append(now)
        samples.append({name: (pid, _metrics(pid)) for name, pid in pids().items()})
        threading.Event().wait(interval_secs)
    return times, samples


def _metrics(pid: int) -> tuple[float, ...]:
    """Returns a process's `_METRICS`; NaN for one that has ended."""
    path = pathlib.Path(f'/proc/{pid}')
    try:
        lines = dict(line.split(':', 1) for line in (path / 'status').read_text().splitlines())
        return int(lines['VmRSS'].split()[0]) / 1024, float(lines['Threads']), float(len(os.listdir(path / 'fd')))
    except (OSError, KeyError):
        return (float('nan'),) * len(_METRICS)


def _rows(samples: Sequence[Sample]) -> tuple[list[str], bool]:
    """Returns the lines of the table, and whether nothing grew and no process is another one than before."""
    rows, sound = [], True
    third = max(1, len(samples) // 3)
    for name in samples[0]:
        if len({sample[name][0] for sample in samples}) > 1:
            rows.append(f'| {name} | was started again | | | |')
            sound = False
            continue
        for i, metric in enumerate(_METRICS):
            before, after = (
                statistics.median(sample[name][1][i] for sample in part) for part in (samples[:third], samples[-third:])
            )
            sound &= after <= MAX_GROWTH * before
            rows.append(f'| {name} | {metric} | {before:,.0f} | {after:,.0f} | {after / before:.3f} |')
    return rows, sound


def _wait(condition: Callable[[], object], launch: 'subprocess.Popen[bytes]') -> None:
    deadline = time.monotonic() + _START_SECS
    while not condition():
        if time.monotonic() > deadline or launch.poll() is not None:
            raise RuntimeError('got no run whose jobs all work; see launch.txt and serve.txt in --root_dir')
        threading.Event().wait(0.5)


def _draw(path: pathlib.Path, times: Sequence[float], samples: Sequence[Sample], warm: float) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), dpi=100, layout='constrained')
    for i, axes in enumerate(figure.subplots(len(_METRICS), 1, sharex=True)):
        for name in samples[-1]:
            values = [sample[name][1][i] if name in sample else float('nan') for sample in samples]
            axes.plot([secs / 60 for secs in times], values, linewidth=1.2, label=name)
        axes.axvline(warm / 60, color='0.35', linestyle='--', linewidth=1)
        axes.set_ylabel(_METRICS[i])
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    axes.set_xlabel('minutes')
    figure.axes[0].legend(frameon=False, ncols=3, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(str(path))


if __name__ == '__main__':
    sys.exit(main())
