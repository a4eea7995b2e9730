"""Shows a run that runs elsewhere, until it is done: tflearn-watch RUN.

RUN is the --root_dir of a run, or its URL in an object store. It shows what tflearn-launch shows, by the files that the
jobs write: in a terminal a live view, otherwise a line every ten seconds. Ctrl-C ends only the view.
"""

import sys

from absl import flags

from . import job_flags


def main() -> None:
    """Runs the program."""
    job_flags.tool('tflearn-watch', __doc__, _run, arguments='RUN')


def _run(switches: flags.FlagValues, root: str) -> int:
    from tflearn.files.run_dir import read_json
    from tflearn.launch import local, reports, supervisor

    with job_flags.opened_run_dir(root, 'watch') as run_dir:
        supervisor.check_reported(run_dir)
        supervisor.watch(run_dir, local.make_view(sys.stdout, run_dir))
        if done := read_json(run_dir.done):
            print('\n'.join(reports.done_lines(run_dir, done)))
            return 0
        print(f'The run has ended without a result; its logs are in {reports.quoted(run_dir.logs)}.')
        return 1


if __name__ == '__main__':
    main()
