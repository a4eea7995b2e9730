"""The loop: a product's decisions and their outcomes become training data of its next policy, round by round.

Each step of a round is a program, which writes its result atomically, and is not run again once that is there. So a
loop that was killed goes on where it was, and a round has the same data however often it was begun. No TensorFlow here.
"""

import contextlib
import dataclasses
import functools
import math
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from tflearn.config import files
from tflearn.core.errors import UserRuntimeError, UserValueError
from tflearn.core.settings import PositiveFloat, PositiveInt, checked_dataclass
from tflearn.extensions.product import column_map, round_page
from tflearn.extensions.product.steps import Gate, Logs, Round, Rounds, Step, Steps, Training
from tflearn.files.lock import try_lock
from tflearn.files.run_dir import PRIVATE, RunDir, local_path
from tflearn.launch.local import StopSignals
from tflearn.launch.processes import OrphanReaper
from tflearn.launch.reports import PlainView
from tflearn.launch.supervisor import Supervisor
from tflearn.launch.topology import Job, Topology
from tflearn.launch.warm_parent import WarmParent

# Includes the types of the job's arguments.
__all__ = ['Gate', 'Logs', 'Run', 'Schedule', 'Training', 'loop']

_STOP_SECS, _LINE_SECS, _LOCK_SECS, _LOCK_POLL_SECS = 60.0, 60.0, 70.0, 0.2


@dataclasses.dataclass(frozen=True)
class Run:
    """How the program was called.

    Attributes:
      root: the directory of the rounds.
      package: the Python package of the programs.
      once: whether it ends after one round, or without one that is due.
      out: gets events, and the table after each round.
    """

    root: pathlib.Path
    package: str
    once: bool
    out: TextIO


@checked_dataclass(frozen=True)
class Schedule:
    """When a round begins. Without both numbers: when there are new decisions, which only `--once` takes.

    Attributes:
      decisions: new decisions.
      hours: hours since the last round began, if there are new decisions.
      max_rounds: rounds after which the loop ends.
      poll_secs: seconds between two looks for new decisions.
    """

    decisions: PositiveInt | None = None
    hours: PositiveFloat | None = None
    max_rounds: PositiveInt | None = None
    poll_secs: PositiveFloat = 10.0


def loop(
    *,
    run: Run,
    logs: Logs,
    training: Training,
    serving: str,
    gate: Gate | None = Gate(),
    schedule: Schedule = Schedule(),
) -> Callable[[], int]:
    """Checks its arguments. What it returns runs outside of gin, which would change the errors of a round.

    Args:
      run: how the program was called.
      logs: what rounds read.
      training: how policies are trained.
      serving: the run directory whose `Training.policy` `tflearn-serve` serves.
      gate: what a policy has to prove; None lets each new one serve.
      schedule: when a round begins.

    Returns:
      A function that runs rounds. Call it from the main thread: it handles signals. Its result is an exit code: 0;
      128 + the signal's number when one ended it. It raises ValueError if another loop works in the directory, and
      RuntimeError if a step failed.

    Raises:
      ValueError: if nothing says when, a file is missing, the column map is wrong, or the logs are in an object store.
    """
    if not (run.once or schedule.decisions or schedule.hours):
        raise UserValueError('got no Schedule.decisions and no Schedule.hours; need one of them, or --once')
    files.resolve(training.gin_file)
    for name in ('decisions', 'outcomes'):
        for path in getattr(logs, name):
            local_path(path, f'Logs.{name}')
    column_map.read_map(local_path(logs.columns, 'Logs.columns'), column_map.DECISIONS)
    planned = Steps(run.package, logs, training, RunDir(local_path(serving, 'serving')), gate)
    return functools.partial(_loop, run, planned, schedule)


def _loop(run: Run, planned: Steps, schedule: Schedule) -> int:
    """Runs rounds in processes of their own."""
    with StopSignals() as signals, _locked(run.root, signals) as log, contextlib.ExitStack() as stack:
        reaper = stack.enter_context(contextlib.closing(OrphanReaper(_STOP_SECS, log.fileno())))

        @functools.cache
        def parent() -> WarmParent:  # is not needed where no round is due
            program = (sys.executable, '-m', f'{run.package}.warm_parent')
            started = stack.enter_context(contextlib.closing(WarmParent(program, log)))
            started.wait_until_ready(lambda: bool(signals.received))
            return started

        def run_step(begun: Round, step: Step) -> None:
            view = PlainView(run.out, _LINE_SECS)
            view.event(f'round {begun.number}: {step.name}')
            job = Job(step.name, step.command, step.name)
            topology = Topology((job,), stop_timeout_secs=_STOP_SECS)
            supervisor = Supervisor(topology, RunDir(begun.directory), reaper, parent(), view, log)
            stop = lambda: bool(signals.received)  # noqa: E731
            failure = supervisor.run(stop, kill=lambda: len(signals.received) > 1)
            if failure and not step.is_done():
                raise (UserRuntimeError if failure.is_user_error else RuntimeError)(failure.message)

        _run_rounds(run, planned, schedule, signals, run_step)
    return 128 + signals.received[0] if signals.received else 0


def _run_rounds(
    run: Run, planned: Steps, schedule: Schedule, signals: StopSignals, run_step: Callable[[Round, Step], None]
) -> None:
    """Runs rounds as they become due, until they are enough or a signal comes."""
    rounds, logs, pause = Rounds(run.root), planned.logs, threading.Event()
    while not signals.received and len(rounds.finished()) < (schedule.max_rounds or math.inf):
        begun = rounds.unfinished() or rounds.begin(logs.decisions, logs.outcomes, schedule.decisions, schedule.hours)
        if begun:
            for step in planned.of(begun):
                if not step.is_done():
                    run_step(begun, step)
                if signals.received:
                    return
            begun.finish(**planned.result(begun))
            round_page.write_page(run.root, rounds.finished())
            print(round_page.table(rounds.finished()), file=run.out, flush=True)
        elif run.once:
            print('nothing to do: no round is due', file=run.out)
        else:
            pause.wait(schedule.poll_secs)
        if run.once:
            return


@contextlib.contextmanager
def _locked(root: pathlib.Path, signals: StopSignals) -> Iterator[TextIO]:
    """Opens the loop's log, which one loop at a time holds locked, with the reaper of its programs."""
    root.mkdir(PRIVATE, parents=True, exist_ok=True)
    with open(root / 'loop.log', 'a', encoding='utf-8') as log:
        deadline = time.monotonic() + _LOCK_SECS  # of a loop that was killed the programs end first
        while not try_lock(log):
            if time.monotonic() > deadline or signals.received:
                raise UserValueError(
                    f'got --root_dir={root}, where another tflearn loop works; need one; wait for it, or stop it'
                )
            threading.Event().wait(_LOCK_POLL_SECS)
        yield log
