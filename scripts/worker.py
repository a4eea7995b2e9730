"""Runs one of several learner workers, which find each other through the run directory; Slurm or Ray starts it.

Usage: worker ROOT_DIR TIMEOUT_SECS PROGRAM ARGUMENT...
"""

import os
import sys

from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS, UserError
from tflearn.files.run_dir import RunDir
from tflearn.launch import learner_workers


def main() -> None:
    """Runs the program; its rank is that of a task of Slurm, or `rank/workers` of TFLEARN_WORKER."""
    root, timeout_secs, *command = sys.argv[1:]
    run_dir, place = RunDir(root), os.environ.get('TFLEARN_WORKER')
    rank, workers = map(int, place.split('/') if place else (os.environ['SLURM_PROCID'], os.environ['SLURM_NTASKS']))
    if place and rank:  # The job's log is the chief's: two machines cannot append to one file safely.
        log = os.open(run_dir.log(f'train_{rank}'), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
    try:
        config = learner_workers.tf_config(run_dir, rank, workers, float(timeout_secs))
    except UserError as error:
        print(f'tflearn-worker: error: {error}', file=sys.stderr)
        sys.exit(TRY_AGAIN_EXIT_STATUS)  # it may wait for one whose machine was lost
    learner_workers.execute(command, config)


if __name__ == '__main__':
    main()
