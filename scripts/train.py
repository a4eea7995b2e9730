"""Trains the agent of a run on what its collectors put into the replay server, and publishes its weights to them.

Checkpoints and policies go to --root_dir; the same command goes on from the newest checkpoint.
"""

from . import gin_config, job_setup, saved_config


def run(setup: job_setup.Setup) -> None:
    """Configures and runs the job; keeps its configuration with the results."""
    from tflearn.jobs import train  # TensorFlow comes with it: not before the flags are parsed.

    configured: gin_config.ConfiguredJob = setup.configure(
        train.train,
        on_restored=lambda: saved_config.save(setup.run_dir, configured.text),
        describe=lambda: setup.describe(configured),
        run_dir=setup.run_dir,
        replay_address=setup.replay_address,
        connect_timeout_secs=setup.connect_timeout_secs,
        stop=setup.stop,
    )
    setup.run(configured)


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('train', __doc__, run)


if __name__ == '__main__':
    main()
