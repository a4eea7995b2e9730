"""A coordinator over HTTP: who gets what, who is refused, and that nothing of an unknown client ends it."""

import contextlib
import functools
import json
import socket
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

from scripts import job_process
from tests.coordinator.weights_transport_test import made
from tflearn.coordinator import server as coordinator_server
from tflearn.coordinator import weights_transport
from tflearn.coordinator.server import CoordinatorServer
from tflearn.coordinator.state import Claim
from tflearn.coordinator.weights_transport import DELTA, PATH, CoordinatorLost, RequestRefused, WeightsReader
from tflearn.core.access import Access
from tflearn.core.waiting import wait_until
from tflearn.net.server_options import ServerOptions

TOKEN = 'a-token-of-enough-characters'
LARGE = np.ones(100_000, np.float32)


@pytest.fixture
def ending():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def reader_of(ending):
    def make(*servers, name='c', token=''):
        first, *relays = [f'localhost:{each.port}' for each in servers]
        reader = WeightsReader(first, name, token, lambda: relays)
        return ending.enter_context(contextlib.closing(reader))

    return make


@pytest.fixture
def relay_of(ending):
    """Returns a function that starts a relay of weights without a program."""
    return lambda: ending.enter_context(contextlib.closing(CoordinatorServer(ServerOptions(), relays=True)))


def asked(server, path=PATH, method='GET', body=None, **headers):
    """Returns the status and the body of an answer, as any client of HTTP sees them."""
    url = f'http://localhost:{server.port}{path}'
    request = urllib.request.Request(url, body, {key.replace('_', '-'): value for key, value in headers.items()})
    request.method = method
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_publication_is_given_to_who_does_not_have_it(coordinating, reader_of):
    server = coordinating.serve()
    learner, collector = coordinating.learner(server), reader_of(server)
    assert collector.get(None, 0) is None
    first = made([LARGE])
    learner.put_weights(first)
    found = collector.get(None, 0)
    assert found.tag == first.tag
    np.testing.assert_array_equal(weights_transport.values(found)[0], LARGE)
    assert collector.get(found, 0) is None
    status = learner.status()
    assert (status['train_step'], status['sent_messages'], status['tag']) == (1, 1, first.tag)
    assert LARGE.nbytes < status['sent_bytes'] < LARGE.nbytes + 1_000


def test_who_waits_gets_it_at_once(coordinating, reader_of):
    server = coordinating.serve()
    learner, collector, found = coordinating.learner(server), reader_of(server), []
    waiting = threading.Thread(target=lambda: found.append(collector.get(None, 20)))
    waiting.start()
    wait_until(lambda: server.status()['clients'] == 1, 'a client that waits', 10)
    learner.put_weights(made([LARGE]))
    waiting.join(10)
    assert found[0].counters['train_step'] == 1


def test_what_did_not_change_is_not_sent_again(coordinating, reader_of):
    server = coordinating.serve()
    learner, collector = coordinating.learner(server), reader_of(server)
    learner.put_weights(made([LARGE, np.zeros(2, np.float32)]))
    known = collector.get(None, 0)
    before = server.status()['sent_bytes']
    learner.put_weights(made([LARGE, np.ones(2, np.float32)], step=2))
    found = collector.get(known, 0)
    assert server.status()['sent_bytes'] - before < 1_000
    np.testing.assert_array_equal(weights_transport.values(found)[0], LARGE)
    np.testing.assert_array_equal(weights_transport.values(found)[1], [1.0, 1.0])
    status, body = asked(server, If_None_Match='"unknown"', A_IM=DELTA)
    assert status == 200 and len(body) > LARGE.nbytes, 'nobody knows what such a client has'


