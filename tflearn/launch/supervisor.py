"""Starts the processes of a run, watches them, restarts them where the topology allows it,
stops them in order.

And shows a run that runs elsewhere, by the files that its jobs write: on a cluster, by hand, or in
one process.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import shutil
import threading
import time
import types
from collections.abc import Callable, Mapping
from typing import TextIO

from tflearn.core.errors import NEED_ROOM, UserValueError
from tflearn.files.run_dir import RunDir, job_kind
from tflearn.files.status import Status
from tflearn.launch.processes import JobProcess, OrphanReaper
from tflearn.launch.reports import JobReport, PlainView, RunReport, quoted
from tflearn.launch.topology import KINDS, Placement, Topology
from tflearn.launch.warm_parent import WarmParent

POLL_SECS = 0.05
_LATER = math.inf  # when a job is started that waits for the end of the others
_FULL_BYTES = 1 << 20  # a disk with less than this is full
_DUMP_SECS = 1.0  # to write its stacks before it is killed
SHOW_INTERVAL_SECS = 0.5


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a run failed.

    Attributes:
      message: one line.
      is_user_error: whether a user's error caused it; `message` is then the job's own line.
    """

    message: str
    is_user_error: bool


class Supervisor:
    """The processes of one run."""

    def __init__(
        self,
        topology: Topology,
        run_dir: RunDir,
        reaper: OrphanReaper,
        warm_parent: WarmParent | None,
        view: PlainView,
        log: TextIO,
        placements: Mapping[str, Placement] = types.MappingProxyType({}),
    ):
        """Takes the topology's jobs.

        Args:
          topology: the jobs, and the times that they get.
          run_dir: the run directory.
          reaper: ends the jobs if this process is killed.
          warm_parent: starts the jobs faster; None: each loads its own libraries.
          view: shows the run.
          log: launch's own log.
          placements: where jobs run, by name.
        """
        self._topology, self._run_dir = topology, run_dir
        self._processes = [
            JobProcess(job, run_dir, reaper, warm_parent, placements.get(job.name, Placement()))
            for job in topology.jobs
        ]
        self._status: Status | None = None
        self._view = view
        self._log = log
        self._started_at = time.monotonic()
        self._next_show_secs = 0.0
        self._logs_exits = True  # Not after a user's error, which ends the other jobs too.
        self._pause = threading.Event()  # Never set.

    def keep_restarts(self, status: Status) -> None:
        """Goes on with the numbers of restarts in this status, and keeps them there."""
        self._status, known = status, status.newest.get('restarts', {})
        for process in self._processes:
            process.restarts = known.get(process.job.name, 0)

    @property
    def finished(self) -> bool:
        """Whether every job that serves no other has ended with exit code 0."""
        return all(process.exit_code == 0 for process in self._processes if process.job.serves is None)

    def start(self) -> None:
        """Starts all jobs.

        Raises:
          OSError: if a program or a log cannot be opened; those started before are left running.
        """
        for process in self._processes:
            process.start()

    def run(self, stop: Callable[[], bool], kill: Callable[[], bool]) -> Failure | None:
        """Starts the jobs, watches them, and stops those that are left; see these methods."""
        self.start()
        failure = self.watch(stop)
        self.stop(kill)
        return failure

    def watch(self, stop: Callable[[], bool]) -> Failure | None:
        """Watches the jobs until the run is finished or failed, or `stop` returns True.

        Returns:
          Why the run failed, or None.
        """
        while not stop() and not self.finished:
            ended = [process for process in self._processes if process.poll()]
            failures = [failure for process in ended if (failure := self._handle_exit(process))]
            if failures:
                failure = next((failure for failure in failures if failure.is_user_error), failures[0])
                self._logs_exits = not failure.is_user_error
                return failure
            for process in self._processes:
                if self._is_due(process):
                    process.start()
            if self._status:  # in each turn, so that the launch's last restarts count too
                self._status.update('running', restarts={each.job.name: each.restarts for each in self._processes})
            self._show()
            self._pause.wait(POLL_SECS)
        return None

    def _is_due(self, process: JobProcess) -> bool:
        """Returns whether a job that died is to be started again now."""
        if process.start_at is None:
            return False
        return time.monotonic() >= process.start_at or (process.start_at == _LATER and self._only(process))

    def _only(self, process: JobProcess) -> bool:
        """Returns whether the run lasts for this job alone."""
        lasting = [other for other in self._processes if other.job.serves is None and other is not process]
        return bool(lasting) and all(other.exit_code == 0 for other in lasting)

    def _handle_exit(self, process: JobProcess) -> Failure | None:
        """Handles the end of a job. Returns the run's failure if it causes one."""
        job, user_error = process.job, process.user_error()
        if self._may_end(process):
            if process.exit_code != 0:
                self._log_exit(process)
            return None
        # A job that ran before and may be restarted met a passing error, such as a server that was
        # too busy to answer.
        if user_error and not (process.ever_ran and job.restart.after_error):
            return Failure(user_error, is_user_error=True)
        may_restart = process.exit_code is not None and job.restart.restarts(process.exit_code)
        if may_restart and (delay := process.budget.spend(process.has_run)) is not None:
            self._log_exit(process, f'; {process.budget.text}')
            process.start_at = time.monotonic() + delay
            return None
        return self._give_up(process, may_restart)

    def _may_end(self, process: JobProcess) -> bool:
        """Returns whether a job is no longer needed: it, or the one that it serves, is done."""
        job, others = process.job, self._processes
        served = next((other for other in others if other.job.name == job.serves), None)
        if served is not None and served.exit_code == 0:
            return True
        return process.exit_code == 0 and (served is None or job.may_finish)

    def _give_up(self, process: JobProcess, restarted: bool) -> Failure | None:
        """Logs that a job is not started again. Returns the run's failure if it cannot go on without the job."""
        job = process.job
        if job.restart.spent == 'later' and not self._only(process):
            self._log_exit(process, '; the run continues without it, and starts it once more at the end')
            process.start_at = _LATER
            return None
        is_full = _is_full(self._run_dir.root)
        if not is_full:  # else the log's end is not there, and the disk is the reason
            self._log_exit(process, '; given up' if restarted else '')
        if job.restart.spent == 'drop' and self._has_substitute(process):
            return None
        restarts = f' after {process.restarts} restarts' if restarted else ''
        message = f'{job.name} {process.exit_text()}{restarts}; its log is {quoted(process.log)}'
        if is_full:
            where = quoted(self._run_dir.root)
            message = f'tflearn-launch: error: got a full disk of {where}, where {message}; {NEED_ROOM}'
        if self._only(process):
            message += f'; the others are done, the policies are in {quoted(self._run_dir.policies)}'
        return Failure(message, is_user_error=is_full)

    def _has_substitute(self, process: JobProcess) -> bool:
        """Returns whether another job of the same kind works, is done, or will be started."""
        others = [other for other in self._processes if other.job.kind == process.job.kind]
        return any(
            other.alive or other.exit_code == 0 or other.start_at is not None
            for other in others
            if other is not process
        )

    def request_save(self) -> None:
        """Asks the jobs that save for a checkpoint now."""
        for process in self._processes:
            if process.job.kind in ('train', 'replay_server'):
                process.request_save()

    def stop(self, kill: Callable[[], bool]) -> Failure | None:
        """Stops the living jobs, stage by stage. Kills those that do not end in time,
        or all when `kill` returns True.

        Returns:
          The failure, if a job ended because of a user's error meanwhile, or None.
        """
        user_errors = []
        for stage in sorted({process.job.stop_stage for process in self._processes}):
            members = [process for process in self._processes if process.job.stop_stage == stage and process.alive]
            if not members:
                continue
            self._log_event(f'stopping {", ".join(process.job.name for process in members)}')
            for process in members:
                process.terminate()
            self._await(members, kill)
            user_errors += [user_error for process in members if (user_error := process.user_error())]
        return Failure(user_errors[0], is_user_error=True) if user_errors else None

    def _await(self, members: list[JobProcess], kill: Callable[[], bool]) -> None:
        secs, killed = self._topology.stop_timeout_secs, False
        deadline = time.monotonic() + secs
        while any(process.alive for process in members):
            for process in members:
                if process.poll() and not killed and not process.stopped_cleanly:
                    self._log_exit(process)
            if not killed and (kill() or time.monotonic() > deadline):
                killed = True
                self._kill(members, '' if kill() else f'did not stop within {secs:g} s')
            self._show()
            self._pause.wait(POLL_SECS)

    def _kill(self, members: list[JobProcess], reason: str) -> None:
        for process in members:
            if process.alive:
                self._log_event(f'{process.job.name} {reason}{": " if reason else ""}killed')
                process.kill(reason or 'was to end at once')

    def _log_exit(self, process: JobProcess, then: str = '') -> None:
        if not self._logs_exits:
            return
        lines = process.last_lines() or ['(it wrote nothing)']
        self._log_event(
            '\n'.join([f'{process.job.name} {process.exit_text()}{then}; the end of {quoted(process.log)}:', *lines])
        )

    def _log_event(self, text: str) -> None:
        self._log.write(f'{time.strftime("%F %T")} {text}\n')
        self._log.flush()
        self._show_safely(lambda: self._view.event(text))

    def _show(self) -> None:
        secs = time.monotonic() - self._started_at
        if secs >= self._next_show_secs:
            self._next_show_secs = secs + SHOW_INTERVAL_SECS
            report = RunReport(tuple(process.report() for process in self._processes), secs)
            self._show_safely(lambda: self._view.show(report))
            for process, its in zip(self._processes, report.jobs, strict=True):
                self._check_silence(process, its.silent_secs or 0.0)

    def _check_silence(self, process: JobProcess, silent_secs: float) -> None:
        """Kills a job that has not reported for too long,
        after it was asked where its threads are.
        """
        most = self._topology.silent_timeout_secs
        if not 0 < most < silent_secs or process.is_killed:
            return
        process.dump()
        limit = f'(--silent_timeout_secs={most:g})'
        self._log_event(
            f'{process.job.name} has not reported for {silent_secs:.0f} s: killed; where its threads were is at the '
            f'end of {quoted(process.log)} {limit}'
        )
        self._pause.wait(_DUMP_SECS)
        process.kill(f'did not report for {silent_secs:.0f} s {limit}')

    def _show_safely(self, show: Callable[[], None]) -> None:
        # A closed terminal or pipe is no reason to end a run.
        with contextlib.suppress(OSError):
            show()


