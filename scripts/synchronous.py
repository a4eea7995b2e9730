"""Collects and trains alternately in one process, for debugging and for results that can be repeated bit by bit.

Uses the gin file of the other jobs: what it binds for train and for collect. No other job need run. It writes to
--root_dir what train writes there, so evaluate works with it.
"""

from tflearn.config import job_config

from . import job_setup


def shared_arguments() -> job_config.SharedArguments:
    """Returns which bindings of the jobs train and collect hold for this job."""
    from tflearn.api import synchronous_run  # After the flags are parsed: it loads TensorFlow.

    return synchronous_run.shared_arguments()


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('synchronous', __doc__, shared=shared_arguments)


if __name__ == '__main__':
    main()
