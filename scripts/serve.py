"""Serves the policies that a run exports, by TensorFlow Serving's gRPC and REST interfaces.

Each in its newest version, or in those that tflearn-promote has chosen. It needs the extra `serving`. A model has the
name of the policy's directory, such as `greedy_policy`.
"""

import threading

from absl import flags

from tflearn.core import waiting

from . import job_flags, job_setup, preflight, serve_flags


def serve_policies(stop: threading.Event) -> None:
    """Runs the job with the flags of this program."""
    with waiting.may_exit(stop, lambda: None):  # nothing was begun
        preflight.import_quietly('tensorflow', 'gym')
        from tflearn.extensions.serving import serve  # After the flags are parsed: it loads TensorFlow.
        from tflearn.jobs.run import Run

    with job_flags.opened_run_dir(flags.FLAGS.root_dir, 'serve') as run_dir:
        run = Run(run_dir, stop, connect_timeout_secs=flags.FLAGS.connect_timeout_secs)
        serve.serve(run=run, **serve_flags.arguments())


def main() -> None:
    """Runs the program; see `job_setup.plain_main`."""
    groups = ('connection', 'serve')
    job_setup.plain_main('serve', __doc__, serve_policies, '--port=8500', serve_flags.check, groups)


if __name__ == '__main__':
    main()
