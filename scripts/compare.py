"""Compares runs by their evaluations: tflearn-compare RUN [RUN ...].

Each RUN is a group: a folder of runs, as tflearn-seeds makes it, or the --root_dir of one run; single runs whose
configuration differs in seeds only are one group. It prints a table: the score of each group with its 95% interval,
and how probable it is that a run of it is better than one of the first group. It writes nothing but --output.
"""

import pathlib

from absl import flags

from . import job_flags


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-compare', __doc__, _run, ('measure', 'compare'), arguments='RUN ...')


def _run(switches: flags.FlagValues, *roots: str) -> int:
    from tflearn.extensions.experiments import comparison

    found = comparison.compare(
        *roots, axis=switches.axis, metric=switches.metric, lower_is_better=switches.lower_is_better
    )
    print(found)
    if switches.output:
        comparison.write(found, pathlib.Path(switches.output))
        print(f'\nlearning curves: {pathlib.Path(switches.output) / "comparison.png"}')
    return 0


if __name__ == '__main__':
    main()
