"""A job as a process of this machine, how often it is restarted,
and the program that stops jobs of a killed launch.
"""

import collections
import contextlib
import os
import pathlib
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tflearn.core.errors import DEADLINE_EXIT_STATUS
from tflearn.files import messages
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch import log_format, orphan_reaper
from tflearn.launch.reports import JobReport
from tflearn.launch.topology import MAX_RESTARTS, Job, Placement
from tflearn.launch.warm_parent import Fork, WarmParent, start_program, unbuffered_environment

_TAIL_BYTES = 64 * 1024
_STARTING = 'starting (loads its libraries)'
# All jobs of a machine start together: here what is not there in time is wrong too.
_USER_ERROR_EXIT_CODES = (2, DEADLINE_EXIT_STATUS)
# After SIGTERM: done anyway, stopped, or ended before it handled the signal.
_STOPPED_EXIT_CODES = (0, 128 + signal.SIGTERM, -signal.SIGTERM)
WINDOW_SECS = 600.0
MAX_FAILED_STARTS = 3  # in a row, of a job that never ran
_FIRST_DELAY_SECS, _LAST_DELAY_SECS = 0.5, 30.0
# How the last line of a job that failed begins.
_ERROR_LINE = re.compile(r'tflearn[- ][\w -]+: error: ')


class OrphanReaper:
    """Ends the registered process groups if this process ends without doing so."""

    def __init__(self, stop_timeout_secs: float, lock: int):
        """Starts the program that does it.

        Args:
          stop_timeout_secs: seconds between SIGTERM and SIGKILL.
          lock: descriptor of a locked file, which stays locked until that program has ended.
        """
        reader, writer = os.pipe()
        self._pipe = os.fdopen(writer, 'wb', buffering=0)
        # A session of its own: neither Ctrl-C nor a closing terminal reaches it.
        self._process = subprocess.Popen(
            [sys.executable, '-I', '-S', orphan_reaper.__file__, str(stop_timeout_secs)],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock],
            start_new_session=True,
        )
        os.close(reader)

    def _write(self, line: str) -> None:
        # Somebody killed the reaper; the jobs do not need it.
        with contextlib.suppress(BrokenPipeError):
            self._pipe.write(line.encode())

    def add(self, group: int) -> None:
        self._write(f'+{group}\n')

    def remove(self, group: int) -> None:
        self._write(f'-{group}\n')

    def close(self) -> None:
        """Ends the groups that are still registered, and waits until they have ended."""
        self._pipe.close()
        self._process.wait()


