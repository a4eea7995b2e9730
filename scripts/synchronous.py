"""Collects and trains alternately in one process, for debugging and for results that are repeatable bit by bit.

It uses the same gin file as the other jobs: the bindings of train and of collect. No other job needs to run. It writes
the same files to --root_dir as train, so evaluate works with it.
"""

from tflearn.config import job_config

from . import job_setup


def shared_arguments() -> job_config.SharedArguments:
    """Returns which bindings of the jobs train and collect hold for this job."""
    from tflearn.api import synchronous_run  # After the flags are parsed: it loads TensorFlow.

    return synchronous_run.shared_arguments()


def main(program: str) -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('synchronous', __doc__, program=program, shared=shared_arguments)
