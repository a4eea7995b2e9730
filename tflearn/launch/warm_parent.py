"""A process that loads the jobs' libraries once and forks the jobs:
each of them starts within a second.

`WarmParent` is the launcher's end; `serve` is the process's, whose program (scripts/warm_parent.py)
loads the libraries first. None of them may start TensorFlow's runtime or a thread that works, since
neither survives a fork.
"""

import contextlib
import json
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from tflearn.core import parent_death
from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS, UserFileNotFoundError
from tflearn.files import lock

_READY_TIMEOUT_SECS = 120.0
_REPLY_TIMEOUT_SECS = 10.0
_POLL_SECS = 0.05
_MAX_BYTES = 1 << 20
_UNKNOWN_EXIT_CODE = TRY_AGAIN_EXIT_STATUS  # a job that had done its work ends again at once


def unbuffered_environment() -> dict[str, str]:
    """Returns the environment for jobs, whose output is to be in their logs at once."""
    return {**os.environ, 'PYTHONUNBUFFERED': '1'}


def start_program(
    command: Sequence[str], output: Any, environment: Mapping[str, str], pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Starts a program without an input, in a session of its own: Ctrl-C is for the launcher.

    It gets SIGTERM when this thread ends, so that it does not outlive a launcher which was killed.

    Args:
      command: the program and its arguments.
      output: an open file for what it prints, errors too.
      environment: its environment.
      pass_fds: descriptors that it inherits.

    Raises:
      FileNotFoundError: if there is no such program.
    """
    if not shutil.which(command[0], path=environment.get('PATH')):
        raise UserFileNotFoundError(f'got {command[0]!r}; need a program that can be executed')
    return subprocess.Popen(
        parent_death.command(command, signal.SIGTERM),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        pass_fds=pass_fds,
        start_new_session=True,
    )


class WarmParent:
    """Starts jobs as forks of a process that has loaded their libraries.

    Attributes:
      environment: the variables that the jobs have besides those of the launcher.
    """

    def __init__(
        self, command: Sequence[str], log: TextIO, environment: Mapping[str, str] = types.MappingProxyType({})
    ):
        """Starts the process.

        Args:
          command: the program that calls `serve`; a descriptor is added to it.
          log: the file for its output.
          environment: see the attribute.
        """
        self.environment = dict(environment)
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            given = [*command, str(theirs.fileno())], log, unbuffered_environment() | self.environment
            self._process = start_program(*given, [theirs.fileno()])
        self._exit_codes: dict[int, int] = {}
        self._ended_at: dict[int, float] = {}  # jobs of which it has not said how
        self._ready = False

    def wait_until_ready(self, stop: Callable[[], bool]) -> None:
        """Waits until the libraries are loaded, the process has ended, or `stop` returns True;
        two minutes at most.
        """
        begun, warn_secs = time.monotonic(), _REPLY_TIMEOUT_SECS
        while not stop() and (secs := time.monotonic() - begun) < _READY_TIMEOUT_SECS:
            if self._readable(_POLL_SECS):
                self._ready = self._receive() is not None
                return
            if secs > warn_secs:
                warn_secs = math.inf  # once
                rest = f'{_READY_TIMEOUT_SECS - secs:.0f} s more'
                self._warn(secs, f'it loads their libraries, or was stopped; jobs wait for it, {rest} at most')
        if not stop():
            self._give_up(_READY_TIMEOUT_SECS)

    def start(
        self, command: Sequence[str], log: int, register: Callable[[int], object] = lambda group: None
    ) -> 'Fork | None':
        """Starts a job in a process group of its own.

        Args:
          command: [sys.executable, '-m', module, arguments...]
          log: the descriptor of the file for its output.
          register: takes the process group before the job begins in it.

        Returns:
          The process; None if this cannot start it, since the libraries were not loaded or the
          process has ended. Then no process of it begins the job later, either.
        """
        if not self._ready or list(command[:2]) != [sys.executable, '-m']:
            return None
        waiting, go = os.pipe()  # a fork that is not told to go ends when the pipe does
        try:
            socket.send_fds(self._connection, [json.dumps(list(command[2:])).encode()], [log, waiting])
            while self._readable(_REPLY_TIMEOUT_SECS) and (message := self._receive()):
                if 'started' in message:
                    register(message['started'])
                    os.write(go, b'.')
                    # The system gives a process id again: what is noted under it is another job's
                    # end.
                    self._exit_codes.pop(message['started'], None)
                    self._ended_at.pop(message['started'], None)
                    return Fork(message['started'], self)
        except OSError:
            pass
        finally:
            os.close(waiting)
            os.close(go)
        self._give_up(_REPLY_TIMEOUT_SECS)
        return None

    def exit_code(self, pid: int) -> int | None:
        """Returns the exit code of a job that this started; None while it lives."""
        while self._ready and self._readable(0.0):
            self._ready = self._receive() is not None
        if pid not in self._exit_codes and not lock.started(pid):
            # Only its parent knows how it ended: which says so at once, unless it has ended or was
            # stopped.
            late_secs = time.monotonic() - self._ended_at.setdefault(pid, time.monotonic())
            if self._ready and late_secs > _REPLY_TIMEOUT_SECS:
                self._give_up(_REPLY_TIMEOUT_SECS)
            if not self._ready:
                self._exit_codes[pid] = _UNKNOWN_EXIT_CODE
        return self._exit_codes.get(pid)

    def _give_up(self, secs: float) -> None:
        """Starts no more jobs as forks, and says so if the process is there."""
        self._ready = False
        self._warn(secs, 'jobs load their libraries by themselves from now on')

    def _warn(self, secs: float, then: str) -> None:
        """Writes that the process, if it is there, has not answered for so long."""
        if self._process.poll() is None:
            sys.stderr.write(
                f'tflearn-launch: warning: got no answer of the process that forks jobs (pid {self._process.pid}) '
                f'for {secs:.3g} s; {then}\n'
            )

    def close(self) -> None:
        """Ends the process, with which jobs end that it started."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _readable(self, timeout_secs: float) -> bool:
        return bool(select.select([self._connection], [], [], timeout_secs)[0])

    def _receive(self) -> dict[str, int] | None:
        """Returns the next message, None if the process has ended. Notes the ends of jobs."""
        with contextlib.suppress(ConnectionError):
            if text := self._connection.recv(_MAX_BYTES):
                message: dict[str, int] = json.loads(text)
                if 'ended' in message:
                    self._exit_codes[message['ended']] = message['exit_code']
                return message
        return None


class Fork:
    """A job that a warm parent started, with what a supervisor needs of a `subprocess.Popen`."""

    def __init__(self, pid: int, parent: WarmParent):
        self.pid = pid
        self.returncode: int | None = None
        self._parent = parent

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.exit_code(self.pid)
        return self.returncode


def serve(connection: socket.socket) -> list[str]:
    """Forks jobs on request until the launcher has ended, which ends this process too,
    and so the jobs.

    Args:
      connection: the socket to the launcher.

    Returns:
      In a forked process only, whose output goes to its log: the job's module, then its arguments.
    """
    connection.send(json.dumps({'ready': os.getpid()}).encode())
    jobs: set[int] = set()
    while True:
        if select.select([connection], [], [], _POLL_SECS)[0]:
            text, descriptors, *_ = socket.recv_fds(connection, _MAX_BYTES, 2)
            if not text:
                os._exit(0)
            log, waiting = descriptors
            own, pid = os.getpid(), os.fork()
            if pid == 0:
                parent_death.end_with_parent(own, signal.SIGTERM)
                connection.close()
                os.setsid()
                os.dup2(log, 1)
                os.dup2(log, 2)
                if not os.read(waiting, 1):
                    os._exit(0)
            for descriptor in descriptors:
                os.close(descriptor)
            if pid == 0:
                return list(json.loads(text))
            jobs.add(pid)
            connection.send(json.dumps({'started': pid}).encode())
        for pid in list(jobs):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                jobs.remove(pid)
                exit_code = os.waitstatus_to_exitcode(status)
                connection.send(json.dumps({'ended': pid, 'exit_code': exit_code}).encode())