class RestartBudget:
    """How often a job may be started again, and when:
    at most `MAX_RESTARTS` times in `WINDOW_SECS`.

    A job that did not run since its last start has failed to start: that may happen
    `MAX_FAILED_STARTS` times in a row, with twice the delay each time. Delays differ by chance, so
    that jobs that died together come back one by one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, seed: int | None = None):
        self._clock, self._random = clock, random.Random(seed)
        self._restarted_at: collections.deque[float] = collections.deque()
        self._failed_starts = 0

    def spend(self, has_run: bool) -> float | None:
        """Takes one restart.

        Args:
          has_run: whether the job ran since its last start.

        Returns:
          The delay [s] before the job is started; None if the budget is spent.
        """
        now = self._clock()
        while self._restarted_at and now - self._restarted_at[0] > WINDOW_SECS:
            self._restarted_at.popleft()
        self._failed_starts = 0 if has_run else self._failed_starts + 1
        if self._failed_starts > MAX_FAILED_STARTS or len(self._restarted_at) >= MAX_RESTARTS:
            return None
        self._restarted_at.append(now)
        delay = min(_LAST_DELAY_SECS, _FIRST_DELAY_SECS * 2 ** max(0, self._failed_starts - 1))
        return delay * self._random.uniform(0.5, 1.5)

    @property
    def text(self) -> str:
        """Which restart the last one was, in words."""
        if self._failed_starts:
            return f'failed start {self._failed_starts} of {MAX_FAILED_STARTS}'
        return f'restart {len(self._restarted_at)} of {MAX_RESTARTS} within {WINDOW_SECS / 60:g} min'


class JobProcess:
    """A job and its process, in a process group of its own, its output appended to the job's log.

    Attributes:
      job: the job.
      log: the job's log.
      exit_code: the process's exit code; None while it lives. Negative: the signal that ended it.
      restarts: the number of restarts.
      has_run: whether a report found it running since its last start.
      ever_ran: the same since its first start.
      start_at: when it is started again [s of time.monotonic]; None if it is not.
    """

    def __init__(
        self, job: Job, run_dir: RunDir, reaper: OrphanReaper, warm_parent: WarmParent | None, placement: Placement
    ):
        self.job = job
        self.log: pathlib.Path = run_dir.log(job.name)
        self.exit_code: int | None = None
        self.restarts = 0
        self.has_run = self.ever_ran = False
        self.start_at: float | None = None
        self.budget = RestartBudget()
        self._status, self._store = run_dir.status(job.name), run_dir.store
        self._reaper = reaper
        self._placement = placement
        # Its forks have its own.
        fits = warm_parent is not None and warm_parent.environment == placement.environment
        self._warm_parent = warm_parent if fits else None
        self._process: subprocess.Popen[bytes] | Fork | None = None
        self._old_time: Any = None  # of its status; only compared with each other
        self._heard_time: Any = None
        self._heard_at = 0.0
        self._log_start = 0
        self._stopping = False
        self._killed_for = ''

    def start(self) -> None:
        """Starts the job, or starts it again."""
        if self._process is not None:
            self.restarts += 1
        self.has_run, self.start_at, self._killed_for = False, None, ''
        self._old_time = self._heard_time = self._read_status().get('time')
        self._heard_at = time.monotonic()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, 'ab') as log:
            with contextlib.suppress(OSError):  # a full disk
                text = f'===== {time.strftime("%F %T")} $ {shlex.join(self.job.command)}\n'
                os.write(log.fileno(), log_format.lines(self.job.name, text).encode())
            self._log_start = log.seek(0, os.SEEK_END)
            process: subprocess.Popen[bytes] | Fork | None = None
            if self._warm_parent:
                process = self._warm_parent.start(self.job.command, log.fileno(), self._reaper.add)
            if process is None:
                environment = unbuffered_environment() | dict(self._placement.environment)
                process = start_program(self.job.command, log, environment)
                self._reaper.add(process.pid)
            self._process = process
        if self._placement.cores:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, self._placement.cores)  # Its threads come later.
        self.exit_code = None

    @property
    def alive(self) -> bool:
        """Whether it was started and has not been seen to end."""
        return self._process is not None and self.exit_code is None

    @property
    def is_killed(self) -> bool:
        """Whether it was killed since its last start; its end may not have been seen yet."""
        return bool(self._killed_for)

    def poll(self) -> bool:
        """Returns True once, when the process has ended."""
        if self._process is None or not self.alive or self._process.poll() is None:
            return False
        self.exit_code = self._process.returncode
        self._signal_group(signal.SIGKILL)  # Its own children, such as environment workers.
        self._reaper.remove(self._process.pid)
        return True

    def terminate(self) -> None:
        """Asks the job, but not its children, to end cleanly."""
        self._stopping |= self.alive
        self._signal(signal.SIGTERM)

    def request_save(self) -> None:
        """Asks a job that works for a checkpoint now;
        one that begins would not know the signal yet.
        """
        if self.has_run:
            self._signal(signal.SIGUSR2)

    def dump(self) -> None:
        """Asks the job to write the stacks of its threads to its log."""
        self._signal(signal.SIGUSR1)

    def _signal(self, number: int) -> None:
        if self._process is not None and self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def kill(self, reason: str) -> None:
        """Kills the job and its children; `exit_text` then gives the reason."""
        if self.alive:
            self._killed_for = reason
            self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        if self._process is not None:
            orphan_reaper.signal_groups({self._process.pid}, number)

    def last_lines(self, count: int = 12) -> list[str]:
        """Returns the last lines that the current process wrote to its log."""
        with open(self.log, 'rb') as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _TAIL_BYTES))
            text = log.read().decode(errors='replace')
        text = '\n'.join(map(log_format.plain, text.splitlines()))
        return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]

    def user_error(self) -> str | None:
        """Returns the line with the user's error if the job ended because of one, else None."""
        if self.exit_code not in _USER_ERROR_EXIT_CODES:
            return None
        return next((line for line in reversed(self.last_lines()) if _ERROR_LINE.match(line)), None)

    @property
    def stopped_cleanly(self) -> bool:
        """Whether it ended as a stopped job does, without an error."""
        logged_error = any(_ERROR_LINE.match(line) for line in self.last_lines(1))
        return self.exit_code in _STOPPED_EXIT_CODES and not logged_error

    def exit_text(self) -> str:
        """Returns how the process ended, in words."""
        if self.exit_code is None:
            return 'is alive'
        if self.exit_code >= 0:
            return f'ended with exit code {self.exit_code}'
        if self.exit_code == -signal.SIGKILL and self._killed_for:
            return f'was killed by launch, since it {self._killed_for}'
        hint = ', as happens when memory runs out' if self.exit_code == -signal.SIGKILL else ''
        return f'was ended by {signal.Signals(-self.exit_code).name}{hint}'

    def report(self) -> JobReport:
        """Returns the state and the metrics of the job now,
        without metrics of an earlier process.
        """
        status = self._read_status()
        if status.get('time') != self._heard_time or not self._store.answers:
            self._heard_time, self._heard_at = status.get('time'), time.monotonic()
        metrics = status if status.get('time') != self._old_time else {}
        self.has_run |= str(metrics.get('state')).startswith('running')
        self.ever_ran |= self.has_run
        return JobReport(
            name=self.job.name,
            kind=self.job.kind,
            state=self._state(metrics),
            alive=self.alive,
            restarts=self.restarts,
            metrics=metrics,
            unchanged_secs=time.monotonic() - self._heard_at,
        )

    def _read_status(self) -> dict[str, Any]:
        with contextlib.suppress(ValueError, TypeError, OSError):
            return read_json(self._status, messages.Status) or {}
        return {}

    def _state(self, metrics: dict[str, object]) -> str:
        if self._process is None:
            return 'not started'
        if self.exit_code is None:
            return 'stopping' if self._stopping else str(metrics.get('state', _STARTING))
        if self._stopping:
            return 'stopped'
        return 'finished' if self.exit_code == 0 else 'died'
