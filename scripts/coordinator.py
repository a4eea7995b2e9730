"""Coordinates a run: jobs register their addresses here, and exchange weights, reports and credits.

It listens at the port of --coordinator_address; if that is localhost, only for this machine.

The replay server is also the coordinator, unless it is started with --noserve_coordinator. In a run with several replay
servers, start the coordinator as this separate program. A relay (--relay_address) on a machine of collectors sends them
the weights: then the coordinator sends each publication only once to each machine.
"""

import threading

from absl import flags

from tflearn.coordinator import server
from tflearn.files.run_dir import opened_run_dir
from tflearn.files.status import Status
from tflearn.net.server_options import ServerOptions

from . import job_flags, job_process

_STOP_TIMEOUT_SECS = 10.0


def run(stop: threading.Event) -> None:
    """Serves with the flags of this program until it is stopped."""
    values = flags.FLAGS
    upstream, relay = values.coordinator_address if values.relay_address else '', (values.relay_address, values.index)
    if not values.run_dir:
        server.serve(options(), lambda now: None, stop, '', upstream, relay)
        return
    with opened_run_dir(values.run_dir, 'coordinator', values.name) as run_dir:
        run_dir.make()
        status = Status(run_dir.status(values.name))
        report = lambda now: status.update('running', **now)  # noqa: E731
        server.serve(options(), report, stop, run_dir.run_id(), upstream, relay)
        status.update('stopped')


def options() -> ServerOptions:
    """Returns what the flags say; raises ValueError for a wrong one."""
    values = flags.FLAGS
    own = job_flags.one_address('relay_address') if values.relay_address else ''
    coordinator = job_flags.one_address('coordinator_address')
    return server.options(own or coordinator, values.coordinator_token, values.max_connections)


def main() -> None:
    """Runs the program."""
    job_flags.define('help', 'helpfull', 'coordinator', 'coordinator_program')
    if job_flags.read('tflearn-coordinator', __doc__, options, '--coordinator_address=host:8009'):
        job_process.run('tflearn-coordinator', 'coordinator', run, _STOP_TIMEOUT_SECS)


if __name__ == '__main__':
    main()
