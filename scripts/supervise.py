"""Supervises one job of a run that a scheduler started on this machine; see tflearn/launch/supervised_job.py.

tflearn-launch --backend=slurm submits jobs that run this program; by hand it starts a job again as the scheduler would.
"""

import sys

from absl import flags

from tflearn.core import preflight
from tflearn.core.errors import UserError
from tflearn.files.run_dir import RunDir
from tflearn.launch import supervised_job

from . import job_flags


def main() -> None:
    """Runs the job with the flags of this program. The exit code is that of `supervised_job.run`."""
    job_flags.define(*job_flags.RUN, 'supervise')
    preflight.import_from_here()
    if not job_flags.read('tflearn-supervise', __doc__, _check, '--job=train'):
        return
    with job_flags.ending('tflearn-supervise'):
        sys.exit(supervised_job.run(RunDir(flags.FLAGS.root_dir), flags.FLAGS.job))


def _check() -> None:
    if not flags.FLAGS.job:
        raise UserError('got no --job; need the name of a job of the run, such as --job=train')


if __name__ == '__main__':
    main()
