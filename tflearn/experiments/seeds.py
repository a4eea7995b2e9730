"""One run for each seed, several at the same time, each in a process of its own. Loads no TensorFlow."""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Literal, TextIO

from tflearn.config import files, preview
from tflearn.core.errors import UserValueError
from tflearn.environments import registry
from tflearn.files.run_dir import RunDir, local_path, read_json
from tflearn.launch.local import StopSignals
from tflearn.launch.processes import OrphanReaper
from tflearn.launch.reports import count, duration, plain

_LINE_SECS, _POLL_SECS, _STOP_SECS = 10.0, 0.2, 60.0
_INTERRUPTED = 128 + signal.SIGINT
# Evaluations play other episodes than training.
_EVALUATION_SEED = 1_000_000
_JOBS = ('train', 'collect', 'evaluate')
_RUN = f"""
import json, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
import tflearn
try:
    tflearn.train(**json.loads(sys.argv[1]))
except KeyboardInterrupt:
    sys.exit({_INTERRUPTED})
"""


@dataclasses.dataclass(frozen=True)
class Seeds:
    """Runs of one gin file that differ in their seed only.

    Attributes:
      root_dir: a folder; the run of seed 3 is in `seed_3` below it, and what it prints in `seed_3.log`.
      gin_file: a path, or the name of a packaged gin file.
      numbers: the seeds.
      parallel: how many runs at the same time.
      gin_bindings: gin statements that come after the gin file.
      mode: 'processes' or 'synchronous'; see `tflearn.train`.
    """

    root_dir: pathlib.Path
    gin_file: str
    numbers: Sequence[int]
    parallel: int = 1
    gin_bindings: Sequence[str] = ()
    mode: Literal['processes', 'synchronous'] = 'processes'

    def run(self, out: TextIO) -> dict[int, int]:
        """Runs what is missing of each seed's run. Call it from the main thread: it handles signals.

        SIGINT, SIGTERM and SIGHUP stop the runs cleanly; the same call continues them.

        Args:
          out: gets a line for each start and end, and every ten seconds one with the progress.

        Returns:
          Seed -> the exit code of its run: 0 if it has reached its end, 130 if it was stopped or not started.

        Raises:
          ValueError: if the gin file or a binding is wrong, or another process works in the folder.
        """
        path = files.resolve(self.gin_file)
        preview.check(path, self._bindings(0), [f'tflearn.jobs.{job}' for job in _JOBS], registry.check_factory)
        root = local_path(self.root_dir, '--root_dir')
        root.mkdir(parents=True, exist_ok=True)
        codes, start = dict.fromkeys(self.numbers, _INTERRUPTED), time.monotonic()
        waiting, running = list(self.numbers), dict[int, subprocess.Popen[bytes]]()
        line_at, num_signals = start + _LINE_SECS, 0
        with (
            StopSignals() as signals,
            _locked(root) as lock,
            contextlib.closing(OrphanReaper(_STOP_SECS, lock)) as reaper,
        ):
            while running or (waiting and not signals.received):
                while waiting and len(running) < self.parallel and not signals.received:
                    seed = waiting.pop(0)
                    running[seed] = self._start(root, seed, str(path))
                    reaper.add(running[seed].pid)
                    _say(out, f'seed {seed}: started; its output is in {root / f"seed_{seed}.log"}')
                threading.Event().wait(_POLL_SECS)
                if len(signals.received) > num_signals:  # the first one stops the runs, the second one kills them
                    num_signals = len(signals.received)
                    for process in running.values():
                        process.send_signal(signal.SIGINT if num_signals == 1 else signal.SIGKILL)
                for seed in [seed for seed, process in running.items() if process.poll() is not None]:
                    process = running.pop(seed)
                    reaper.remove(process.pid)
                    codes[seed] = process.returncode
                    _say(out, f'seed {seed}: {_ending(root, seed, process.returncode)}')
                if running and time.monotonic() >= line_at:
                    line_at = time.monotonic() + _LINE_SECS
                    lines = (f'seed {seed}: {_progress(root, seed)}' for seed in running)
                    rest = f' | {len(waiting)} to come' if waiting else ''
                    _say(out, f'[{duration(time.monotonic() - start)}] {" | ".join(lines)}{rest}')
        return codes

    def _bindings(self, seed: int) -> list[str]:
        """Returns the gin statements of a seed's run; the caller's come last."""
        return [
            'from tflearn.jobs import collect_settings',
            'from tflearn.jobs import evaluate',
            'from tflearn.jobs import train',
            f'train.Initial.seed = {seed}',
            f'collect_settings.CollectOptions.seed = {seed}',
            f'evaluate.evaluate.seed = {seed + _EVALUATION_SEED}',
            *self.gin_bindings,
        ]

    def _start(self, root: pathlib.Path, seed: int, gin_file: str) -> subprocess.Popen[bytes]:
        arguments = {
            'gin_file': gin_file,
            'root_dir': str(root / f'seed_{seed}'),
            'mode': self.mode,
            'gin_bindings': self._bindings(seed),
        }
        with open(root / f'seed_{seed}.log', 'ab') as log:
            return subprocess.Popen(
                [sys.executable, '-c', _RUN, json.dumps(arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, 'PYTHONPATH': os.pathsep.join(path or os.getcwd() for path in sys.path)},
                start_new_session=True,
            )


@contextlib.contextmanager
def _locked(root: pathlib.Path) -> Iterator[int]:
    """Gives the descriptor of a file that one process at a time, and the reaper of its runs, holds locked."""
    with open(root / 'seeds.lock', 'ab') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserValueError(
                f'got --root_dir={root}, where another tflearn-seeds works; need a folder of its own; wait for it, or '
                'stop it'
            ) from error
        yield file.fileno()


def _progress(root: pathlib.Path, seed: int) -> str:
    run_dir = RunDir(root / f'seed_{seed}')
    train, evaluate = (read_json(run_dir.status(job)) or {} for job in ('train', 'evaluate'))
    parts = [
        f'{count(train.get("train_step"))} train steps' if train.get('train_step') is not None else 'starting',
        f'greedy return {plain(evaluate["mean_return"])}' if evaluate.get('mean_return') is not None else '',
        f'{duration(train["secs_left"])} left' if train.get('secs_left') else '',
    ]
    return ', '.join(part for part in parts if part)


def _ending(root: pathlib.Path, seed: int, code: int) -> str:
    run_dir, log = RunDir(root / f'seed_{seed}'), root / f'seed_{seed}.log'
    if code == 0:
        done = read_json(run_dir.done, 'reason') or {}
        mean = (done.get('evaluation') or {}).get('mean_return')
        return f'done: {done.get("reason")}' + ('' if mean is None else f', mean return {plain(mean)}')
    if code in (_INTERRUPTED, -signal.SIGINT):
        return 'stopped; the same command continues it'
    lines = log.read_text(encoding='utf-8', errors='replace').splitlines()
    return f'failed (exit code {code}): {lines[-1] if lines else ""}; see {log}'


def _say(out: TextIO, text: str) -> None:
    print(f'{time.strftime("%T")} {text}', file=out, flush=True)
