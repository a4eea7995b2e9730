"""Serves the weights that the train job publishes, or relays those of another server, to jobs with --weights_address.

One of these stands beside the train job, which publishes to it. A relay (--upstream) stands on each machine of
collectors: so each publication is sent once to each machine.
"""

import threading

from absl import flags

from tflearn.coordinator import weights_relay
from tflearn.coordinator.weights_server import MAX_BYTES, ServerOptions
from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import Status

from . import job_flags, job_process, run_directory

_STOP_TIMEOUT_SECS = 10.0


def run(stop: threading.Event) -> None:
    """Serves with the flags of this program until it is stopped."""
    values = flags.FLAGS
    if not values.run_dir:
        weights_relay.serve(options(), values.upstream, lambda now: None, stop)
        return
    with run_directory.opened(values.run_dir, 'weights', values.name) as run_dir:
        status = Status(run_dir.status(values.name), values.name)
        weights_relay.serve(options(), values.upstream, lambda now: status.update('running', **now), stop)
        status.update('stopped')


def define() -> None:
    """Defines the flags of this program."""
    job_flags.define_help()
    flags.DEFINE_string(
        'listen', 'localhost:8010', 'HOST:PORT where it listens; 0.0.0.0 is all networks, port 0 a free one.'
    )
    flags.DEFINE_string('upstream', None, 'HOST:PORT of the server that it relays; by default train publishes to it.')
    flags.DEFINE_string('run_dir', None, 'Directory of the run, to which it reports how it is; by default to nobody.')
    flags.DEFINE_string('name', 'weights', 'Name of this job; its status file is named after it.')
    flags.DEFINE_string('weights_token', None, 'File with the token that clients must show, or env:NAME.')
    flags.DEFINE_integer('max_connections', 512, 'Connections at the same time, one for each job and relay.', 1)


def options() -> ServerOptions:
    """Returns what the flags say; raises ValueError for a wrong one."""
    values = flags.FLAGS
    host, _, port = values.listen.rpartition(':')
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserValueError(f'got --listen={values.listen}; need HOST:PORT')
    if values.upstream:
        job_flags.check_address(values.upstream, 'upstream')
    return ServerOptions(host.strip('[]'), int(port), values.max_connections, MAX_BYTES, None, values.weights_token)


def main() -> None:
    """Runs the program."""
    define()
    if job_flags.read('tflearn-weights', __doc__, options, '--listen=0.0.0.0:8010 --upstream=learner:8010'):
        job_process.run('tflearn-weights', 'weights', run, _STOP_TIMEOUT_SECS)


if __name__ == '__main__':
    main()
