"""Starts all jobs of a run on this machine, and displays their progress until the run has ended.

The same command continues a run that was stopped. Without --coordinator_address all servers use free ports.

With another --backend it submits the jobs to a cluster's scheduler, and exits; --render prints what it would do.
"""

import contextlib
import sys

from absl import flags

from tflearn.api import process_run
from tflearn.core import preflight
from tflearn.core.verbs import values_of
from tflearn.files.run_dir import opened_run_dir

from . import job_flags


def main() -> None:
    """Runs the jobs with the flags of this program. The exit code is that of `process_run.run`."""
    job_flags.define(*job_flags.JOB, 'launch', 'replay_backend')
    preflight.import_from_here()
    if not job_flags.read('tflearn-launch', __doc__, job_flags.check):
        return
    values = flags.FLAGS
    # From the first job on, `local.run` handles SIGINT.
    with (
        job_flags.ending('tflearn-launch', 'stopped by SIGINT before any job was started'),
        contextlib.ExitStack() as ending,
    ):
        process_run.check_location(values.root_dir, values.backend)  # before a store's library is asked for
        run_dir = ending.enter_context(opened_run_dir(values.root_dir, 'launch'))
        if values.share_with_group:
            run_dir.make(share_with_group=True)
        code = process_run.run(
            run_dir,
            values.gin_file,
            values.gin_bindings,
            package=str(__package__),
            coordinator_address=values.coordinator_address if values['coordinator_address'].present else None,
            backend=process_run.Backend(
                values.backend, values.backend_option, values.resources, values.num_workers, values.render
            ),
            more_flags=job_flags.given('coordinator_token', 'weights_dtype', 'replay_backend', 'profile_python'),
            **values_of(flags.FLAGS, 'num_collectors', 'num_replay_servers', 'num_relays', 'num_feed_workers'),
            **values_of(flags.FLAGS, 'connect_timeout_secs', 'stop_timeout_secs', 'silent_timeout_secs'),
            **values_of(flags.FLAGS, 'coordinator_alone', 'warm_start', 'code_snapshot'),
        )
    sys.exit(code)


if __name__ == '__main__':
    main()
