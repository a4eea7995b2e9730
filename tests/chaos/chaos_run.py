"""A run of real programs that faults happen to: kills, stops, a full disk; and what it says of itself meanwhile."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.end_to_end import programs
from tflearn.files.run_dir import RunDir

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_SECS = 900.0
JOBS = ('replay_server', 'train', 'evaluate', 'collect_0')


class ChaosRun:
    """A CartPole run by `tflearn-launch`, which the same command starts again after each end.

    Attributes:
      run_dir: its directory.
      output: what all its launches wrote.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        gin_file: str,
        bindings: Sequence[str],
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ):
        """Starts nothing yet; `environment` are more environment variables."""
        self._environment = {**os.environ, **(environment or {})}
        self.run_dir, self.output = RunDir(directory / 'run'), directory / 'output.txt'
        self._command = [sys.executable, '-m', 'scripts.launch', f'--root_dir={self.run_dir.root}', *flags]
        self._command += [f'--gin_file={gin_file}', *(f'--gin_bindings={binding}' for binding in bindings)]
        self._launch: subprocess.Popen | None = None

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Starts the run for the time of the block; kills what is left of it."""
        self.start()
        try:
            yield
        finally:
            if self._launch is not None:
                self._launch.kill()
                self._launch.wait(DEADLINE_SECS)
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def start(self) -> None:
        """Starts the launch."""
        with self.output.open('ab') as output:
            self._launch = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=output, stderr=subprocess.STDOUT
            )

    def ended(self) -> int | None:
        """Returns the exit status of the launch; None while it lives."""
        assert self._launch is not None
        return self._launch.poll()

    def wait(self, secs: float = DEADLINE_SECS) -> int:
        """Waits for the end of the launch; returns its exit status."""
        assert self._launch is not None
        return self._launch.wait(secs)

    def signal(self, job: str, number: int) -> bool:
        """Sends a signal to a job, or to 'launch'. Returns whether there was one."""
        pid = self._launch.pid if job == 'launch' and self._launch else self.status(job).get('pid')
        try:
            os.kill(int(pid), number)
        except (TypeError, ProcessLookupError):
            return False
        return True

    def status(self, job: str) -> dict[str, Any]:
        """Returns the newest status of a job; {} if there is none."""
        return programs.status(self.run_dir, job)

    @property
    def train_step(self) -> int:
        """The newest train step that the learner reported."""
        return int(self.status('train').get('train_step') or 0)

    @property
    def running(self) -> bool:
        """Whether the learner trains."""
        status = self.status('train')
        assert self.ended() in (None, 0), self.output.read_text()[-3000:]
        return str(status.get('state')).startswith('running') and time.time() - status['time'] < 5.0

    def running_after(self, pid: int | None) -> bool:
        """Whether another learner than that of process `pid` trains."""
        return self.running and self.status('train').get('pid') != pid

    def restored_step(self) -> int:
        """Returns the train step that the newest learner began with, as it logged it."""
        begun = re.findall(r'learner: .* train step (\d+), ', self.run_dir.log('train').read_text(errors='replace'))
        return int(begun[-1])

    def newest_checkpoint(self) -> int:
        """Returns the train step of the newest checkpoint; 0 if there is none."""
        steps = [int(path.stem.rpartition('-')[2]) for path in self.run_dir.checkpoints.glob('ckpt-*.index')]
        return max(steps, default=0)

    def evaluations(self) -> list[dict[str, Any]]:
        """Returns all evaluations so far."""
        return [json.loads(line) for line in self.run_dir.evaluations.read_text().splitlines()]

    def processes(self) -> list[int]:
        """Returns all living processes that have a file of the run open, as each job has its log."""
        found = []
        for path in pathlib.Path('/proc').glob('[0-9]*'):
            with contextlib.suppress(OSError):
                files = [os.readlink(file) for file in (path / 'fd').iterdir()]
                if any(file.startswith(f'{self.run_dir.root}/') for file in files):
                    found.append(int(path.name))
        return found


def wait_for(condition: Callable[[], Any], what: str, secs: float = 120.0) -> float:
    """Waits until `condition` is true; returns how long that took [s]."""
    start, pause = time.monotonic(), threading.Event()
    while not condition():
        assert time.monotonic() - start < secs, f'timed out after {secs:g} s waiting for {what}'
        pause.wait(0.1)
    return time.monotonic() - start
