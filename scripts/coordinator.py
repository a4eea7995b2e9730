"""Coordinates a run: its jobs find each other here, and weights, reports and credits go through here.

It listens at the port of --coordinator_address; on this machine only, if that is localhost.

The replay server is the coordinator too, unless it is started with --noserve_coordinator; of a run with several replay
servers this is better alone. A relay (--relay_address) stands on each machine of collectors, and sends them weights: so
the coordinator sends each publication once to each machine.
"""

import threading

from absl import flags

from tflearn.coordinator import server
from tflearn.files.run_dir import Status
from tflearn.net.server_options import ServerOptions

from . import job_flags, job_process, run_directory

_STOP_TIMEOUT_SECS = 10.0


def run(stop: threading.Event) -> None:
    """Serves with the flags of this program until it is stopped."""
    values = flags.FLAGS
    upstream, relay = values.coordinator_address if values.relay_address else '', (values.relay_address, values.index)
    if not values.run_dir:
        server.serve(options(), lambda now: None, stop, '', upstream, relay)
        return
    with run_directory.opened(values.run_dir, 'coordinator', values.name) as run_dir:
        run_dir.make()
        status = Status(run_dir.status(values.name), values.name)
        report = lambda now: status.update('running', **now)  # noqa: E731
        server.serve(options(), report, stop, run_dir.run_id(), upstream, relay)
        status.update('stopped')


def define() -> None:
    """Defines the flags of this program."""
    job_flags.define_help()
    job_flags.define_coordinator()
    flags.DEFINE_string('relay_address', '', 'HOST:PORT at which others reach this relay; by default it is none.')
    flags.DEFINE_integer('index', 0, 'Which relay this is, from 0 on.', 0)
    flags.DEFINE_string('run_dir', None, 'Directory of the run, to which it reports how it is; by default to nobody.')
    flags.DEFINE_string('name', 'coordinator', 'Name of this job; its status file is named after it.')
    flags.DEFINE_integer(
        'max_connections', server.MAX_CONNECTIONS, 'Connections at the same time, a few for each job and relay.', 1
    )


def options() -> ServerOptions:
    """Returns what the flags say; raises ValueError for a wrong one."""
    values = flags.FLAGS
    own = job_flags.one_address('relay_address') if values.relay_address else ''
    coordinator = job_flags.one_address('coordinator_address')
    return server.options(own or coordinator, values.coordinator_token, values.max_connections)


def main() -> None:
    """Runs the program."""
    define()
    if job_flags.read('tflearn-coordinator', __doc__, options, '--coordinator_address=host:8009'):
        job_process.run('tflearn-coordinator', 'coordinator', run, _STOP_TIMEOUT_SECS)


if __name__ == '__main__':
    main()