def _is_full(directory: pathlib.Path) -> bool:
    try:
        return shutil.disk_usage(directory).free < _FULL_BYTES
    except OSError:
        return False


_ENDINGS = 'finished', 'stopped', 'failed', 'died'


def watch(run_dir: RunDir, view: PlainView, stop: Callable[[], bool] = lambda: False) -> None:
    """Shows a run until it is done, or has failed under a launch, or `stop` returns True."""
    pause, start = threading.Event(), _began_at(run_dir)
    view.open()
    try:
        while True:
            run_dir.store.refresh()
            report = read_report(run_dir, time.time() - start)
            if report.jobs:
                view.show(report)
            launch = run_dir.statuses().get('launch', {}).get('state')
            if stop() or run_dir.done.exists() or run_dir.failure.exists() or launch in _ENDINGS:
                return
            pause.wait(SHOW_INTERVAL_SECS)
    finally:
        view.close()


def check_reported(run_dir: RunDir) -> None:
    """Raises ValueError if there is no run."""
    if not run_dir.done.exists() and not run_dir.statuses():
        raise UserValueError(f'got {run_dir.location}, where no job has reported; need the --root_dir of a run')


def read_report(run_dir: RunDir, secs: float) -> RunReport:
    """Returns the run as its jobs have reported it; `secs` is how long it has been running [s]."""
    statuses, jobs = run_dir.statuses(), []
    restarts = statuses.get('launch', {}).get('restarts') or {}
    for name, status in statuses.items():
        if kind := job_kind(name, status, KINDS):
            state = str(status.get('state', 'starting'))
            alive = not state.startswith(_ENDINGS)
            jobs.append(JobReport(name, kind, state, alive, restarts.get(name, 0), status))
    order = ('replay_server', 'train', 'evaluate', 'collect')
    jobs.sort(key=lambda job: (order.index(job.kind) if job.kind in order else len(order), len(job.name), job.name))
    return RunReport(tuple(jobs), secs)


def _began_at(run_dir: RunDir) -> float:
    """Returns when the run's newest session began, as far as files tell it [s since 1970]."""
    for path in (run_dir.commands, run_dir.config, run_dir.status('train')):
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime
    return time.time()
