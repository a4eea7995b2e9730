"""Strangers hold connections, heads and streams: clients go on. `benchmarks/attacks.py` is the same at full size."""

import argparse
import contextlib
import http.client
import socket
import time

import pytest

pytest.importorskip('grpc_health', reason='needs pip install ".[serving]"')

from google.protobuf import wrappers_pb2

from benchmarks import attacks, edge_requests
from benchmarks.unfinished_streams import Streams
from tflearn.coordinator.server import MAX_BYTES, CoordinatorServer
from tflearn.net import grpc_server, http_connections, http_server
from tflearn.net.grpc_server import GrpcServer, connect
from tflearn.net.server_options import ServerOptions
from tflearn.replay.reverb import server as replay_server

DEADLINE_SECS = 60.0


@contextlib.contextmanager
def strangers(port, count, first=b''):
    with contextlib.ExitStack() as stack:
        yield [_stranger(stack, port, first) for _ in range(count)]


def _stranger(stack, port, first):
    made = stack.enter_context(socket.create_connection(('127.0.0.1', port), DEADLINE_SECS))
    made.sendall(first)
    return made


def ends(connection):
    """Waits for the end of a connection, whatever is sent before; its deadline fails the test."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1000):
            pass
    return True


@pytest.mark.parametrize('first', [b'', b'GET /v1/status HTTP/1.1\r\nX-Slow: '])
def test_idle_connections_and_slow_heads_keep_no_client_of_http_out(monkeypatch, first):
    monkeypatch.setattr(http_connections, '_NEW', 4)
    with contextlib.closing(CoordinatorServer(ServerOptions(max_connections=4))) as server:
        kept = http.client.HTTPConnection('127.0.0.1', server.port, timeout=DEADLINE_SECS)
        with contextlib.closing(kept):
            for connection in (kept, None, kept):
                with strangers(server.port, 12, first):
                    connection = connection or http.client.HTTPConnection(
                        '127.0.0.1', server.port, timeout=DEADLINE_SECS
                    )
                    connection.request('GET', '/v1/status')
                    assert connection.getresponse().read()
                if connection is not kept:
                    connection.close()


def test_a_head_has_to_come_in_time(monkeypatch):
    monkeypatch.setattr(http_connections, 'HEAD_SECS', 0.2)
    with (
        contextlib.closing(CoordinatorServer(ServerOptions())) as server,
        strangers(server.port, 2, b'GET /v1/status HTTP/1.1\r\n') as slow,
    ):
        assert all(ends(each) for each in slow)


def test_a_body_that_is_not_sent_ends_the_request(monkeypatch):
    monkeypatch.setattr(http_server, '_BODY_SECS', 0.2)
    with contextlib.closing(CoordinatorServer(ServerOptions(max_request_bytes=MAX_BYTES))) as server:
        head = b'PUT /v1/credits HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\nx'
        with strangers(server.port, 1, head) as slow:
            assert slow[0].recv(100).startswith(b'HTTP/1.1 408 ')


@pytest.fixture
def echo():
    async def answer(data):
        return wrappers_pb2.BytesValue(value=data)

    server = GrpcServer({'/test.Echo/Echo': answer}, ServerOptions(port=0, max_connections=8))
    yield server
    server.close(0)


def test_connections_of_grpc_are_bounded_and_clients_stay(echo):
    with connect(f'127.0.0.1:{echo.port}') as kept:
        call = kept.unary_unary('/test.Echo/Echo')
        assert call(b'four', DEADLINE_SECS)
        with strangers(echo.port, 100) as idle:
            assert sum(each.recv(1) == b'' for each in idle[50:]) == 50, 'of 8 at most'
            assert call(b'four', DEADLINE_SECS)
    with connect(f'127.0.0.1:{echo.port}') as fresh:
        assert fresh.unary_unary('/test.Echo/Echo')(b'four', DEADLINE_SECS, wait_for_ready=True)


@pytest.mark.parametrize('method', ['/test.Echo/Echo', attacks.HEALTH])
def test_unfinished_requests_of_grpc_end_in_time(echo, method, monkeypatch):
    monkeypatch.setattr(grpc_server, '_WHOLE_SECS', 0.5)
    streams = Streams(('127.0.0.1', echo.port), 40, (4 << 20) - 100, method)
    end = time.monotonic() + DEADLINE_SECS
    try:
        while streams._next < 2 * 80 and time.monotonic() < end:  # the first 40 were ended, and others opened
            streams.turn()
        assert streams._next >= 2 * 80
        with connect(f'127.0.0.1:{echo.port}') as connected:
            assert connected.unary_unary('/test.Echo/Echo')(b'four', DEADLINE_SECS)
    finally:
        streams.close()


def test_requests_of_the_edge_are_answered_once():
    with contextlib.closing(CoordinatorServer(ServerOptions())) as server:
        rows = list(edge_requests.results('coordinator', ('127.0.0.1', server.port), '/v1/status'))
    assert [row for row in rows if not row['stood']] == []
    assert {row['request']: row['answered'] for row in rows}['two requests at once'] == '200 200'


def test_large_json_of_one_client_keeps_no_other_waiting():
    """A message of 22 MB is refused by its head: while Python parses it, nothing else could run."""
    with contextlib.closing(CoordinatorServer(ServerOptions(max_request_bytes=MAX_BYTES))) as server:
        asked = http.client.HTTPConnection('127.0.0.1', server.port, timeout=DEADLINE_SECS)
        with contextlib.closing(asked):
            asked.request('PUT', '/v1/counts/0', headers={'Content-Length': '22000000'})
            answer = asked.getresponse()
            assert answer.status == 413 and b'need at most 4194304' in answer.read()


def _has_ipv6():
    try:
        socket.create_server(('::1', 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason='needs a loopback interface with IPv6')
@pytest.mark.parametrize('host', ['::1', '[::1]'])
def test_servers_listen_at_ipv6(host):
    with contextlib.closing(CoordinatorServer(ServerOptions(host))) as server:
        asked = http.client.HTTPConnection('::1', server.port, timeout=DEADLINE_SECS)
        with contextlib.closing(asked):
            asked.request('GET', '/v1/status')
            assert asked.getresponse().status == 200


def test_a_machine_with_ipv6_alone_listens(monkeypatch):
    ask = socket.getaddrinfo
    monkeypatch.setattr(socket, 'getaddrinfo', lambda host, *args, **given: ask('::1', *args, **given))
    if not _has_ipv6():
        pytest.skip('needs a loopback interface with IPv6')
    with contextlib.closing(CoordinatorServer(ServerOptions('localhost'))) as server:
        socket.create_connection(('::1', server.port), DEADLINE_SECS).close()


def test_a_kernel_without_ipv6_is_no_failure(monkeypatch):
    make = socket.socket

    def without_ipv6(family=socket.AF_INET, *args, **settings):
        if family == socket.AF_INET6:
            raise OSError(97, 'Address family not supported by protocol')
        return make(family, *args, **settings)

    monkeypatch.setattr(replay_server.socket, 'socket', without_ipv6)
    with replay_server._hold_port(0) as holder:
        assert holder.family == socket.AF_INET


@pytest.mark.slow
def test_programs_with_few_file_handles_stand_every_attack(tmp_path):
    options = argparse.Namespace(secs=3.0, idle=150, handles=128, log=None, messages=300)
    for name, attack in attacks.SERVERS.items():
        (tmp_path / name).mkdir()
        for row in attack(tmp_path / name, options):
            stood = row['stood'] if 'stood' in row else not row['failed'] and row['requests']
            assert stood, row
