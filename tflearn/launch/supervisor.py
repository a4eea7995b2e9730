"""Crew: the processes of a run: started, watched, restarted where the topology allows it, and stopped in order."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from tflearn.launch.processes import Guard, JobProcess
from tflearn.launch.reports import RunReport
from tflearn.launch.run_summary import shown
from tflearn.launch.topology import Topology
from tflearn.run_dir import RunDir

POLL_SECS = 0.05
SHOW_INTERVAL_SECS = 0.5


class View(Protocol):
    """Shows a run to somebody."""

    def open(self) -> None:
        """Sets up what showing needs."""

    def close(self) -> None:
        """Puts everything back as it was."""

    def event(self, text: str) -> None:
        """Tells what happened; the first line says it, further ones are details."""

    def show(self, report: RunReport) -> None:
        """Shows how things are. Called twice a second."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a run failed.

    Attributes:
      message: one line.
      mistake: whether it is the user's mistake; `message` is then the job's own line.
    """

    message: str
    mistake: bool


class Crew:
    """The processes of one run."""

    def __init__(self, topology: Topology, run_dir: RunDir, guard: Guard, view: View, log: TextIO):
        self._processes = [JobProcess(job, run_dir, guard) for job in topology.jobs]
        self._view = view
        self._log = log
        self._started_at = time.monotonic()
        self._next_show_secs = 0.0
        self._tells_endings = True  # Not once the user has made a mistake: the other jobs end of the same one.
        self._pause = threading.Event()  # Never set.

    @property
    def finished(self) -> bool:
        """Whether every job that the run lasts for has ended well."""
        return all(process.exit_code == 0 for process in self._processes if process.job.serves is None)

    def start(self) -> None:
        """Starts all jobs.

        Raises:
          OSError: if a program or a log cannot be opened; those started before are left running.
        """
        for process in self._processes:
            process.start()

    def watch(self, stop: Callable[[], bool]) -> Failure | None:
        """Looks after the jobs until the run is finished or failed, or `stop` says so.

        Returns:
          Why the run failed, or None.
        """
        while not stop() and not self.finished:
            ended = [process for process in self._processes if process.poll()]
            failures = [failure for process in ended if (failure := self._look_after(process))]
            if failures:
                failure = next((failure for failure in failures if failure.mistake), failures[0])
                self._tells_endings = not failure.mistake
                return failure
            self._show()
            self._pause.wait(POLL_SECS)
        return None

    def _look_after(self, process: JobProcess) -> Failure | None:
        """Deals with a job that has just ended. Returns the run's failure if that is what it means."""
        job, mistake = process.job, process.mistake()
        served = next((other for other in self._processes if other.job.name == job.serves), None)
        if process.exit_code == 0 and (served is None or served.exit_code == 0 or job.may_finish):
            return None
        if served is not None and served.exit_code == 0:
            self._tell_ending(process)
            return None
        # What ran before and can be replaced met something that passes, such as a server that was too busy to answer.
        if mistake and not (process.has_run and job.max_restarts):
            return Failure(mistake, mistake=True)
        if process.exit_code != 0 and process.restarts < job.max_restarts:
            self._tell_ending(process, f'; restart {process.restarts + 1} of {job.max_restarts}')
            process.start()
            return None
        self._tell_ending(process, '; given up' if job.max_restarts else '')
        substitutes = [other for other in self._processes if other.job.kind == job.kind and other is not process]
        if any(other.alive or other.exit_code == 0 for other in substitutes):
            return None
        in_vain = f' after {job.max_restarts} restarts' if job.max_restarts else ''
        return Failure(f'{job.name} {process.ending()}{in_vain}; its log is {shown(process.log)}', mistake=False)

    def stop(self, stop_timeout_secs: float, kill: Callable[[], bool]) -> Failure | None:
        """Stops what is alive, stage by stage; what does not end in time, or once `kill` says so, is killed.

        Returns:
          The user's mistake if a job ended of one meanwhile, or None.
        """
        mistakes = []
        for stage in sorted({process.job.stop_stage for process in self._processes}):
            members = [process for process in self._processes if process.job.stop_stage == stage and process.alive]
            if not members:
                continue
            self._tell(f'stopping {", ".join(process.job.name for process in members)}')
            for process in members:
                process.terminate()
            self._await(members, stop_timeout_secs, kill)
            mistakes += [mistake for process in members if (mistake := process.mistake())]
        return Failure(mistakes[0], mistake=True) if mistakes else None

    def _await(self, members: list[JobProcess], stop_timeout_secs: float, kill: Callable[[], bool]) -> None:
        deadline = time.monotonic() + stop_timeout_secs
        killed = False
        while any(process.alive for process in members):
            for process in members:
                if process.poll() and not killed and not process.stopped_cleanly:
                    self._tell_ending(process)
            if not killed and (kill() or time.monotonic() > deadline):
                killed = True
                self._kill(members, '' if kill() else f' did not stop within {stop_timeout_secs:g} s:')
            self._show()
            self._pause.wait(POLL_SECS)

    def _kill(self, members: list[JobProcess], reason: str) -> None:
        for process in members:
            if process.alive:
                self._tell(f'{process.job.name}{reason} killed')
                process.kill()

    def _tell_ending(self, process: JobProcess, then: str = '') -> None:
        if not self._tells_endings:
            return
        lines = process.last_lines() or ['(it wrote nothing)']
        self._tell(
            '\n'.join([f'{process.job.name} {process.ending()}{then}; the end of {shown(process.log)}:', *lines])
        )

    def _tell(self, text: str) -> None:
        self._log.write(f'{time.strftime("%F %T")} {text}\n')
        self._log.flush()
        self._quietly(lambda: self._view.event(text))

    def _show(self) -> None:
        secs = time.monotonic() - self._started_at
        if secs >= self._next_show_secs:
            self._next_show_secs = secs + SHOW_INTERVAL_SECS
            report = RunReport(tuple(process.report() for process in self._processes), secs)
            self._quietly(lambda: self._view.show(report))

    def _quietly(self, show: Callable[[], None]) -> None:
        # A terminal that went away, or a reader that has seen enough, is no reason to end a run.
        with contextlib.suppress(OSError):
            show()
