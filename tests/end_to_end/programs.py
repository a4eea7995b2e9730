"""The real programs as processes: watched with deadlines, never left behind."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import scripts
from tests.testing import console_programs, forks
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_address

_HERE = pathlib.Path(sys.executable)
CHECKOUT = pathlib.Path(scripts.__path__[0]).parent
# Many times what anything here takes, for machines that have other work to do.
DEADLINE_SECS = 240.0


class Addresses:
    """Those of a run's servers on this machine."""

    def __init__(self) -> None:
        self.coordinator, self.replay = free_address(), free_address()

    def flags(self, job: str) -> list[str]:
        """Returns those of the flags of a job that have addresses."""
        own = [f'--replay_address={self.replay}'] if job == 'replay_server' else []
        return [f'--coordinator_address={self.coordinator}', *own]


class Program:
    """One of the programs, at work in `folder`, where its output goes to <name>.out. Killed when the block is left."""

    def __init__(
        self,
        job: str,
        *flags: str,
        folder: pathlib.Path,
        name: str = '',
        forked: bool = False,
        python: pathlib.Path = _HERE,
    ):
        """Starts it.

        Args:
          job: whose program: 'train', 'launch', ...
          *flags: its command line.
          folder: its working directory.
          name: of its output; the job's by default.
          forked: whether it is a fork, which starts sooner; else it is started as users start it.
          python: which runs it, unless it is a fork.
        """
        self.name = name or job
        self._out = folder / f'{self.name}.out'
        environment = {**os.environ, 'PYTHONPATH': str(CHECKOUT)}
        self._process: subprocess.Popen[bytes] | forks.Program
        if forked:
            self._process = forks.start(
                *console_programs.words(job), *flags, log=self._out, cwd=folder, env=environment
            )
            return
        command = [python, '-m', *console_programs.words(job), *flags]
        with self._out.open('w') as out:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> 'Program':
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | types.TracebackType | None) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_SECS)

    @property
    def output(self) -> str:
        """All that it wrote until now, errors included."""
        return self._out.read_text()

    @property
    def last_line(self) -> str:
        return self.output.splitlines()[-1]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_for(self, condition: Callable[[], Any], what: str, timeout_secs: float = DEADLINE_SECS) -> Any:
        """Waits until `condition` returns something true, and returns that; fails at once when the program ends."""

        def look() -> Any:
            alive = self._process.poll() is None
            value = condition()
            assert value or alive, f'{self.name} ended before {what}:\n{self.output}'
            return value

        return wait_until(look, what, timeout_secs, poll_secs=0.05)

    def end(self) -> int:
        """Waits until it ends by itself. Returns its exit code."""
        return self._process.wait(DEADLINE_SECS)


def metric(run_dir: RunDir, job: str, key: str) -> Any:
    """A job's newest metric; 0 while there is none."""
    return (read_json(run_dir.status(job)) or {}).get(key) or 0


def pid(run_dir: RunDir, job: str) -> int:
    return int(read_json(run_dir.status(job))['pid'])


@contextlib.contextmanager
def starter(folder: pathlib.Path, gin_file: str, bindings: Iterable[str]) -> Iterator[Callable[..., Program]]:
    """Gives a function (job, name, *more flags) -> Program of one run in `folder`; all are killed at the end."""
    addresses = Addresses()
    flags = ['--root_dir=run', f'--gin_file={gin_file}', *(f'--gin_bindings={binding}' for binding in bindings)]
    with contextlib.ExitStack() as programs:

        def start(job: str, name: str = '', *more: str, **options: Any) -> Program:
            given = [*flags, *(addresses.flags(job) if job != 'synchronous' else ()), *more]
            return programs.enter_context(Program(job, *given, folder=folder, name=name, **options))

        yield start


def status(run_dir: RunDir, job: str) -> dict[str, Any]:
    """Returns the newest status of a job; {} if there is none."""
    with contextlib.suppress(ValueError, OSError):
        return read_json(run_dir.status(job)) or {}
    return {}
