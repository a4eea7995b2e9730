"""Serves the policies that a run exports: TensorFlow Serving's gRPC interface, always with the newest version.

Needs the extra `serving`. The name of a model is that of the policy's directory, `greedy_policy`.
"""

import sys
import threading

from absl import flags

from tflearn.run_dir import RunDir

from . import job_flags, job_process, preflight, serve_flags


def run(stop: threading.Event) -> None:
    """Runs the job with the flags of this program."""
    preflight.import_quietly('tensorflow', 'gym')
    from tflearn.jobs import serve  # TensorFlow comes with it: not before the flags are parsed.

    serve.serve(
        run_dir=RunDir(flags.FLAGS.root_dir),
        stop=stop,
        server_options=serve_flags.server_options(),
        options=serve_flags.serve_options(),
        connect_timeout_secs=flags.FLAGS.connect_timeout_secs,
    )


def main() -> None:
    """Runs the program."""
    program = 'tflearn-serve'
    job_flags.define_process()
    serve_flags.define()
    try:
        preflight.check()
        job_flags.parse_process(sys.argv)
        if flags.FLAGS.help or flags.FLAGS.helpfull:
            print(job_flags.help_text(program, __doc__ or '', flags.FLAGS.helpfull, '--port=8500'))
            return
        serve_flags.check()
    except (ImportError, ValueError) as error:
        sys.exit(job_process.report(program, error))
    job_process.set_up_logging('serve')
    job_process.run(program, run, flags.FLAGS.stop_timeout_secs)


if __name__ == '__main__':
    main()
