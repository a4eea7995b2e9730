"""Writes one page about runs: tflearn-report RUN [RUN ...] [--output=report.html].

The page needs no network. It says which setting was best, how sure that is, what was slow, and how to repeat it; and
shows curves, the time of each part, episodes, configurations, how the runs ended, and a video if one was recorded. Each
RUN is a group, as for tflearn-compare.
"""

from absl import flags

from tflearn.files.run_dir import local_path

from . import compare, job_flags, preflight


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-report', __doc__, _define, _run, arguments='RUN ...')


def _define(switches: flags.FlagValues) -> None:
    compare.define_measure(switches)
    flags.DEFINE_string('output', 'report.html', 'The page.', flag_values=switches)


def _run(switches: flags.FlagValues, *roots: str) -> int:
    preflight.import_quietly('tensorflow')
    from tflearn.experiments import report

    output = local_path(switches.output, '--output')
    print(report.write(roots, output, switches.axis, switches.metric, switches.lower_is_better))
    print(f'\nwritten to {output}')
    return 0


if __name__ == '__main__':
    main()
