"""Runs of gin files in a folder, several at the same time, each in a process of its own.
Loads no TensorFlow.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Literal, TextIO

from tflearn.api import run_check
from tflearn.config import files
from tflearn.config.going_on import Effective
from tflearn.core.errors import UserValueError
from tflearn.files import messages
from tflearn.files.lock import try_lock
from tflearn.files.run_dir import PRIVATE, RunDir, local_path, read_json
from tflearn.launch.local import StopSignals
from tflearn.launch.processes import OrphanReaper
from tflearn.launch.reports import count, duration, plain
from tflearn.launch.warm_parent import start_program

Mode = Literal['processes', 'synchronous']
INTERRUPTED = 128 + signal.SIGINT

_LINE_SECS, _POLL_SECS, _STOP_SECS = 10.0, 0.2, 60.0
# Evaluations play other episodes than training.
_EVALUATION_SEED = 1_000_000
_JOBS = ('train', 'collect', 'evaluate')
# The last line of a traceback, or a program's error line; before what gin, or `tflearn.train` of
# processes, adds.
_CAUSE = re.compile(r'[\w.-]+(: error)?: (?!got a run that failed in )')
_LAST_LINES = 20  # of a log, in which the cause of a failure is
_RUN = f"""
import json, signal, sys
signals = signal.SIGINT, signal.SIGTERM  # a shell's background jobs ignore the first
def interrupt(number, frame):
    for each in signals:  # another one would end the run before it has stopped
        signal.signal(each, lambda *_: None)
    raise KeyboardInterrupt
for number in signals:
    signal.signal(number, interrupt)
import tflearn
try:
    tflearn.train(**json.loads(sys.argv[1]))
except KeyboardInterrupt:
    sys.exit({INTERRUPTED})
