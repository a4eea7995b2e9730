"""Serves a run's replay: stores what the collectors send and serves it to the train job.

It listens at the port of --replay_address. Its content is saved in --root_dir and restored after a restart.
"""

from . import job_setup


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('replay_server', __doc__)


if __name__ == '__main__':
    main()
