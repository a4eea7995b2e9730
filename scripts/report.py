"""Writes one page about runs: tflearn-report RUN [RUN ...] [--output=report.html].

The page needs no network. It says which setting was best, how sure that is, what was slow, and how to repeat it; and
shows curves, the time of each part, episodes, configurations, how the runs ended, and a video if one was recorded. Each
RUN is a group, as for tflearn-compare.
"""

import pathlib

from absl import flags

from . import job_flags


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-report', __doc__, _run, ('measure', 'report'), arguments='RUN ...')


def _run(switches: flags.FlagValues, *roots: str) -> int:
    from tflearn.extensions.experiments import report

    job_flags.make_local('output', values=switches)
    print(report.write(roots, pathlib.Path(switches.output), switches.axis, switches.metric, switches.lower_is_better))
    print(f'\nwritten to {switches.output}')
    return 0


if __name__ == '__main__':
    main()
