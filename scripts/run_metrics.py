"""Serves the metrics that a run's jobs report, for Prometheus, at http://HOST:PORT/metrics.

The manifests of --backend=kubernetes start it beside the replay server.
"""

import functools
import signal
import sys
import types

from absl import flags

from tflearn.files.run_dir import opened_run_dir
from tflearn.jobs import run_metrics
from tflearn.launch.topology import KINDS

from . import job_flags


def main(program: str) -> None:
    """Serves until SIGTERM or SIGINT."""
    job_flags.define(*job_flags.RUN, 'run_metrics')
    if not job_flags.read(program, __doc__, lambda: None, '--port=9100'):
        return
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGINT, _exit)
    with (
        job_flags.ending(program),
        opened_run_dir(flags.FLAGS.root_dir, 'run_metrics') as run_dir,
    ):
        run = flags.FLAGS.run or run_dir.location.rpartition('/')[2]
        report = functools.partial(print, flush=True)
        run_metrics.serve(run_dir, run, KINDS, flags.FLAGS.host, flags.FLAGS.port, report)


def _exit(number: int, frame: types.FrameType | None) -> None:
    sys.exit(0 if number == signal.SIGTERM else 128 + number)
