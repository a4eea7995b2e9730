"""Forwards TCP connections over mutual TLS: encryption and authentication for a replay server, which has neither.

With --side=server it runs beside the replay server, accepts TLS and forwards to it. With --side=client it runs beside
the other jobs: they connect to it as if it were the replay server.
"""

import threading

from absl import flags, logging

from tflearn.core.errors import UserValueError
from tflearn.net import tls
from tflearn.net.tunnel import Address, Side, TunnelOptions, opened

from . import job_flags, job_process

_STOP_TIMEOUT_SECS = 10.0


def run(stop: threading.Event) -> None:
    """Runs the tunnel with the flags of this program until it is stopped."""
    with opened(options()) as tunnel:
        where = str(flags.FLAGS.listen) if tunnel.port is None else f'port {tunnel.port} of {flags.FLAGS.listen}'
        logging.info('the %s side listens at %s and forwards to %s', flags.FLAGS.side, where, flags.FLAGS.to)
        stop.wait()


def define() -> None:
    """Defines the flags of this program."""
    job_flags.define_help()
    flags.DEFINE_enum('side', None, [side.value for side in Side], 'server accepts TLS, client makes it.')
    flags.DEFINE_string('listen', None, 'HOST:PORT or unix:PATH where it accepts connections; port 0 takes a free one.')
    flags.DEFINE_string('to', None, 'HOST:PORT or unix:PATH to which it forwards them.')
    flags.DEFINE_string('certificate', None, 'PEM file of the own certificate, with its chain.')
    flags.DEFINE_string('key', None, 'PEM file with the key of --certificate.')
    flags.DEFINE_string('ca', None, 'PEM file of the authority that signs the certificates of the other side.')
    flags.DEFINE_string('server_name', None, "Name in the server's certificate, for the client; the host of --to.")
    flags.DEFINE_integer(
        'max_connections', 256, 'Connections at the same time, of about 0.6 MB each; further ones are closed.', 1
    )


def options() -> TunnelOptions:
    """Returns what the flags say; raises ValueError for a flag that is missing or wrong."""
    values = flags.FLAGS
    if missing := [name for name in ('side', 'listen', 'to', 'certificate', 'key', 'ca') if not values[name].value]:
        raise UserValueError(f'got no --{missing[0]}; need it; see --help')
    listen, to = (Address.parse(str(values[name].value), f'--{name}') for name in ('listen', 'to'))
    files = tls.TlsFiles(values.certificate, values.key, values.ca)
    return TunnelOptions(Side(values.side), listen, to, files, values.server_name, values.max_connections)


def main() -> None:
    """Runs the program."""
    define()
    example = '--side=server --listen=0.0.0.0:9008 --to=localhost:8008 --certificate=a.pem --key=a.key --ca=ca.pem'
    if job_flags.read('tflearn-tunnel', __doc__, options, example):
        job_process.run('tflearn-tunnel', 'tunnel', run, _STOP_TIMEOUT_SECS)


if __name__ == '__main__':
    main()
