"""Serves a run's replay: stores the trajectories that collectors send, and sends them to the train job.

It listens at the port of --replay_address, and is also the run's coordinator, at the port of --coordinator_address. Its
content is saved in --root_dir and restored after a restart.

With --replay_backend=valkey it starts a Valkey server for this machine. With --replay_address=valkey://HOST:PORT the
replay is on a Valkey server that is already running; files or environment variables of each job name user and password.

Several replay servers can share a replay: start this program for each, with the same --num_shards and its own --shard.
"""

from collections.abc import Sequence

from absl import flags

from . import job_flags, job_setup


def bindings() -> Sequence[str]:
    """Returns the gin statements that the flags of this job stand for."""
    if '://' not in flags.FLAGS.replay_address:  # else the job checks it
        job_flags.one_address('replay_address')
    names = ('replay_backend', 'shard', 'num_shards', 'serve_coordinator')
    return job_flags.statements('replay_server.replay_server', *names)


def main() -> None:
    """Runs the program; see `job_setup.main`."""
    groups = ('replay_address', 'replay_backend', 'replay_server')
    job_setup.main('replay_server', __doc__, groups=groups, bindings=bindings)


if __name__ == '__main__':
    main()