def test_a_token_is_asked_for(tmp_path, coordinating, reader_of):
    (tmp_path / 'token').write_text(TOKEN)
    (tmp_path / 'other').write_text('another-token-of-characters')
    server = coordinating.serve(token=str(tmp_path / 'token'))
    address = f'localhost:{server.port}'
    for token in (None, str(tmp_path / 'other')):
        with pytest.raises(RuntimeError, match='401: got no token, or another.*; give .*--coordinator_token=FILE'):
            coordinating.learner(server, access=Access(address, token))
    learner = coordinating.learner(server, access=Access(address, str(tmp_path / 'token')))
    learner.put_weights(made([LARGE]))
    assert reader_of(server, token=TOKEN).get(None, 0).counters['train_step'] == 1


@pytest.mark.parametrize(
    ('request_', 'status', 'words'),
    [
        ({'path': '/v1/other'}, 404, 'need GET /v1/weights, GET /v1/status, POST /v1/register'),
        ({'method': 'PUT', 'body': b'noise'}, 409, 'another learner has taken over this run'),
        ({'method': 'PUT', 'body': b'noise', 'Tflearn_Claim': '1/me'}, 400, 'that are no publication'),
        ({'method': 'PUT', 'body': b'x' * 2_000_001, 'Tflearn_Claim': '1/me'}, 413, 'need at most 2000000'),
        ({'method': 'PUT', 'body': b'noise', 'Tflearn_Claim': 'me'}, 400, "got the claim 'me'; need EPOCH/OWNER"),
        ({'method': 'PUT', 'body': b'', 'Tflearn_Incarnation': 'old'}, 412, 'register again'),
        ({'method': 'POST', 'path': '/v1/report', 'body': b'{}'}, 400, 'got a control message of protocol None'),
        (
            {'method': 'POST', 'path': '/v1/reports', 'body': b'{"after": [], "acknowledged": {}, "env_steps": {}}'},
            400,
            'after of the type list',
        ),
        (
            {'method': 'POST', 'path': '/v1/credits', 'body': b'{"number": "1", "wait": 0}'},
            400,
            'of the type str; need int',
        ),
        ({'method': 'POST', 'path': '/v1/register', 'body': b'{"role": 1}'}, 400, 'got a message without address'),
        ({'method': 'PUT', 'path': '/v1/counts/x', 'body': b'{}'}, 400, "got the index 'x'"),
        ({'method': 'DELETE'}, 405, 'got DELETE /v1/weights; need GET'),
        ({'Prefer': 'wait=soon'}, 404, ''),
    ],
)
def test_other_requests_are_answered(ending, request_, status, words, caplog):
    server = ending.enter_context(contextlib.closing(CoordinatorServer(ServerOptions(max_request_bytes=2_000_000))))
    server.state.register('train', 0, '', {'all': {}}, Claim(1, 'me'), False)
    found, body = asked(server, **request_)
    assert found == status and words in body.decode()
    if status == 412:
        assert 'WARNING' not in {each.levelname for each in caplog.records}, 'a job registers again by itself'
    assert asked(server, '/v1/status')[0] == 200


def begin_to_put(server, learner, size):
    """A connection that has sent the head of a publication of a learner, and a few bytes of it."""
    head = f'PUT {PATH} HTTP/1.1\r\nHost: a\r\nTflearn-Claim: {learner.epoch}/{learner._owner}\r\n'
    sender = socket.create_connection(('localhost', server.port), 20)
    sender.sendall(f'{head}Content-Length: {size}\r\n\r\nhalf'.encode())
    wait_until(lambda: server._sender, 'its place', 20)
    return sender


def test_half_a_publication_changes_nothing(coordinating):
    server = coordinating.serve()
    learner = coordinating.learner(server)
    with (
        begin_to_put(server, learner, 100_000),
        pytest.raises(RequestRefused, match='503: another publication is being received'),
    ):
        learner.put_weights(made([LARGE]))
    wait_until(lambda: not server._sender, 'the end of the request', 10)
    assert 'tag' not in server.status()
    learner.put_weights(made([LARGE]))


def test_a_slow_sender_loses_the_place_to_the_learner(coordinating, monkeypatch):
    monkeypatch.setattr(coordinator_server, '_SLOW_SECS', 0.2)
    server = coordinating.serve()
    learner = coordinating.learner(server)
    with begin_to_put(server, learner, 1 << 30) as slow:
        threading.Event().wait(0.3)
        learner.put_weights(made([LARGE]))
        assert server.status()['train_step'] == 1
        assert slow.recv(1 << 16) == b''


