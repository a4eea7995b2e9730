"""The weights server over HTTP: who gets what, who is refused, and that nothing of a stranger ends it."""

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
from tests.coordinator.weights_messages_test import made
from tflearn.coordinator import weights_messages, weights_relay
from tflearn.coordinator.weights_client import Client, Lost, Refused
from tflearn.coordinator.weights_server import DELTA, PATH, WeightsServer
from tflearn.core.waiting import wait_until
from tflearn.net.server_options import ServerOptions

TOKEN = 'a-token-of-enough-characters'
LARGE = np.ones(100_000, np.float32)


@pytest.fixture
def ending():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def server_of(ending):
    return lambda takes=True, **options: ending.enter_context(
        contextlib.closing(WeightsServer(ServerOptions(**options), takes))
    )


@pytest.fixture
def client_of(ending):
    def make(*servers, name='c', token=''):
        addresses = [each if isinstance(each, str) else f'localhost:{each.port}' for each in servers]
        return ending.enter_context(contextlib.closing(Client(addresses, name, token)))

    return make


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


def test_a_publication_is_given_to_who_does_not_have_it(server_of, client_of):
    server = server_of()
    learner, collector = client_of(server), client_of(server)
    assert collector.get(None, 0) is None
    first = made([LARGE])
    learner.put(first)
    found = collector.get(None, 0)
    assert found.tag == first.tag
    np.testing.assert_array_equal(weights_messages.values(found)[0], LARGE)
    assert collector.get(found, 0) is None
    status = learner.status()
    assert (status['train_step'], status['sent_messages'], status['tag']) == (1, 1, first.tag)
    assert LARGE.nbytes < status['sent_bytes'] < LARGE.nbytes + 1_000


def test_who_waits_gets_it_at_once(server_of, client_of):
    server = server_of()
    learner, collector, found = client_of(server), client_of(server), []
    waiting = threading.Thread(target=lambda: found.append(collector.get(None, 20)))
    waiting.start()
    wait_until(lambda: server.status()['clients'] == 1, 'a client that waits', 10)
    learner.put(made([LARGE]))
    waiting.join(10)
    assert found[0].counters['train_step'] == 1


def test_what_did_not_change_is_not_sent_again(server_of, client_of):
    server = server_of()
    learner, collector = client_of(server), client_of(server)
    learner.put(made([LARGE, np.zeros(2, np.float32)]))
    known = collector.get(None, 0)
    before = server.status()['sent_bytes']
    learner.put(made([LARGE, np.ones(2, np.float32)], step=2))
    found = collector.get(known, 0)
    assert server.status()['sent_bytes'] - before < 1_000
    np.testing.assert_array_equal(weights_messages.values(found)[0], LARGE)
    np.testing.assert_array_equal(weights_messages.values(found)[1], [1.0, 1.0])
    status, body = asked(server, If_None_Match='"unknown"', A_IM=DELTA)
    assert status == 200 and len(body) > LARGE.nbytes, 'nobody knows what such a client has'


def test_an_older_learner_is_refused(server_of, client_of):
    server = server_of()
    old, new = client_of(server), client_of(server)
    old.put(made([LARGE], epoch=1))
    new.put(made([LARGE], epoch=2, step=5))
    with pytest.raises(Refused, match='409: got epoch 1; need at least 2: another learner has taken over this run'):
        old.put(made([LARGE], epoch=1, step=9))
    assert new.status()['train_step'] == 5


def test_a_token_is_asked_for(tmp_path, server_of, client_of):
    (tmp_path / 'token').write_text(TOKEN)
    server = server_of(token=str(tmp_path / 'token'))
    for token in ('', 'another-token-of-characters'):
        with pytest.raises(Refused, match='401: got no token, or another'):
            client_of(server, token=token).put(made([LARGE]))
    client_of(server, token=TOKEN).put(made([LARGE]))


@pytest.mark.parametrize(
    ('request_', 'status', 'words'),
    [
        ({'path': '/v1/other'}, 404, 'need GET /v1/weights, GET /v1/status, PUT /v1/weights'),
        ({'method': 'PUT', 'body': b'noise'}, 400, 'that are no publication'),
        ({'method': 'PUT', 'body': b'x' * 2_000_001}, 413, 'need at most 2000000'),
        ({'method': 'DELETE'}, 405, 'got DELETE /v1/weights; need GET'),
        ({'Prefer': 'wait=soon'}, 404, ''),
    ],
)
def test_other_requests_are_answered(server_of, request_, status, words):
    server = server_of(max_request_bytes=2_000_000)
    found, body = asked(server, **request_)
    assert found == status and words in body.decode()
    assert asked(server, '/v1/status')[0] == 200


