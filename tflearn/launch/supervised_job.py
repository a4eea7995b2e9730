"""Supervises one job of a run on the machine where a scheduler started it.

Restarts, stops and silence are those of a local run (`launch.supervisor`). The jobs of a run share
nothing but the run
directory: there the coordinator publishes its address, and a job that failed for good ends the
  others. The scheduler
itself brings a job back whose machine was lost.
"""

import contextlib
import dataclasses
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from tflearn.core.errors import UserValueError
from tflearn.files import messages
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.launch.local import StopSignals, free_port
from tflearn.launch.processes import OrphanReaper
from tflearn.launch.reports import PlainView
from tflearn.launch.supervisor import Failure, Supervisor
from tflearn.launch.topology import COORDINATOR_ADDRESS, OWN_ADDRESS, Job, Topology, load

_POLL_SECS = 0.5
_LINE_INTERVAL_SECS = 60.0
_COORDINATOR = 'coordinator'


def run(run_dir: RunDir, name: str, *, out: TextIO | None = None) -> int:
    """Runs a job until it has ended or the run has.
    Call it from the main thread: it handles signals.

    A job that serves another one is stopped when the run is done. When the coordinator has come
    back at another address, the other jobs are stopped cleanly and started again with that.

    Args:
      run_dir: the run's directory, with its topology; all machines share it.
      name: the job's name.
      out: where events are written; standard output by default.

    Returns:
      An exit code: 0 when the job is done; 2 if it ended because of a user's error, 1 if it failed
      otherwise or the run has failed; 128 + the signal's number when a signal ended it.

    Raises:
      ValueError: if the run directory has no topology, or there is no such job in it.
    """
    topology = load(run_dir)
    jobs = {job.name: job for job in topology.jobs}
    if name not in jobs:
        raise UserValueError(f'got --job={name}; need one of {", ".join(jobs)}')
    with StopSignals() as signals, open(os.devnull, 'a', encoding='utf-8') as log:
        view = PlainView(out or sys.stdout, _LINE_INTERVAL_SECS)
        with contextlib.closing(OrphanReaper(topology.stop_timeout_secs, log.fileno())) as reaper:
            return _SupervisedJob(topology, jobs[name], run_dir, reaper, view, log).run(signals)


class _SupervisedJob:
    """One job of a run, with all that starts and shows it."""

    def __init__(
        self, topology: Topology, job: Job, run_dir: RunDir, reaper: OrphanReaper, view: PlainView, log: TextIO
    ):
        self._topology, self._job, self._run_dir = topology, job, run_dir
        self._reaper, self._view, self._log = reaper, view, log
        self._pause = threading.Event()  # Never set.
        self._is_host = job.name == topology.host
        self._coordinator = self._own = ''  # addresses

    def run(self, signals: StopSignals) -> int:
        """Returns the exit code."""

        def ended() -> bool:
            served_is_done = self._job.serves is not None and self._run_dir.done.exists()
            return bool(signals.received) or served_is_done or self._run_dir.failure.exists()

        while True:
            self._find_addresses(ended)
            failure = None if ended() else self._supervise(signals, ended)
            if failure and self._is_tried_later(failure):
                self._view.event('trying again when training has ended')
                self._wait(lambda: ended() or self._run_dir.train_result.exists())
                continue
            if failure:
                return self._fail(failure)
            if not self._moved() or ended():
                return self._exit_code(signals)

    def _supervise(self, signals: StopSignals, ended: Callable[[], bool]) -> Failure | None:
        """Runs the job until it is done, has failed, or has to be stopped.
        Returns why it failed.
        """
        command = tuple(map(self._filled_in, self._job.command))
        # Here it is the only job: what its rule says of the others is up to `run`.
        rule = dataclasses.replace(self._job.restart, spent='fail')
        job = dataclasses.replace(self._job, command=command, serves=None, restart=rule)
        secs = self._topology.stop_timeout_secs + 10.0
        topology = dataclasses.replace(self._topology, jobs=(job,), stop_timeout_secs=secs)
        supervisor = Supervisor(topology, self._run_dir, self._reaper, None, self._view, self._log)
        due = 0.0

        def stop() -> bool:
            nonlocal due
            # At once: a scheduler may signal the job too, which takes a later signal for an order
            # to end at once.
            if signals.received or time.monotonic() < due:
                return bool(signals.received)
            due = time.monotonic() + _POLL_SECS  # The file system may be another machine's.
            return ended() or self._moved()

        return supervisor.run(stop, kill=lambda: False)

    def _is_tried_later(self, failure: Failure) -> bool:
        later = self._job.restart.spent == 'later' and not failure.is_user_error
        return later and not self._run_dir.train_result.exists()

    def _fail(self, failure: Failure) -> int:
        """Ends the run with this failure, unless it can go on without the job.
        Returns the exit code.
        """
        self._view.event(failure.message)
        if failure.is_user_error or self._job.restart.spent != 'drop':
            write_json(self._run_dir.failure, {'job': self._job.name, 'message': failure.message})
        return 2 if failure.is_user_error else 1

    def _exit_code(self, signals: StopSignals) -> int:
        if self._is_host:
            self._run_dir.address(_COORDINATOR).unlink(missing_ok=True)
        if failed := read_json(self._run_dir.failure, messages.Failure):
            self._view.event(f'the run has failed: {failed["message"]}')
            return 1
        return 128 + signals.received[0] if signals.received else 0

    def _filled_in(self, word: str) -> str:
        """Returns a word of the command with addresses instead of what stands for them."""
        return word.replace(COORDINATOR_ADDRESS, self._coordinator).replace(OWN_ADDRESS, self._own)

    def _find_addresses(self, ended: Callable[[], bool]) -> None:
        """Chooses this job's address; publishes the coordinator's if it is this job's too,
        or waits for it.
        """
        if any(OWN_ADDRESS in word for word in self._job.command):
            self._own = self._own or f'{own_host()}:{free_port()}'
        if self._is_host:
            self._coordinator = self._coordinator or f'{own_host()}:{free_port()}'
            write_json(self._run_dir.address(_COORDINATOR), {'address': self._coordinator})
        elif not self._published():
            self._view.event('waiting for the address of the coordinator')
            self._wait(lambda: ended() or bool(self._published()))
        self._coordinator = self._published()

    def _moved(self) -> bool:
        """Returns whether the coordinator is at another address now."""
        return not self._is_host and self._published() != self._coordinator

    def _published(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            if published := (read_json(self._run_dir.address(_COORDINATOR), messages.Address) or {}).get('address'):
                return str(published)
        return self._coordinator  # One that is away for a while comes back there, or elsewhere.

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._pause.wait(_POLL_SECS)


def own_host() -> str:
    """Returns a name or an IP address of this machine at which others reach it.

    Raises:
      ValueError: if the machine's name has no address.
    """
    if host := os.environ.get('TFLEARN_HOST'):
        return host
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        raise UserValueError(
            f'got the host name {name!r}, which has no address ({error}); need one that the other machines know; set '
            'TFLEARN_HOST in the environment of the jobs'
        ) from error
    return name
