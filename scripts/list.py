"""Lists the runs in a folder and its sub-folders: tflearn-list DIR [DIR ...].

It says of each run how it is (done, failed, running, stopped), its steps, the mean return of its newest and of its best
evaluation, and when it last reported. It writes nothing.
"""

from absl import flags

from . import job_flags


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-list', __doc__, _run, arguments='DIR ...')


def _run(switches: flags.FlagValues, *roots: str) -> int:
    from tflearn.extensions.experiments import overview

    print('\n\n'.join(map(overview.table, roots)))
    return 0


if __name__ == '__main__':
    main()
