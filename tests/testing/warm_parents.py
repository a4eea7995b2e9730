"""Warm parents of tests, as forks of one process that loads the libraries for all of them.

A warm parent of tflearn-launch (scripts/warm_parent.py) takes four seconds of the processor before it can fork jobs.
"""

import contextlib
import functools
import json
import os
import pathlib
import select
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from tflearn.api import run_check
from tflearn.launch import warm_parent

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ('-m', 'scripts.warm_parent')
_SERVE = (
    f'import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from tests.testing import warm_parents as own; own.serve()'
)
_MAX_BYTES = 1 << 20
_REAP_SECS = 1.0

_kept: list[Any] = []  # as long as this process lives


@functools.cache
def loaded() -> pathlib.Path:
    """Returns the socket of the process that loads the libraries.

    The first call starts it, and does not wait for it. It ends when this process and the forks of it have ended.
    """
    path = pathlib.Path(tempfile.mkdtemp()) / 'socket'
    listener, (ours, theirs) = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), socket.socketpair()
    with listener, theirs:
        listener.bind(str(path))
        listener.listen()
        descriptors = [listener.fileno(), theirs.fileno()]
        command = [sys.executable, '-c', _SERVE, str(path), *map(str, descriptors)]
        environment = warm_parent.unbuffered_environment()
        _kept.extend([ours, warm_parent.start_program(command, sys.__stderr__, environment, descriptors)])
    return path


@contextlib.contextmanager
def forked(path: pathlib.Path) -> Iterator[None]:
    """Forks what this process starts from the process that has this socket: warm parents, and checks of a run."""
    start_program = warm_parent.start_program

    def start(command: Sequence[str], output: Any, environment: Mapping[str, str], pass_fds: Sequence[int] = ()) -> Any:
        if tuple(command[1:3]) != PROGRAM:
            return start_program(command, output, environment, pass_fds)
        given = {'cwd': os.getcwd(), 'env': dict(environment)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(str(path))
            socket.send_fds(connection, [json.dumps(given).encode()], [*pass_fds, output.fileno()])
        return _Forked()

    with (
        mock.patch.object(warm_parent, 'start_program', start),
        mock.patch.object(run_check, 'start_program', lambda command, log, _: _Check(command, log)),
    ):
        yield


class _Check:
    """A fork that checks a run, with what `run_check.ask` needs of a `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], log: Any):
        self._parent = warm_parent.WarmParent([sys.executable, *PROGRAM], log)
        self._parent.wait_until_ready(lambda: False)
        self._fork = self._parent.start(command, log.fileno())
        self.pid = self._fork.pid

    def poll(self) -> int | None:
        code = self._fork.poll()
        if code is not None:
            self._parent.close()
        return code


class _Forked:
    """A warm parent: it ends when its connection does, with what `WarmParent` needs of a `subprocess.Popen`."""

    pid = 0

    def poll(self) -> int:
        return 0

    def kill(self) -> None:
        pass

    def wait(self) -> None:
        pass


def serve() -> None:
    """Loads the libraries, then forks warm parents; its arguments are the socket's path and two descriptors."""
    from scripts import warm_parent as program

    listener, tests = (socket.socket(fileno=int(number)) for number in sys.argv[2:])
    program.load()
    parents: set[int] = set()
    while tests not in (ready := select.select([listener, tests], [], [], _REAP_SECS)[0]):
        parents -= {pid for pid in parents if os.waitpid(pid, os.WNOHANG)[0]}
        if not ready:
            continue
        connection, _ = listener.accept()
        with connection:
            text, (theirs, output), *_ = socket.recv_fds(connection, _MAX_BYTES, 2)
        pid = os.fork()
        if pid == 0:
            listener.close()
            tests.close()
            _become_warm_parent(json.loads(text), output)
            program.run(socket.socket(fileno=theirs))
            return
        parents.add(pid)
        os.close(theirs)
        os.close(output)
    path = pathlib.Path(sys.argv[1])
    path.unlink()
    path.parent.rmdir()
    os._exit(0)


def _become_warm_parent(given: Mapping[str, Any], output: int) -> None:
    """Takes what a new process would have: a session, an output, a working directory and an environment."""
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    os.chdir(given['cwd'])
    os.environ.clear()
    os.environ.update(given['env'])
