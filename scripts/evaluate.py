"""Evaluates each policy that the train job exports, until the run has ended; draws the learning curve.

When a target return is set and reached, it asks the train job to finish. --replay_address is used only if the published
weights are evaluated (EvaluateOptions.follow).
"""

from . import job_setup


def run(setup: job_setup.Setup) -> None:
    """Configures and runs the job."""
    from tflearn.jobs import evaluate  # After the flags are parsed: it loads TensorFlow.

    configured = setup.configure(
        evaluate.evaluate,
        run_dir=setup.run_dir,
        replay_address=setup.replay_address,
        connect_timeout_secs=setup.connect_timeout_secs,
        stop=setup.stop,
    )
    setup.run(configured)


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('evaluate', __doc__, run)


if __name__ == '__main__':
    main()
