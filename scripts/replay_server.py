"""Serves a run's replay: stores what the collectors send and serves it to the train job.

It listens at the port of --replay_address. Its content is saved in --root_dir and restored after a restart.
"""

from . import job_setup


def run(setup: job_setup.Setup) -> None:
    """Configures and runs the job."""
    from tflearn.jobs import replay_server  # After the flags are parsed: it loads TensorFlow.

    configured = setup.configure(
        replay_server.replay_server, run_dir=setup.run_dir, replay_address=setup.replay_address, stop=setup.stop
    )
    setup.run(configured)


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('replay_server', __doc__, run)


if __name__ == '__main__':
    main()
