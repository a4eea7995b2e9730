"""Collects experience: acts in the run's environment with the newest weights and sends the steps to the replay server.

Any number of these may run, each with its own --collector_name; they may start and stop during the run.
"""

from . import job_setup


def run(setup: job_setup.Setup) -> None:
    """Configures and runs the job."""
    from tflearn.jobs import collect  # After the flags are parsed: it loads TensorFlow.

    configured = setup.configure(
        collect.collect,
        run_dir=setup.run_dir,
        replay_address=setup.replay_address,
        connect_timeout_secs=setup.connect_timeout_secs,
        stop=setup.stop,
        name=setup.name,
    )
    setup.run(configured)


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('collect', __doc__, run, name_flag='collector_name')


if __name__ == '__main__':
    main()
