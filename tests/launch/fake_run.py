"""Runs of fake jobs, in this process or in a launch process of their own, and what is left of them."""

import contextlib
import dataclasses
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.topology import COORDINATOR_ADDRESS, RULES, Job, Resources, Topology

DEADLINE_SECS = 20.0
_PROGRAM = pathlib.Path(__file__).with_name('fake_job.py')
_LAUNCH = """
import pickle, sys
from tflearn.launch import local
from tflearn.files.run_dir import RunDir
topology, options = pickle.load(open(sys.argv[2], 'rb'))
with local.ready_warm_parent(topology) as warm_parent:
    sys.exit(local.run(topology, RunDir(sys.argv[1]), warm_parent=warm_parent, **options))
"""
# What the jobs of a local run are to it, by kind.
ROLES: dict[str, dict[str, Any]] = {
    'replay_server': {'serves': 'train', 'may_finish': False, 'stop_stage': 1},
    'coordinator': {'serves': 'train', 'may_finish': False, 'stop_stage': 1},
    'train': {},
    'evaluate': {},
    'collect': {'serves': 'train'},
}
RUNNING, WAIT = 'status={"state": "running"}', 'wait=30'
RUN = [RUNNING, WAIT]


def topology(
    run_dir: RunDir,
    warm_parent: tuple[str, ...] | None = None,
    resources: Mapping[str, Resources] | None = None,
    **steps: list[str],
) -> Topology:
    """A topology of fake jobs: their names, which begin with their kind, and their steps (see fake_job.py)."""
    jobs = []
    for name, its_steps in steps.items():
        kind = next(kind for kind in ROLES if name.startswith(kind))
        program = ('-m', 'tests.launch.fake_job') if warm_parent else (str(_PROGRAM),)
        command = (sys.executable, *program, str(run_dir.root), name, *its_steps)
        its_resources = (resources or {}).get(kind, Resources())
        jobs.append(Job(name, command, kind, restart=RULES[kind], resources=its_resources, **ROLES[kind]))
    return Topology(tuple(jobs), warm_parent)


def run_on_nodes(run_dir: RunDir, train_cores: int, stop_timeout_secs: float) -> Topology:
    """Jobs that say where the server is, of them a learner of two workers, for a cluster that loses nodes."""
    say = f'say=the server is at {COORDINATOR_ADDRESS}'
    steps = {job: [say, RUNNING, 'wait=900'] for job in ('replay_server', 'collect_0')}
    steps |= {'train': ['env=TF_CONFIG', say, RUNNING, 'wait=900'], 'evaluate': [RUNNING, 'wait=900']}
    resources = {'train': Resources(cores=train_cores), 'replay_server': Resources(cores=2)}
    made = topology(run_dir, resources=resources, **steps)
    jobs = tuple(dataclasses.replace(job, workers=2 if job.kind == 'train' else 1) for job in made.jobs)
    return dataclasses.replace(made, jobs=jobs, stop_timeout_secs=stop_timeout_secs)


@contextlib.contextmanager
def launched(
    run_dir: RunDir, jobs: Topology, stdout: int = subprocess.PIPE, **options: Any
) -> Iterator[subprocess.Popen]:
    """A launch process over `jobs`; it is killed at the end if it still lives."""
    times = {name: options.pop(name) for name in list(options) if name in ('stop_timeout_secs', 'silent_timeout_secs')}
    jobs = dataclasses.replace(jobs, **times)
    run_dir.root.mkdir(parents=True, exist_ok=True)
    arguments = run_dir.root / 'launch.pickle'
    arguments.write_bytes(pickle.dumps((jobs, options)))
    command = [sys.executable, '-c', _LAUNCH, str(run_dir.root), str(arguments)]
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(launch: subprocess.Popen) -> tuple[int, str, str]:
    """Waits for the end of a launch process. Returns exit code, output, stderr."""
    out, err = launch.communicate(timeout=DEADLINE_SECS)
    return launch.returncode, out, err


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Waits until `condition` returns something true, and returns that."""
    deadline = time.monotonic() + DEADLINE_SECS
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, f'timed out after {DEADLINE_SECS} s waiting for {what}'
        pause.wait(0.02)
    return value


def pids(run_dir: RunDir, *jobs: str) -> list[int]:
    """The processes of `jobs`, once all of them have reported."""

    def pids() -> list[int] | None:
        statuses = [read_json(run_dir.status(job)) for job in jobs]
        return [status['pid'] for status in statuses] if all(statuses) else None

    return wait_for(pids, f'the statuses of {jobs}')


def gone(pid: int) -> bool:
    """Whether a process has ended (it may wait to be collected by its new parent)."""
    try:
        os.kill(pid, 0)
        return pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] == 'Z'
    except (ProcessLookupError, FileNotFoundError):
        return True


def kill_all_but(jobs: list[int], launch: subprocess.Popen) -> None:
    """Kills a launch together with all that it has started, such as its reaper; its jobs are left."""
    os.kill(launch.pid, signal.SIGSTOP)  # It sees nobody's end.
    started = pathlib.Path(f'/proc/{launch.pid}/task/{launch.pid}/children').read_text().split()
    for pid in {*map(int, started)} - {*jobs}:
        os.kill(pid, signal.SIGKILL)
    launch.kill()
    launch.wait(timeout=DEADLINE_SECS)


def stopped(run_dir: RunDir) -> list[str]:
    """The jobs that were asked to stop, in order."""
    return (run_dir.root / 'stopped').read_text().split()
