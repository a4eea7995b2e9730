"""A run whose jobs are started by hand, one by one: real programs, which nothing starts again."""

import contextlib
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.chaos.chaos_run import ROOT, wait_for
from tests.end_to_end import programs
from tests.testing import console_programs
from tflearn.files.run_dir import RunDir
from tflearn.launch.local import free_port


class HandRun:
    """The programs of one run; all are killed when `opened` is closed.

    Attributes:
      run_dir: its directory.
      port: the port that its coordinator is meant to have; `replay_port`: that of the replay server.
      replay_address: that of a Valkey server, in place of one that the replay server starts.
    """

    replay_address: str | None = None

    def __init__(
        self, directory: pathlib.Path, opened: contextlib.ExitStack, gin_file: str, bindings: Sequence[str] = ()
    ):
        """Starts nothing yet."""
        self.run_dir, self.port, self.replay_port = RunDir(directory / 'run'), free_port(), free_port()
        self._directory, self._opened = directory, opened
        self._flags = [f'--gin_file={gin_file}', *(f'--gin_bindings={binding}' for binding in bindings)]

    def start(
        self,
        job: str,
        *flags: str,
        name: str | None = None,
        address: str | None = None,
        root: pathlib.Path | None = None,
        prefix: Sequence[str] = (),
    ) -> subprocess.Popen:
        """Starts a job.

        Args:
          flags: more flags.
          name: the log's name; None is the job's.
          address: where it finds the coordinator, or listens; None is the run's port of this machine.
          root: another path of the run directory.
          prefix: a command that runs the program.
        """
        arguments = [
            *prefix,
            sys.executable,
            '-m',
            *console_programs.words(job),
            f'--root_dir={root or self.run_dir.root}',
        ]
        arguments += [*self._flags, f'--coordinator_address={address or self.address}', *flags]
        if job == 'replay_server':
            host = (address or self.address).rpartition(':')[0]
            replay = self.replay_address or f'{host}:{free_port() if address else self.replay_port}'
            arguments.append(f'--replay_address={replay}')
        return self.run(arguments, name or job)

    def run(self, arguments: Sequence[str], name: str) -> subprocess.Popen:
        """Starts any program."""
        log = self._opened.enter_context(self.log(name).open('wb'))
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        self._opened.callback(process.wait, 60.0)
        self._opened.callback(process.kill)
        return process

    @property
    def address(self) -> str:
        """The address of the coordinator on this machine."""
        return f'localhost:{self.port}'

    def log(self, name: str) -> pathlib.Path:
        """The log of a program."""
        return self._directory / f'{name}.log'

    def text(self, name: str) -> str:
        """What a program has written."""
        return self.log(name).read_text(errors='replace')

    def status(self, job: str) -> dict[str, Any]:
        """The newest status of a job; {} if there is none."""
        return programs.status(self.run_dir, job)

    @property
    def train_step(self) -> int:
        """The newest train step that the learner reported."""
        return int(self.status('train').get('train_step') or 0)

    def progress(self, steps: int = 300) -> float:
        """Waits until the learner has taken more train steps; returns the seconds."""
        step = self.train_step
        return wait_for(lambda: self.train_step > step + steps, 'more train steps', 300.0)
