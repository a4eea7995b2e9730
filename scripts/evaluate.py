"""Evaluates each policy that the train job exports, until the run has ended; draws the learning curve.

When a target return is set and reached, it asks the train job to finish. --replay_address is used only if the published
weights are evaluated (EvaluateOptions.follow).
"""

from . import job_setup


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('evaluate', __doc__)


if __name__ == '__main__':
    main()
