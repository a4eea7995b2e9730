"""nginx as docs/security.md sets it up before gRPC: clients are answered, unfinished requests of an address bounded."""

import contextlib
import pathlib
import shutil
import subprocess
import time

import pytest

pytest.importorskip('grpc_health', reason='needs pip install ".[serving]"')

from google.protobuf import wrappers_pb2

from benchmarks.unfinished_streams import Streams
from tests.testing import docs_blocks
from tflearn.core.waiting import is_listening, wait_until
from tflearn.launch.local import free_port
from tflearn.net.grpc_server import GrpcServer, connect
from tflearn.net.server_options import ServerOptions

DEADLINE_SECS = 60.0
NGINX = shutil.which('nginx') or '/usr/sbin/nginx'
LIMIT = 32  # of the page's limit_conn
# Where Debian's nginx keeps bodies belongs to root.
_TEMPORARY = ''.join(f'{name}_temp_path temp;' for name in ('client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'))


@contextlib.contextmanager
def nginx(folder, port):
    """Runs nginx with the configuration of the page before a server; yields its own port."""
    (block,) = [each.text for each in docs_blocks.of('text') if each.text.startswith('# nginx.conf\n')]
    own = free_port()
    changes = {
        'localhost:9500': f'127.0.0.1:{own}',
        'localhost:8500': f'127.0.0.1:{port}',
        'client_body_timeout 10s': 'client_body_timeout 1s',
        'http {': f'http {{ {_TEMPORARY}',
    }
    for old, new in changes.items():
        assert block.count(old) == 1
        block = block.replace(old, new)
    (folder / 'nginx.conf').write_text(block)
    log = folder / 'error.log'
    process = subprocess.Popen([NGINX, '-p', str(folder), '-c', 'nginx.conf', '-e', str(log)])
    try:
        wait_until(lambda: is_listening(f'127.0.0.1:{own}') or process.poll() is not None, 'nginx', DEADLINE_SECS)
        assert process.poll() is None, log.read_text()
        yield own
    finally:
        process.terminate()
        process.wait(DEADLINE_SECS)


@pytest.mark.skipif(not pathlib.Path(NGINX).exists(), reason='needs nginx')
def test_requests_of_an_address_are_bounded_and_unfinished_ones_end(tmp_path):
    async def answer(data):
        return wrappers_pb2.BytesValue(value=data)

    server = GrpcServer({'/test.Echo/Echo': answer}, ServerOptions(), max_concurrent_requests=1000)
    with contextlib.closing(server), nginx(tmp_path, server.port) as port:

        def answers():
            with connect(f'127.0.0.1:{port}') as connected:
                return connected.unary_unary('/test.Echo/Echo')(b'x' * (3 << 20), DEADLINE_SECS)

        assert len(answers()) > 3 << 20
        streams, most = Streams(('127.0.0.1', port), 2 * LIMIT, (4 << 20) - 100, '/test.Echo/Echo'), 0
        end = time.monotonic() + 5.0
        with contextlib.closing(streams):
            while time.monotonic() < end:
                streams.turn()
                most = max(most, 1000 - server._slots._value)
        assert 0 < most <= LIMIT
        assert answers(), 'after the attack'
        wait_until(lambda: server._slots._value == 1000, 'the end of what was not finished', DEADLINE_SECS)
