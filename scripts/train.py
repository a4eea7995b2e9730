"""Trains the agent of a run on the experience in the replay server, and publishes its weights to the collectors.

Checkpoints and policies are written to --root_dir; the same command continues from the newest checkpoint.
"""

from collections.abc import Sequence

from absl import flags

from . import job_setup


def define_flags() -> None:
    """Defines the flags of this job."""
    flags.DEFINE_string(
        'strategy',
        None,
        "Where train steps run; overrides train.Device.strategy of the gin file. 'default': the first device; 'cpu', "
        "'gpu': that one; 'mirrored', 'mirrored:N': all GPUs of this machine, the first N devices; 'multi_worker': the "
        "machines in TF_CONFIG; 'tpu:local', 'tpu:ADDRESS', 'tpu': the TPU of this machine, the one at HOST:PORT or "
        'with that name, the one in TPU_NAME.',
    )


def bindings() -> Sequence[str]:
    """Returns the gin statements that --strategy stands for."""
    if not flags.FLAGS.strategy:
        return ()
    lines = ('train.device = @tflearn.jobs.train.Device()', f'Device.strategy = {flags.FLAGS.strategy!r}')
    return [f'tflearn.jobs.train.{line}' for line in lines]


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('train', __doc__, define_flags=define_flags, bindings=bindings)


if __name__ == '__main__':
    main()
