"""Shows a run that runs elsewhere, by the files that its jobs write: on a cluster, by hand, or in one process."""

import contextlib
import os
import threading
import time
from collections.abc import Callable

from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import RunDir, job_kind
from tflearn.launch.reports import JobReport, RunReport
from tflearn.launch.supervisor import SHOW_INTERVAL_SECS, View
from tflearn.launch.topology import KINDS

_ENDINGS = 'finished', 'stopped', 'failed', 'died'


def watch(run_dir: RunDir, view: View, stop: Callable[[], bool] = lambda: False) -> None:
    """Shows a run until it is done, or has failed under a launch, or `stop` returns True."""
    pause, start = threading.Event(), _start(run_dir)
    view.open()
    try:
        while True:
            run_dir.store.refresh()
            report = read_report(run_dir, time.time() - start)
            if report.jobs:
                view.show(report)
            launch = run_dir.statuses().get('launch', {}).get('state')
            if stop() or run_dir.done.exists() or run_dir.failure.exists() or launch in _ENDINGS:
                return
            pause.wait(SHOW_INTERVAL_SECS)
    finally:
        view.close()


def check(run_dir: RunDir) -> None:
    """Raises ValueError if there is no run."""
    if not run_dir.done.exists() and not run_dir.statuses():
        raise UserValueError(f'got {run_dir.location}, where no job has reported; need the --root_dir of a run')


def read_report(run_dir: RunDir, secs: float) -> RunReport:
    """Returns the run as its jobs have reported it; `secs` is how long it has been running [s]."""
    statuses, jobs = run_dir.statuses(), []
    restarts = statuses.get('launch', {}).get('restarts') or {}
    for name, status in statuses.items():
        if kind := job_kind(name, status, KINDS):
            state = str(status.get('state', 'starting'))
            alive = not state.startswith(_ENDINGS)
            jobs.append(JobReport(name, kind, state, alive, restarts.get(name, 0), status))
    order = ('replay_server', 'train', 'evaluate', 'collect')
    jobs.sort(key=lambda job: (order.index(job.kind) if job.kind in order else len(order), len(job.name), job.name))
    return RunReport(tuple(jobs), secs)


def _start(run_dir: RunDir) -> float:
    """Returns when the run's newest session began, as far as files tell it [s since 1970]."""
    for path in (run_dir.commands, run_dir.config, run_dir.status('train')):
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime
    return time.time()
