"""Runs one of several learner workers, which find each other through the run directory; Slurm starts it.

Usage: worker ROOT_DIR TIMEOUT_SECS PROGRAM ARGUMENT...
"""

import os
import sys

from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS, UserError
from tflearn.files.run_dir import RunDir
from tflearn.launch import learner_workers


def main() -> None:
    """Runs the program; its rank is that of a task of Slurm."""
    root, timeout_secs, *command = sys.argv[1:]
    run_dir, rank, workers = RunDir(root), int(os.environ['SLURM_PROCID']), int(os.environ['SLURM_NTASKS'])
    try:
        config = learner_workers.tf_config(run_dir, rank, workers, float(timeout_secs))
    except UserError as error:
        print(f'tflearn-worker: error: {error}', file=sys.stderr)
        sys.exit(TRY_AGAIN_EXIT_STATUS)  # it may wait for one whose machine was lost
    learner_workers.execute(command, config)


if __name__ == '__main__':
    main()
