"""A gRPC server answers by its methods, with a status for each error, within its limits."""

import asyncio
import threading

import pytest

pytest.importorskip('grpc_health', reason='needs pip install ".[serving]"')

import grpc
from google.protobuf import wrappers_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.testing import certificates
from tflearn.core.waiting import wait_until
from tflearn.net.grpc_server import GrpcRefusal, GrpcServer, connect, server_credentials
from tflearn.net.server_options import ServerOptions
from tflearn.net.tls import TlsFiles

DEADLINE_SECS = 60.0
ERRORS = {
    b'key': (KeyError('no such key'), 'NOT_FOUND', 'no such key'),
    b'much': (GrpcRefusal('RESOURCE_EXHAUSTED', 'too much'), 'RESOURCE_EXHAUSTED', 'too much'),
    b'bug': (ZeroDivisionError('a bug'), 'INTERNAL', 'ZeroDivisionError: the server has the details in its log'),
}


async def echo(data):
    if data in ERRORS:
        raise ERRORS[data][0]
    return wrappers_pb2.BytesValue(value=data)


def status_of(error):
    return (grpc.StatusCode.NOT_FOUND, error.args[0]) if isinstance(error, KeyError) else None


@pytest.fixture
def serve():
    """Starts servers, and closes them."""
    servers = []

    def start(methods, *args, options=None, **given):
        servers.append(GrpcServer(methods, options or ServerOptions(), *args, **given))
        return servers[-1]

    yield start
    for server in servers:
        server.close(0)
        server.close(0)  # a second call is fine


def test_requests_get_a_response_or_a_status_and_are_recorded(serve):
    recorded = []
    server = serve({'/test.Echo/Echo': echo}, status_of, lambda *args: recorded.append(args))
    with connect(f'localhost:{server.port}') as connected:
        call = connected.unary_unary('/test.Echo/Echo')
        assert wrappers_pb2.BytesValue.FromString(call(b'four', DEADLINE_SECS)).value == b'four'
        for data, (_, code, details) in ERRORS.items():
            failed = call.future(data, DEADLINE_SECS)
            assert (failed.code().name, failed.details()) == (code, details)
        unknown = connected.unary_unary('/test.Echo/Other').future(b'', DEADLINE_SECS)
        assert unknown.code().name == 'UNIMPLEMENTED'
    wait_until(lambda: len(recorded) == 4, 'the records', DEADLINE_SECS)
    assert [(name, code) for name, code, _ in recorded] == [
        ('Echo', code) for code in ('OK', *(code for _, code, _ in ERRORS.values()))
    ]


def test_rejects_requests_beyond_the_limit_and_cancels_at_the_close(serve):
    started = threading.Event()

    async def never(data):
        started.set()
        await asyncio.Event().wait()

    server = serve({'/test.Wait/Wait': never}, max_concurrent_requests=1)
    with connect(f'localhost:{server.port}') as connected:
        call = connected.unary_unary('/test.Wait/Wait')
        waiting = call.future(b'', DEADLINE_SECS)
        assert started.wait(DEADLINE_SECS)
        assert call.future(b'', DEADLINE_SECS).code().name == 'RESOURCE_EXHAUSTED'
        server.close(0)
        assert waiting.code().name in ('CANCELLED', 'UNAVAILABLE')


def test_health_is_that_of_each_service(serve):
    server = serve({})
    server.set_health({'': True, 'broken': False})
    with connect(f'localhost:{server.port}') as connected:

        def health(service):
            request = health_pb2.HealthCheckRequest(service=service)
            return health_pb2_grpc.HealthStub(connected).Check(request, DEADLINE_SECS).status

        states = health_pb2.HealthCheckResponse
        assert (health(''), health('broken')) == (states.SERVING, states.NOT_SERVING)


def test_rejects_a_port_in_use(serve):
    with pytest.raises(
        ValueError,
        match='^got the address .* cannot be listened at; need .* and a free port; stop what uses it, or give',
    ):
        GrpcServer({}, ServerOptions(port=serve({}).port))


def test_rejects_invalid_pem_files(tmp_path):
    own, strange = certificates.make(tmp_path, 'own'), certificates.make(tmp_path, 'strange')
    (tmp_path / 'noise').write_bytes(b'noise')
    for files in ((own[1], strange[0]), (own[1], own[0], tmp_path / 'noise'), (tmp_path / 'none', own[0])):
        with pytest.raises(ValueError, match=f'got the files {files[0]}, .*; need a certificate, its key, CAs, in PEM'):
            server_credentials(TlsFiles(*files))
