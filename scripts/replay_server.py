"""Serves a run's replay: stores what the collectors send and serves it to the train job.

It listens at the port of --replay_address. Its content is saved in --root_dir and restored after a restart.

Several replay servers share a replay if --replay_address lists them all; each is this program with its own --shard.
"""

from collections.abc import Sequence

from absl import flags

from . import job_setup


def define_flags() -> None:
    """Defines the flags of this job."""
    flags.DEFINE_integer(
        'shard', 0, 'Which of the addresses of --replay_address is that of this server, from 0 on.', lower_bound=0
    )


def bindings() -> Sequence[str]:
    """Returns the gin statements that --shard stands for."""
    shard = flags.FLAGS.shard
    return [f'tflearn.jobs.replay_server.replay_server.shard = {shard}'] if shard else []


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    job_setup.main('replay_server', __doc__, define_flags=define_flags, bindings=bindings)


if __name__ == '__main__':
    main()
