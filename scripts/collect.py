"""Collects experience: acts in the run's environment with the newest weights and sends the steps to the replay server.

Any number of these may run, each with its own --collector_name; they may start and stop during the run.
"""

from . import job_setup


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('collect', __doc__, name_flag='collector_name', groups=('collect',))


if __name__ == '__main__':
    main()
