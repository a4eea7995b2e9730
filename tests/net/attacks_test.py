"""Strangers hold connections, heads and streams: clients go on. `benchmarks/attacks.py` is the same at full size."""

import argparse
import contextlib
import http.client
import socket
import threading

import pytest

pytest.importorskip('grpc_health', reason='needs pip install ".[serving]"')

from google.protobuf import wrappers_pb2

from benchmarks import attacks
from benchmarks.unfinished_streams import Streams
from tflearn.coordinator.server import MAX_BYTES, CoordinatorServer
from tflearn.core.waiting import wait_until
from tflearn.net import http_request, http_server
from tflearn.net.grpc_server import Server, connect
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
    monkeypatch.setattr(http_server, '_NEW', 4)
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
    monkeypatch.setattr(http_server, 'HEAD_SECS', 0.2)
    with (
        contextlib.closing(CoordinatorServer(ServerOptions())) as server,
        strangers(server.port, 2, b'GET /v1/status HTTP/1.1\r\n') as slow,
    ):
        assert all(ends(each) for each in slow)


def test_a_body_that_is_not_sent_ends_the_request(monkeypatch):
    monkeypatch.setattr(http_request, '_BODY_SECS', 0.2)
    with contextlib.closing(CoordinatorServer(ServerOptions(max_request_bytes=MAX_BYTES))) as server:
        head = b'PUT /v1/credits HTTP/1.1\r\nContent-Length: 4000000000\r\n\r\nx'
        with strangers(server.port, 1, head) as slow:
            assert slow[0].recv(100).startswith(b'HTTP/1.1 408 ')


@pytest.fixture
def echo():
    async def answer(data):
        return wrappers_pb2.BytesValue(value=data)

    server = Server({'/test.Echo/Echo': answer}, ServerOptions(port=0, max_connections=8))
    yield server
    server.close(0)


def test_connections_of_grpc_are_bounded_and_clients_stay(echo):
    with connect(f'127.0.0.1:{echo.port}') as kept:
        call = kept.unary_unary('/test.Echo/Echo')
        assert call(b'four', DEADLINE_SECS)
        with strangers(echo.port, 200) as idle:
            assert all(ends(each) for each in idle[:100])
            assert call(b'four', DEADLINE_SECS)


@pytest.mark.parametrize('method', ['/test.Echo/Echo', attacks.HEALTH])
def test_unfinished_requests_of_grpc_are_bounded(echo, method):
    streams, stop = Streams(('127.0.0.1', echo.port), 40, (4 << 20) - 100, method), threading.Event()

    def attack():
        while not stop.is_set():
            streams.turn()

    attacking = threading.Thread(target=attack)
    attacking.start()
    try:
        wait_until(lambda: len(echo._partial._slow) >= 2, 'unfinished requests', DEADLINE_SECS)
        with connect(f'127.0.0.1:{echo.port}') as connected:
            assert connected.unary_unary('/test.Echo/Echo')(b'four', DEADLINE_SECS)
        assert len(echo._partial._slow) <= 4
    finally:
        stop.set()
        attacking.join(DEADLINE_SECS)
        streams.close()


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
    options = argparse.Namespace(secs=3.0, idle=150, handles=128, log=None)
    for name, attack in attacks.SERVERS.items():
        (tmp_path / name).mkdir()
        for row in attack(tmp_path / name, options):
            assert not row['failed'] and row['requests'], row
