"""The program of a job that has no gin file, only flags."""

import sys
import threading
from collections.abc import Callable

from absl import flags

from tflearn.errors import UserError

from . import job_flags, job_process, preflight


def main(
    job: str,
    description: str | None,
    run: Callable[[threading.Event], None],
    define_flags: Callable[[], None],
    example: str,
    check_flags: Callable[[], None] = lambda: None,
) -> None:
    """Runs a job's program; does not return but for --help. `job_setup.main` is the same for jobs with a gin file.

    Args:
      run: runs the job with its flags, until it is done, or until soon after its argument is set.
      example: a flag with a value, for --help.
      check_flags: raises ValueError for values that exclude each other.
    """
    program = f'tflearn-{job}'
    job_flags.define_process()
    define_flags()
    try:
        preflight.check()
        job_flags.parse_process(sys.argv)
        if flags.FLAGS.help or flags.FLAGS.helpfull:
            print(job_flags.help_text(program, description or '', flags.FLAGS.helpfull, example))
            return
        check_flags()
    except UserError as error:
        sys.exit(job_process.report(program, error))
    job_process.set_up_logging(job)
    job_process.run(program, run, flags.FLAGS.stop_timeout_secs)
