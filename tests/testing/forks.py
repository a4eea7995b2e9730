"""Python programs of tests as forks of a process that has loaded TensorFlow and the jobs' libraries once.

A program that loads them itself takes three seconds of the processor before it begins, and the tests start many.
tflearn-launch starts its jobs so, by `tflearn/launch/warm_parent.py`. Each process of tests has a warm parent of its
own, which ends with it, and so has each tflearn-launch that is started here: they are forks of one process that loads
the libraries for all of them. Tests of the start itself use `subprocess`.
"""

import contextlib
import functools
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from unittest import mock

from tests.testing import warm_parents, without_extensions
from tflearn.core.waiting import wait_until
from tflearn.launch import warm_parent
from tflearn.launch.warm_parent import Fork, WarmParent

_PATIENCE_SECS = 1200.0
CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


class Program:
    """A running program, as `subprocess.Popen` shows one."""

    def __init__(self, fork: Fork):
        self.pid, self._fork = fork.pid, fork

    @property
    def returncode(self) -> int | None:
        return self._fork.returncode

    def poll(self) -> int | None:
        """Returns the exit code, None while it runs."""
        with _patient():
            return self._fork.poll()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """Waits until it ends; returns its exit code. Raises `subprocess.TimeoutExpired`, as Popen does."""
        try:
            wait_until(lambda: self.poll() is not None, f'the end of process {self.pid}', timeout, poll_secs=0.02)
        except TimeoutError as error:
            raise subprocess.TimeoutExpired(f'process {self.pid}', timeout) from error
        return self._fork.returncode


def start(
    program: str,
    *arguments: object,
    log: pathlib.Path,
    errors: pathlib.Path | None = None,
    cwd: pathlib.Path = CHECKOUT,
    env: Mapping[str, str] = os.environ,
) -> Program:
    """Starts a program.

    Args:
      program: the name of its module, or a path of a file that ends in `.py`.
      *arguments: its command line.
      log: the file for its output; an old one is replaced.
      errors: the file for its errors, for which it has the log by default.
      cwd: its working directory, where it also finds modules.
      env: its environment.
    """
    given = {'program': program, 'arguments': [*map(str, arguments)], 'cwd': str(cwd), 'env': dict(env)}
    given |= {'errors': str(errors) if errors else '', 'loaded': str(warm_parents.loaded())}
    given['without_extensions'] = without_extensions.is_installed()
    with log.open('w') as file:
        parent = _warm_parent()
        with _patient():
            fork = parent.start([sys.executable, '-m', 'tests.testing.forks', json.dumps(given)], file.fileno())
    assert fork, 'the warm parent has ended'
    return Program(fork)


def run(
    program: str, *arguments: object, timeout: float, cwd: pathlib.Path = CHECKOUT, env: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, as `subprocess.run` does; `start` says what the arguments are."""
    with tempfile.TemporaryDirectory() as folder:
        log, errors = (pathlib.Path(folder) / name for name in ('log', 'errors'))
        process = start(program, *arguments, log=log, errors=errors, cwd=cwd, env=env)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        assert errors.exists(), f'{program} ended with exit code {code} before it began: {log.read_text()}'
        return subprocess.CompletedProcess([program, *arguments], code, log.read_text(), errors.read_text())


@functools.cache
def _warm_parent() -> WarmParent:
    with warm_parents.forked(warm_parents.loaded()):
        parent = WarmParent([sys.executable, *warm_parents.PROGRAM], sys.__stderr__)
    with _patient():
        parent.wait_until_ready(lambda: False)
    return parent


def _patient() -> contextlib.AbstractContextManager[object]:
    """A launcher starts jobs without a warm parent that is slow; here that would be a failure of a busy machine."""
    return mock.patch.multiple(warm_parent, _READY_TIMEOUT_SECS=_PATIENCE_SECS, _REPLY_TIMEOUT_SECS=_PATIENCE_SECS)


def _main() -> None:
    """Becomes the program, in the fork."""
    given = json.loads(sys.argv[1])
    os.chdir(given['cwd'])
    os.environ.clear()
    os.environ.update(given['env'])
    if given['errors']:
        with open(given['errors'], 'w') as errors:
            os.dup2(errors.fileno(), 2)
    sys.path.insert(0, given['cwd'])
    if given['without_extensions']:
        without_extensions.install()
    program = given['program']
    sys.argv = [program, *given['arguments']]
    with warm_parents.forked(pathlib.Path(given['loaded'])):
        if program.endswith('.py'):
            runpy.run_path(program, run_name='__main__')
        else:
            runpy.run_module(program, run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    _main()
