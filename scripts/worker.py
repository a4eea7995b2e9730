"""Becomes one learner worker of several, which find each other by the run directory; a step of Slurm starts it.

Usage: worker ROOT_DIR TIMEOUT_SECS PROGRAM ARGUMENT...
"""

import os
import sys

from tflearn.errors import UserError
from tflearn.run_dir import RunDir
from tflearn.schedulers import worker


def main() -> None:
    """Runs the program; its rank and the name of this start come from Slurm."""
    root, timeout_secs, *command = sys.argv[1:]
    names = ('SLURM_JOB_ID', 'SLURM_RESTART_COUNT', 'SLURM_STEP_ID')
    attempt = '.'.join(os.environ.get(name, '0') for name in names)
    rank, workers = int(os.environ['SLURM_PROCID']), int(os.environ['SLURM_NTASKS'])
    try:
        config = worker.tf_config(RunDir(root), rank, workers, attempt, float(timeout_secs))
    except UserError as error:
        print(f'tflearn-worker: error: {error}', file=sys.stderr)
        sys.exit(1)
    worker.execute(command, config)


if __name__ == '__main__':
    main()