def test_a_relay_takes_no_publications_and_serves_on_while_the_coordinator_is_down(coordinating, reader_of, relay_of):
    root, relay, stop = coordinating.serve(), relay_of(), threading.Event()
    upstream, learner = reader_of(root), coordinating.learner(root)
    follower = threading.Thread(target=coordinator_server.follow, args=(relay.state.newest, upstream, stop))
    follower.start()
    try:
        learner.put_weights(made([LARGE]))
        found = reader_of(relay).get(None, 20)
        assert found.counters['train_step'] == 1
        assert asked(relay, method='PUT', body=b'x')[0] == 405
        root.close()
        assert reader_of(relay).get(None, 0).tag == found.tag
    finally:
        stop.set()
        upstream.close()
        follower.join(20)
    assert not follower.is_alive()


def test_readers_choose_different_relays_and_go_to_the_next(coordinating, reader_of, relay_of):
    root, relays = coordinating.serve(), [relay_of() for _ in range(3)]
    readers = [reader_of(root, *relays, name=f'collect_{i}') for i in range(20)]
    assert all(reader.get(None, 0) is None for reader in readers)
    assert {reader.address for reader in readers} == {f'localhost:{relay.port}' for relay in relays}
    reader = readers[0]
    first = reader.address
    next(relay for relay in relays if first.endswith(f':{relay.port}')).close()
    with pytest.raises(CoordinatorLost, match=first):
        reader.get(None, 0)
    assert reader.address != first
    assert reader.get(None, 0) is None


def test_a_port_is_for_one_server(coordinating):
    server = coordinating.serve()
    with pytest.raises(ValueError, match='another server listens there.*give others by --coordinator_address'):
        coordinating.serve(port=server.port)


def test_noise_does_not_end_it(coordinating):
    server = coordinating.serve()
    for noise in (b'\x16\x03\x01\x02\x00', b'GET ' + b'a' * 100_000, b'\r\n\r\n', b'PUT /v1/weights HTTP/1.1\r\n\r\n'):
        with socket.create_connection(('localhost', server.port), 10) as stranger, contextlib.suppress(OSError):
            stranger.sendall(noise)
            stranger.shutdown(socket.SHUT_WR)
            stranger.recv(1 << 16)
    coordinating.learner(server).put_weights(made([LARGE]))
    assert json.loads(asked(server, '/v1/status')[1])['train_step'] == 1


@pytest.mark.parametrize('turns', range(4))
def test_a_connection_of_the_moment_of_the_end_is_closed(coordinating, turns):
    server = coordinating.serve()
    http, clients, ended = server._server, [], threading.Event()

    def close_after(turns_left):
        if turns_left:
            http._loop.call_soon(close_after, turns_left - 1)
        else:
            http._loop.create_task(http._connections.close(0)).add_done_callback(lambda _: ended.set())

    def connect():  # on the event loop: the connection and the end come in the same turns
        clients.append(socket.create_connection(('localhost', server.port), 10))
        close_after(turns)

    http.call_soon(connect)
    assert ended.wait(10)
    with clients[0] as client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b''


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_a_relay_whose_thread_dies_ends_with_status_1(coordinating, monkeypatch, capsys):
    """It would otherwise serve old weights as 'running'; its launch starts it again."""
    upstream, reports, threads = coordinating.serve(), [], []

    def get(*_):
        threads.append(threading.current_thread())
        raise MemoryError

    monkeypatch.setattr(WeightsReader, 'get', get)
    given = {'options': ServerOptions(), 'report': reports.append, 'upstream': f'localhost:{upstream.port}'}
    work = functools.partial(coordinator_server.serve, **given)
    assert job_process._attempt('tflearn-coordinator', lambda stop: work(stop=stop), threading.Event()) == 1
    threads[0].join(20)
    assert 'error: RuntimeError: the thread relay died (MemoryError: )' in capsys.readouterr().err