def test_half_a_publication_changes_nothing(server_of, client_of):
    server = server_of()
    with socket.create_connection(('localhost', server.port)) as stranger:
        stranger.sendall(b'PUT /v1/weights HTTP/1.1\r\nContent-Length: 1000\r\n\r\nhalf')
        wait_until(lambda: server.status()['clients'] == 1, 'the request', 10)
        with pytest.raises(Refused, match='503: another publication is being received'):
            client_of(server).put(made([LARGE]))
    wait_until(lambda: server.status()['clients'] == 0, 'the end of the request', 10)
    assert 'tag' not in server.status()
    client_of(server).put(made([LARGE]))


def test_a_relay_takes_no_publications_and_serves_on_while_the_server_is_down(server_of, client_of):
    root, second = server_of(), server_of(takes=False)
    upstream, stop = client_of(root), threading.Event()
    follower = threading.Thread(target=weights_relay.follow, args=(second.newest, upstream, stop))
    follower.start()
    try:
        client_of(root).put(made([LARGE]))
        found = client_of(second).get(None, 20)
        assert found.counters['train_step'] == 1
        with pytest.raises(Refused, match='405'):
            client_of(second).put(made([LARGE]))
        root.close()
        assert client_of(second).get(None, 0).tag == found.tag
    finally:
        stop.set()
        upstream.close()
        follower.join(20)
    assert not follower.is_alive()


def test_clients_choose_different_relays_and_go_to_the_next(server_of, client_of):
    servers = [server_of() for _ in range(3)]
    chosen = {client_of(*servers, name=f'collect_{i}').address for i in range(20)}
    assert len(chosen) == 3
    client = client_of(*servers, name='collect_0')
    first = client.address
    next(server for server in servers if first.endswith(f':{server.port}')).close()
    with pytest.raises(Lost, match=first):
        client.get(None, 0)
    assert client.address != first
    assert client.get(None, 0) is None


def test_a_port_is_for_one_server(server_of):
    server = server_of()
    with pytest.raises(ValueError, match='another server listens there.*give others by --listen'):
        server_of(port=server.port)


def test_noise_does_not_end_it(server_of, client_of):
    server = server_of()
    for noise in (b'\x16\x03\x01\x02\x00', b'GET ' + b'a' * 100_000, b'\r\n\r\n', b'PUT /v1/weights HTTP/1.1\r\n\r\n'):
        with socket.create_connection(('localhost', server.port), 10) as stranger, contextlib.suppress(OSError):
            stranger.sendall(noise)
            stranger.shutdown(socket.SHUT_WR)
            stranger.recv(1 << 16)
    client_of(server).put(made([LARGE]))
    assert json.loads(asked(server, '/v1/status')[1])['train_step'] == 1


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_a_relay_whose_thread_dies_ends_with_status_1(server_of, monkeypatch, capsys):
    """It would otherwise serve old weights as 'running'; its launch starts it again."""
    upstream, reports, threads = server_of(), [], []

    def get(*_):
        threads.append(threading.current_thread())
        raise MemoryError

    monkeypatch.setattr(Client, 'get', get)
    address = f'localhost:{upstream.port}'
    work = functools.partial(weights_relay.serve, ServerOptions(), address, reports.append)
    assert job_process._attempt('tflearn-weights', lambda stop: work(stop), threading.Event()) == 1
    threads[0].join(20)
    assert 'error: RuntimeError: the thread relay died (MemoryError: )' in capsys.readouterr().err


def test_an_epoch_far_ahead_is_refused_without_a_token(server_of, client_of):
    server = server_of()
    with pytest.raises(Refused, match='403: got epoch 1152921504606846976; need at most 1000 without --weights_token'):
        client_of(server).put(made([LARGE], epoch=2**60))
    client_of(server).put(made([LARGE], epoch=3))
    assert server.status()['train_step'] == 1


def test_a_slow_sender_loses_the_place_to_the_learner(server_of, client_of, monkeypatch):
    monkeypatch.setattr('tflearn.coordinator.weights_server._SLOW_SECS', 0.2)
    server = server_of(max_request_bytes=1 << 30)
    with socket.create_connection(('localhost', server.port), 20) as slow:
        slow.sendall(f'PUT {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {1 << 30}\r\n\r\nslow'.encode())
        wait_until(lambda: server._sender, 'its place', 20)
        threading.Event().wait(0.3)
        client_of(server).put(made([LARGE]))
        assert server.status()['train_step'] == 1
        assert slow.recv(1 << 16) == b'' or b'408' in slow.recv(1) + b'408'