"""


def seed_bindings(seed: int) -> list[str]:
    """Returns the gin statements that give a run its seed."""
    return [
        'from tflearn.jobs import collect_settings',
        'from tflearn.jobs import evaluate',
        'from tflearn.jobs import train',
        f'train.Initial.seed = {seed}',
        f'collect_settings.CollectOptions.seed = {seed}',
        f'evaluate.evaluate.seed = {seed + _EVALUATION_SEED}',
    ]


def check(gin_file: str, gin_bindings: Sequence[str]) -> Effective:
    """Checks the configuration of a run; returns its effective bindings.

    Raises:
      ValueError: if the gin file or a binding is wrong.
    """
    jobs = [f'tflearn.jobs.{job}' for job in _JOBS]
    return run_check.ask(run_check.Question(str(files.resolve(gin_file)), gin_bindings, jobs))


class Runs:
    """A context in which runs are started, watched and stopped.
    Enter it in the main thread: it handles signals.

    SIGINT, SIGTERM and SIGHUP stop the runs cleanly, a second one kills them. If this process is
    killed, its runs are stopped too, and the folder stays locked until they have ended.

    Attributes:
      root: a folder; the run `seed_3` is in a sub-folder of that name, and what it prints in
        `seed_3.log`.
      running: the processes of the runs that have not ended, by the runs' names.
    """

    def __init__(self, root: pathlib.Path, mode: Mode, out: TextIO):
        """
        Args:
          mode: 'processes' or 'synchronous'; see `tflearn.train`.
          out: gets a line for each start and end, and every ten seconds one with the progress.
        """
        self.root = local_path(root, '--root_dir')
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._mode, self._out = mode, out
        self._context, self._kill_at = contextlib.ExitStack(), dict[str, float]()
        self._start = time.monotonic()
        self._line_at, self._num_signals = self._start + _LINE_SECS, 0

    def __enter__(self) -> 'Runs':
        """Raises ValueError if another process works in the folder."""
        with contextlib.ExitStack() as context:
            self.root.mkdir(PRIVATE, parents=True, exist_ok=True)
            self._signals = context.enter_context(StopSignals())
            lock = context.enter_context(_locked(self.root))
            self._reaper = context.enter_context(contextlib.closing(OrphanReaper(_STOP_SECS, lock)))
            self._context = context.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    @property
    def stopping(self) -> bool:
        """Whether a signal has stopped the runs: none is to be started."""
        return bool(self._signals.received)

    def start(self, name: str, gin_file: str, gin_bindings: Sequence[str]) -> None:
        """Starts a run of a gin file, or continues it; `gin_bindings` come after the file."""
        log = self.root / f'{name}.log'
        arguments = {'gin_file': str(files.resolve(gin_file)), 'root_dir': str(self.root / name), 'mode': self._mode}
        with open(log, 'ab') as file:
            environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(path or os.getcwd() for path in sys.path)}
            text = json.dumps({**arguments, 'gin_bindings': [*gin_bindings]})
            self.running[name] = start_program([sys.executable, '-c', _RUN, text], file, environment)
        self._reaper.add(self.running[name].pid)
        self.say(name, f'started; its output is in {log}')

    def stop(self, name: str) -> None:
        """Stops a run cleanly, if it is not stopped already;
        it is killed if that takes too long.
        """
        if name not in self._kill_at:
            self.running[name].send_signal(signal.SIGINT)  # a second one would end it at once
            self._kill_at[name] = time.monotonic() + _STOP_SECS

    def ended(self, rest: str = '') -> Iterator[tuple[str, int]]:
        """Waits a moment; yields the runs that have ended, with their exit codes:
        0 at their end, 130 when stopped.

        Args:
          rest: ends the line with the progress.
        """
        threading.Event().wait(_POLL_SECS)
        if len(self._signals.received) > self._num_signals:
            self._num_signals = len(self._signals.received)
            for name, process in self.running.items():
                if self._num_signals > 1:
                    process.kill()
                elif name not in self._kill_at:
                    process.send_signal(signal.SIGINT)
        for name, process in list(self.running.items()):
            if time.monotonic() > self._kill_at.get(name, float('inf')):
                process.kill()
            if process.poll() is not None:
                del self.running[name]
                self._kill_at.pop(name, None)
                self._reaper.remove(process.pid)
                yield name, process.returncode
        if self.running and time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + _LINE_SECS
            lines = [f'{_title(name)}: {self._progress(name)}' for name in self.running]
            self._print(f'[{duration(time.monotonic() - self._start)}] {" | ".join([*lines, *filter(None, [rest])])}')

    def say(self, name: str, text: str) -> None:
        """Prints a line about a run."""
        self._print(f'{_title(name)}: {text}')

    def ending(self, name: str, code: int) -> str:
        """Returns how a run has ended, in words."""
        log = self.root / f'{name}.log'
        if code == 0:
            done = read_json(RunDir(self.root / name).done, messages.Done) or {}
            mean = (done.get('evaluation') or {}).get('mean_return')
            return f'done: {done.get("reason")}' + ('' if mean is None else f', mean return {plain(mean)}')
        if code in (INTERRUPTED, -signal.SIGINT):
            return 'stopped; the same command continues it'
        lines = log.read_text(encoding='utf-8', errors='replace').splitlines()[-_LAST_LINES:]
        causes = [line for line in lines if _CAUSE.match(line)] or lines or ['']
        return f'failed (exit code {code}): {causes[-1]}; see {log}'

    def _progress(self, name: str) -> str:
        run_dir = RunDir(self.root / name)
        train, evaluate = (run_dir.statuses().get(job, {}) for job in ('train', 'evaluate'))
        parts = [
            f'{count(train.get("train_step"))} train steps' if train.get('train_step') is not None else 'starting',
            f'greedy return {plain(evaluate["mean_return"])}' if evaluate.get('mean_return') is not None else '',
            f'{duration(train["secs_left"])} left' if train.get('secs_left') else '',
        ]
        return ', '.join(part for part in parts if part)

    def _print(self, text: str) -> None:
        print(f'{time.strftime("%T")} {text}', file=self._out, flush=True)


@contextlib.contextmanager
def _locked(root: pathlib.Path) -> Iterator[int]:
    """Returns the descriptor of a file that one process at a time, and the reaper of its runs,
    holds locked.
    """
    with open(root / 'runs.lock', 'ab') as file:
        if not try_lock(file):
            raise UserValueError(
                f'got --root_dir={root}, where another tflearn seeds, policies, tune or population works, or ends '
                'its runs; need a folder of its own; wait for it, or stop it'
            )
        yield file.fileno()


def _title(name: str) -> str:
    return name.replace('_', ' ')


def run_seeds(
    root_dir: pathlib.Path,
    gin_file: str,
    seeds: Sequence[int],
    out: TextIO,
    parallel: int = 1,
    gin_bindings: Sequence[str] = (),
    mode: Mode = 'processes',
) -> dict[int, int]:
    """Runs what is missing of one run for each seed; they differ in nothing else.

    The same call continues what was stopped. Call it from the main thread: it handles signals, see
    `Runs`.

    Args:
      root_dir: a folder; the run of seed 3 is in `seed_3` below it, and what it prints in
        `seed_3.log`.
      gin_file: a path, or the name of a packaged gin file.
      seeds: the seeds.
      out: gets the lines of `Runs`.
      parallel: how many runs at the same time.
      gin_bindings: gin statements that come after the gin file.
      mode: 'processes' or 'synchronous'; see `tflearn.train`.

    Returns:
      Seed -> the exit code of its run: 0 if it has reached its end, 130 if it was stopped or not
      started.

    Raises:
      ValueError: if the gin file or a binding is wrong, or another process works in the folder.
    """
    check(gin_file, [*seed_bindings(0), *gin_bindings])
    codes, waiting = dict.fromkeys(seeds, INTERRUPTED), list(seeds)
    with Runs(root_dir, mode, out) as its:
        while its.running or (waiting and not its.stopping):
            while waiting and len(its.running) < parallel and not its.stopping:
                seed = waiting.pop(0)
                its.start(f'seed_{seed}', gin_file, [*seed_bindings(seed), *gin_bindings])
            for name, code in its.ended(f'{len(waiting)} to come' if waiting else ''):
                codes[int(name.removeprefix('seed_'))] = code
                its.say(name, its.ending(name, code))
    return codes
