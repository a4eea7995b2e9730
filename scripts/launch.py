"""Starts all jobs of a run on this machine and shows in one view how they do, until the run has ended.

The same command goes on where the last one was stopped. Without --replay_address the replay server gets a free port.
"""

import sys

from absl import flags

from tflearn.config import files
from tflearn.errors import UserError
from tflearn.launch import local
from tflearn.launch.topology import local_topology
from tflearn.run_dir import RunDir

from . import job_flags, preflight


def launch() -> int:
    """Runs the jobs with the flags of this program. Returns the exit code, see `local.run`."""
    values = flags.FLAGS
    run_dir = RunDir(values.root_dir)
    gin_file = files.resolve(values.gin_file)
    shared = [f'--root_dir={run_dir.root}', f'--gin_file={gin_file}']
    shared += [f'--gin_bindings={binding}' for binding in values.gin_bindings]
    address = local.free_address() if values['replay_address'].using_default_value else values.replay_address
    shared += [f'--replay_address={address}', f'--connect_timeout_secs={values.connect_timeout_secs:g}']
    shared += [f'--stop_timeout_secs={values.stop_timeout_secs:g}']
    topology = local_topology(package=str(__package__), flags=shared, num_collectors=values.num_collectors)
    from tflearn.config import preview  # Half a second that a wrong flag need not wait for.
    from tflearn.jobs import environment_check

    kinds = sorted({f'tflearn.jobs.{job.kind}' for job in topology.jobs})
    preview.check(gin_file, values.gin_bindings, kinds, environment_check.check)
    # The jobs end themselves when that time is over; this is for those that cannot.
    return local.run(topology, run_dir, stop_timeout_secs=values.stop_timeout_secs + 10.0)


def main() -> None:
    """Runs the program."""
    job_flags.define()
    flags.DEFINE_integer('num_collectors', 1, 'How many collect jobs to start.', lower_bound=1)
    try:
        preflight.check()
        preflight.import_from_here()
        job_flags.parse(sys.argv)
        if flags.FLAGS.help or flags.FLAGS.helpfull:
            print(job_flags.help_text('tflearn-launch', __doc__ or '', full=flags.FLAGS.helpfull))
            return
        sys.exit(launch())
    except UserError as error:
        print(f'tflearn-launch: error: {error}', file=sys.stderr)
        sys.exit(2)


if __name__ == '__main__':
    main()
