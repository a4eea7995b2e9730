"""Trains the agent of a run on the experience in the replay server, and publishes its weights to the collectors.

Checkpoints and policies are written to --root_dir; the same command continues from the newest checkpoint.
"""

from tflearn.config import job_config, saved

from . import job_setup


def define_flags() -> None:
    """Defines the flags of this job."""
    from absl import flags

    flags.DEFINE_string(
        'strategy',
        None,
        "Where train steps run; overrides train.train.strategy of the gin file. 'default': the first device; 'cpu', "
        "'gpu': that one; 'mirrored', 'mirrored:N': all GPUs of this machine, the first N devices; 'multi_worker': the "
        "machines in TF_CONFIG; 'tpu:local', 'tpu:ADDRESS', 'tpu': the TPU of this machine, the one at HOST:PORT or "
        'with that name, the one in TPU_NAME.',
    )


def run(setup: job_setup.Setup) -> None:
    """Configures and runs the job; keeps its configuration with the results."""
    from absl import flags

    from tflearn.jobs import train  # After the flags are parsed: it loads TensorFlow.

    strategy = flags.FLAGS.strategy
    configured: job_config.ConfiguredJob = setup.configure(
        train.train,
        on_restored=lambda: saved.save(setup.run_dir, configured.text),
        describe=lambda: setup.describe(configured),
        run_dir=setup.run_dir,
        replay_address=setup.replay_address,
        connect_timeout_secs=setup.connect_timeout_secs,
        stop=setup.stop,
        **({'strategy': strategy} if strategy else {}),
    )
    setup.run(configured)


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('train', __doc__, run, define_flags=define_flags)


if __name__ == '__main__':
    main()
