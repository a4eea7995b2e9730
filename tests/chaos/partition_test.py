"""A network that delivers nothing between a job and the replay server, for half a minute or for ever."""

import contextlib
import pathlib
import subprocess
import sys
import threading

import pytest

from tests.chaos.chaos_run import ROOT, wait_for
from tflearn.launch.local import free_port
from tflearn.run_dir import RunDir, read_json

pytestmark = pytest.mark.chaos

PARTITION_SECS = 30.0
TIMEOUT_SECS = 60.0
_PROXY = pathlib.Path(__file__).with_name('proxy.py')
BINDINGS = (
    'evaluate.evaluate.target_return=None',
    'train.StopConditions.num_train_steps=1_000_000',
    f'train.Data.timeout_secs={TIMEOUT_SECS}',
)


class Partitioned:
    """A replay server, a learner and a collector by hand; one of them reaches the server by a proxy."""

    def __init__(self, directory: pathlib.Path, job: str, opened: contextlib.ExitStack):
        self._directory, self._run_dir, self._opened = directory, RunDir(directory / 'run'), opened
        self._partition = directory / 'partition'
        port, proxy = free_port(), free_port()
        self._start(
            'proxy', [str(pathlib.Path(__file__).with_name('proxy.py')), str(proxy), str(port), str(self._partition)]
        )
        flags = [
            f'--root_dir={self._run_dir.root}',
            '--gin_file=dqn_cartpole',
            f'--connect_timeout_secs={TIMEOUT_SECS}',
        ]
        flags += [f'--gin_bindings={binding}' for binding in BINDINGS]
        self.jobs = {
            name: self._start(name, ['-m', f'scripts.{name}', *flags, f'--replay_address=localhost:{reached}'])
            for name in ('replay_server', 'train', 'collect')
            for reached in [proxy if name == job else port]
        }

    def _start(self, name: str, arguments: list[str]) -> subprocess.Popen:
        log = self._opened.enter_context(self.log(name).open('wb'))
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        self._opened.callback(process.wait, 60.0)
        self._opened.callback(process.kill)
        return process

    def log(self, name: str) -> pathlib.Path:
        return self._directory / f'{name}.log'

    @property
    def train_step(self) -> int:
        with contextlib.suppress(ValueError):
            return int((read_json(self._run_dir.status('train')) or {}).get('train_step') or 0)
        return 0

    def progress(self) -> float:
        step = self.train_step
        return wait_for(lambda: self.train_step > step + 1_000, 'more train steps')

    def divide(self) -> None:
        self._partition.touch()

    def join(self) -> None:
        self._partition.unlink()


@pytest.mark.parametrize('job', ['train', 'collect'])
def test_a_partition_that_heals_is_survived(tmp_path, promise, job):
    with contextlib.ExitStack() as opened:
        run = Partitioned(tmp_path, job, opened)
        run.progress()
        run.divide()
        threading.Event().wait(PARTITION_SECS)
        run.join()
        secs = run.progress()
        assert [process.poll() for process in run.jobs.values()] == [None] * 3
    promise(f'no network between {job} and the replay server for {PARTITION_SECS:.0f} s', 'nothing', secs)


@pytest.mark.parametrize('job', ['train', 'collect'])
def test_a_partition_without_end_ends_the_job(tmp_path, promise, job):
    with contextlib.ExitStack() as opened:
        run = Partitioned(tmp_path, job, opened)
        run.progress()
        run.divide()
        secs = wait_for(lambda: run.jobs[job].poll() is not None, 'its end', 2 * TIMEOUT_SECS)
        assert run.jobs[job].poll() == 2
        last = run.log(job).read_text().splitlines()[-1]
        assert 'timed out after' in last and 'replay server at localhost' in last, last
    promise(
        f'no network between {job} and the replay server, without end',
        'nothing that was saved',
        f'ends after {secs:.0f} s',
    )
