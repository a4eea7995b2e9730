"""Becomes one learner worker of several, which find each other by the run directory; Slurm or Ray start it.

Usage: worker ROOT_DIR TIMEOUT_SECS PROGRAM ARGUMENT...
"""

import os
import sys

from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS, UserError
from tflearn.files.run_dir import RunDir
from tflearn.launch import learner_worker


def main() -> None:
    """Runs the program; its rank is that of a task of Slurm, or `rank/workers` of TFLEARN_WORKER."""
    root, timeout_secs, *command = sys.argv[1:]
    run_dir, place = RunDir(root), os.environ.get('TFLEARN_WORKER')
    try:
        if place:
            config = _grouped(run_dir, place, float(timeout_secs))
        else:
            names = ('SLURM_JOB_ID', 'SLURM_RESTART_COUNT', 'SLURM_STEP_ID')
            attempt = '.'.join(os.environ.get(name, '0') for name in names)
            rank, workers = int(os.environ['SLURM_PROCID']), int(os.environ['SLURM_NTASKS'])
            config = learner_worker.tf_config(run_dir, rank, workers, attempt, float(timeout_secs))
    except UserError as error:
        print(f'tflearn-worker: error: {error}', file=sys.stderr)
        # A worker that has a supervisor of its own may wait for one whose node was lost.
        sys.exit(TRY_AGAIN_EXIT_STATUS if place else 1)
    learner_worker.execute(command, config)


def _grouped(run_dir: RunDir, place: str, timeout_secs: float) -> str:
    rank, workers = map(int, place.split('/'))
    if rank:  # The job's log is the chief's: two machines cannot append to one file safely.
        log = os.open(run_dir.log(f'train_{rank}'), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
    return learner_worker.grouped_tf_config(run_dir, rank, workers, timeout_secs)


if __name__ == '__main__':
    main()
