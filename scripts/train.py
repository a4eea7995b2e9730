"""Trains the agent of a run on the experience in the replay server, and publishes its weights to the collectors.

Checkpoints and policies are written to --root_dir; the same command continues from the newest checkpoint.
"""

from collections.abc import Sequence

from absl import flags

from . import job_flags, job_setup

FLAGS = ('feed_address', 'train')


def bindings() -> Sequence[str]:
    """Returns the gin statements that --strategy, --feed_address and those of dry runs stand for."""
    found = []
    if device := job_flags.statements('train.Device', 'strategy', 'dry_run', 'cluster_shape', 'tpu'):
        found += ['tflearn.jobs.train.train.device = @tflearn.jobs.train.Device()', *device]
    if flags.FLAGS.feed_address:
        job_flags.feed_address()
        data = job_flags.statements('train.Data', 'feed_address')
        found += ['tflearn.jobs.train.train.data = @tflearn.jobs.train.Data()', *data]
    return found


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('train', __doc__, groups=FLAGS, bindings=bindings)


if __name__ == '__main__':
    main()
