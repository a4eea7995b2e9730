"""Serves policies; see tflearn/extensions/serving/cli.py."""

import signal

from tflearn.core import extensions

from . import job_flags, job_setup


def main() -> None:
    """Runs the program; see `job_setup.plain_main`."""
    with job_flags.ending('tflearn-serve'):
        cli = extensions.load('serve')
    groups = ('connection', 'serve')
    job_setup.plain_main(
        'tflearn-serve', cli.__doc__, cli.run, '--port=8500', cli.check, groups, done_by=signal.SIGTERM
    )


if __name__ == '__main__':
    main()
