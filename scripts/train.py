"""Trains the agent of a run on the experience in the replay server, and publishes its weights to the collectors.

Checkpoints and policies are written to --root_dir; the same command continues from the newest checkpoint.
"""

import dataclasses

from tflearn.config import job_config, saved

from . import job_setup


def define_flags() -> None:
    """Defines the flags of this job."""
    from absl import flags

    flags.DEFINE_string(
        'strategy',
        None,
        "Where train steps run; overrides train.Device.strategy of the gin file. 'default': the first device; 'cpu', "
        "'gpu': that one; 'mirrored', 'mirrored:N': all GPUs of this machine, the first N devices; 'multi_worker': the "
        "machines in TF_CONFIG; 'tpu:local', 'tpu:ADDRESS', 'tpu': the TPU of this machine, the one at HOST:PORT or "
        'with that name, the one in TPU_NAME.',
    )


def run(setup: job_setup.Setup) -> None:
    """Configures and runs the job; keeps its configuration with the results."""
    from absl import flags

    from tflearn.jobs import train  # After the flags are parsed: it loads TensorFlow.

    if strategy := flags.FLAGS.strategy:
        lines = ('train.device = @tflearn.jobs.train.Device()', f'Device.strategy = {strategy!r}')
        bindings = [*setup.gin_bindings, *(f'tflearn.jobs.train.{line}' for line in lines)]
        setup = dataclasses.replace(setup, gin_bindings=bindings)
    configured: job_config.ConfiguredJob = setup.configure(
        train.train,
        hooks=train.Hooks(lambda: saved.save(setup.run_dir, configured.text), lambda: setup.describe(configured)),
        run_dir=setup.run_dir,
        replay_address=setup.replay_address,
        connect_timeout_secs=setup.connect_timeout_secs,
        stop=setup.stop,
    )
    setup.run(configured)


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('train', __doc__, run, define_flags=define_flags)


if __name__ == '__main__':
    main()
