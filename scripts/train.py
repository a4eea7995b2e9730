"""Trains the agent of a run on the experience in the replay server, and publishes its weights to the collectors.

Checkpoints and policies are written to --root_dir; the same command continues from the newest checkpoint.
"""

from collections.abc import Sequence

from absl import flags

from . import job_flags, job_setup


def define_flags() -> None:
    """Defines the flags of this job."""
    job_flags.define_feed()
    flags.DEFINE_string(
        'strategy',
        None,
        "Where train steps run; overrides train.Device.strategy of the gin file. 'default': the first device; 'cpu', "
        "'gpu': that one; 'mirrored', 'mirrored:N': all GPUs of this machine, the first N devices; 'multi_worker': the "
        "machines in TF_CONFIG; 'tpu:local', 'tpu:ADDRESS', 'tpu': the TPU of this machine, the one at HOST:PORT or "
        'with that name, the one in TPU_NAME.',
    )
    flags.DEFINE_string(
        'dry_run',
        None,
        "Cluster shape, such as '2x4' for 2 hosts with 4 replicas each: trains nothing, compiles the train step of one "
        'of these replicas for this CPU, and logs its shapes, the bytes that it sends, and what a TPU would refuse. '
        'Needs no replay server, and writes nothing to --root_dir.',
    )


def bindings() -> Sequence[str]:
    """Returns the gin statements that --strategy, --dry_run and --feed_address stand for."""
    given = {name: flags.FLAGS[name].value for name in ('strategy', 'dry_run')}
    lines = [f'Device.{name} = {value!r}' for name, value in given.items() if value]
    lines = ['train.device = @tflearn.jobs.train.Device()', *lines] if lines else []
    if flags.FLAGS.feed_address:
        lines += ['train.data = @tflearn.jobs.train.Data()', f'Data.feed_address = {job_flags.feed_address()!r}']
    return [f'tflearn.jobs.train.{line}' for line in lines]


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('train', __doc__, define_flags=define_flags, bindings=bindings)


if __name__ == '__main__':
    main()
