"""Serves policies; see tflearn/extensions/serving/cli.py."""

from tflearn.core import extensions

from . import job_flags, job_setup


def main() -> None:
    """Runs the program; see `job_setup.plain_main`."""
    with job_flags.ending('tflearn-serve'):
        cli = extensions.load('serve')
    job_setup.plain_main('tflearn-serve', cli.__doc__, cli.run, '--port=8500', cli.check, ('connection', 'serve'))


if __name__ == '__main__':
    main()
