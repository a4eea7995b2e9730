"""Collects and trains alternately in one process, for debugging and for results that can be repeated bit by bit.

Uses the gin file of the other jobs: what it binds for train and for collect. No other job need run. It writes to
--root_dir what train writes there, so evaluate works with it.
"""

from tflearn.config import job_config, saved

from . import job_setup


def run(setup: job_setup.Setup) -> None:
    """Configures and runs the job; keeps its configuration with the results."""
    from tflearn.api import synchronous_run
    from tflearn.jobs import synchronous

    configured: job_config.ConfiguredJob = setup.configure(
        synchronous.synchronous,
        takes=synchronous_run.taken(),
        hooks=synchronous.Hooks(lambda: saved.save(setup.run_dir, configured.text), lambda: setup.describe(configured)),
        run_dir=setup.run_dir,
        stop=setup.stop,
    )
    setup.run(configured)


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('synchronous', __doc__, run)


if __name__ == '__main__':
    main()
