"""Clients are known by tokens or certificates, ask the policies that they may, and keep to their quotas."""

import contextlib
import json
import threading
import types

import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
import grpc

from tests.testing import certificates, served_policies
from tflearn.core import tokens
from tflearn.extensions.serving import clients as clients_module
from tflearn.extensions.serving.client import PolicyClient
from tflearn.extensions.serving.clients import Clients
from tflearn.extensions.serving.models import Models
from tflearn.extensions.serving.served_version import ServedVersion
from tflearn.extensions.serving.server import PolicyServer, ServingMetrics
from tflearn.net.grpc_server import Caller, GrpcRefusal
from tflearn.net.server_options import ServerOptions
from tflearn.net.tls import TlsFiles

TOKENS = {name: f'{name}-0123456789abcdef' for name in ('robot', 'screen')}


def write(path, **clients):
    path.write_text(json.dumps(clients))
    return path


def by_token(name, **limits):
    return {'token_sha256': tokens.digest(TOKENS[name]), **limits}


@contextlib.contextmanager
def serving(root, file, **options):
    """A server that admits the clients in `file`. Yields it, its models and its metrics."""
    models = Models(root, lambda path: ServedVersion(path, None))
    models.refresh()
    metrics = ServingMetrics(models)
    server = PolicyServer(models, ServerOptions(**options), metrics, Clients(file, metrics.record_refused))
    try:
        yield server, models, metrics
    finally:
        server.close(0)


def code(server, token='', model='greedy_policy', credentials=None):
    """The status of a request."""
    client = PolicyClient(f'localhost:{server.port}', model, credentials=credentials, token=token)
    with contextlib.closing(client):
        try:
            client.predict({'observation': served_policies.OBSERVATION})
        except grpc.RpcError as error:
            return error.code().name
    return 'OK'


def refused(metrics, client, reason):
    return metrics.registry.get_sample_value('tflearn_refused_requests_total', {'client': client, 'reason': reason})


def test_a_real_server_admits_known_clients_within_their_quotas(root, tmp_path):
    limits = {'policies': ['greedy_policy'], 'max_in_flight': 1}
    file = write(tmp_path / 'clients.json', robot=by_token('robot', **limits), screen=by_token('screen', policies=[]))
    with serving(root, file) as (server, models, metrics):
        assert [code(server, token) for token in ('', 'robot', TOKENS['robot'].upper())] == ['UNAUTHENTICATED'] * 3
        assert code(server, TOKENS['robot']) == 'OK'
        assert code(server, TOKENS['robot'], 'other') == 'PERMISSION_DENIED'
        assert code(server, TOKENS['screen']) == 'PERMISSION_DENIED'
        assert refused(metrics, '', 'unknown') == 3
        with served_policies.held(models) as (started, resume):
            waiting = threading.Thread(target=code, args=(server, TOKENS['robot']))
            waiting.start()
            assert started.wait(served_policies.DEADLINE_SECS)
            assert code(server, TOKENS['robot']) == 'RESOURCE_EXHAUSTED'
            resume.set()
            waiting.join()
        assert code(server, TOKENS['robot']) == 'OK'
        assert refused(metrics, 'robot', 'max_in_flight') == 1
        write(file, screen=by_token('screen'))
        assert (code(server, TOKENS['robot']), code(server, TOKENS['screen'])) == ('UNAUTHENTICATED', 'OK')
        file.write_text('{')
        assert code(server, TOKENS['screen']) == 'OK', 'a damaged file changes nothing'


def test_a_real_server_knows_clients_by_their_certificates(root, tmp_path):
    authority = certificates.make_authority(tmp_path, 'ca')
    pairs = {
        name: certificates.signed(tmp_path, name, authority, host)
        for name, host in (('server', 'localhost'), ('robot', 'robot.example'), ('other', 'other.example'))
    }
    file = write(tmp_path / 'clients.json', robot={'certificate': 'robot.example'}, same={'certificate': 'none'})
    key, certificate = pairs['server']
    with serving(root, file, tls=TlsFiles(certificate, key, authority[1])) as (server, _, _):
        found = {}
        for name in ('robot', 'other'):
            shown = [path.read_bytes() for path in pairs[name]]
            found[name] = code(server, credentials=grpc.ssl_channel_credentials(authority[1].read_bytes(), *shown))
    assert found == {'robot': 'OK', 'other': 'UNAUTHENTICATED'}


def test_requests_a_second_are_an_average_of_which_a_second_may_come_at_once(tmp_path):
    now = types.SimpleNamespace(secs=100.0)
    file = write(tmp_path / 'clients.json', robot=by_token('robot', requests_per_sec=4, policies=['one']))
    found = []
    clients = Clients(file, lambda *args: found.append(args), lambda: now.secs)
    caller = Caller({'authorization': tokens.header(TOKENS['robot'])})

    def admitted():
        count = 0
        with contextlib.suppress(GrpcRefusal):
            while count < 1000:
                with clients.admit(caller):
                    count += 1
        return count

    counts = []
    for passed in (0.0, 0.0, 0.5, 0.25, 60.0):
        now.secs += passed
        counts.append(admitted())
    assert counts == [4, 0, 2, 1, 4]
    assert found == [('robot', 'requests_per_sec')] * 5
    now.secs += 1.0
    with clients.admit(caller):
        clients_module.check_policy('one')
        with pytest.raises(GrpcRefusal, match="for 'two' from the client 'robot', which may not ask it"):
            clients_module.check_policy('two')
    clients_module.check_policy('two')
    for header in ({}, {'authorization': TOKENS['robot']}, {'authorization': 'Bearer '}):
        with pytest.raises(GrpcRefusal, match='known client'), clients.admit(Caller(header)):
            pass


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (None, 'got no clients in'),
        ('[]', 'got a damaged file'),
        ('{}', 'got {} in'),
        ('{', 'got a damaged file'),
        ('{"a": 1}', "got the client 'a' with a int; need an object with some of"),
        ('{"a": {"token": "x"}}', "got the client 'a' with other entries; need"),
        ('{"a": {}}', "got the client 'a' without token_sha256 and certificate"),
        ('{"a": {"token_sha256": "secret"}}', "got the client 'a' with another token_sha256; need 64"),
        ('{"a": {"certificate": "x", "policies": "y"}}', "got the client 'a' with other policies"),
        ('{"a": {"certificate": "x", "max_in_flight": 0}}', "got the client 'a' with another max_in_flight"),
        ('{"a": {"certificate": "x", "requests_per_sec": true}}', "got the client 'a' with another requests_per_sec"),
    ],
)
def test_wrong_files(tmp_path, text, message):
    file = tmp_path / 'clients.json'
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=message):
        Clients(file)


@pytest.mark.parametrize(
    'entry',
    [
        'THE-TOKEN',
        ['THE-TOKEN'],
        {'token': 'THE-TOKEN'},
        {'token_sha256': 'THE-TOKEN'},
        {'certificate': 'x', 'policies': 'THE-TOKEN'},
        {'certificate': 'x', 'max_in_flight': 'THE-TOKEN'},
    ],
)
def test_a_token_in_the_wrong_place_is_not_shown(tmp_path, entry):
    (tmp_path / 'clients.json').write_text(json.dumps({'a': entry}))
    with pytest.raises(ValueError, match="got the client 'a'") as error:
        Clients(tmp_path / 'clients.json')
    assert 'THE-TOKEN' not in str(error.value)
