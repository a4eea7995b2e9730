"""Compares runs by their evaluations: tflearn-compare RUN [RUN ...].

Each RUN is a group: a folder of runs, as tflearn-seeds makes it, or the --root_dir of one run; single runs whose
configuration differs in seeds only are one group. It prints a table: the score of each group with its 95% interval,
and how probable it is that a run of it is better than one of the first group. It writes nothing but --output.
"""

import pathlib

from absl import flags

from . import job_flags, preflight


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-compare', __doc__, _define, _run, arguments='RUN ...')


def define_measure(switches: flags.FlagValues) -> None:
    """Defines the flags of what is compared."""
    axes = ['env_steps', 'secs', 'train_step']
    help = 'What the curves are compared against: environment steps, seconds since the first policy, or train steps.'
    flags.DEFINE_enum('axis', axes[0], axes, help, flag_values=switches)
    flags.DEFINE_string('metric', 'return', 'A metric of the evaluations.', flag_values=switches)
    flags.DEFINE_bool('lower_is_better', False, 'Whether a smaller value is better.', flag_values=switches)


def _define(switches: flags.FlagValues) -> None:
    define_measure(switches)
    help = 'A folder for comparison.md, comparison.png and comparison.csv; without it nothing is written.'
    flags.DEFINE_string('output', None, help, flag_values=switches)


def _run(switches: flags.FlagValues, *roots: str) -> int:
    preflight.import_quietly('tensorflow')
    from tflearn.experiments import comparison

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
