"""Encryption, and servers that require a client certificate."""

import shutil

import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
import grpc

from tests.testing import certificates, served_policies
from tflearn.extensions.serving.client import PolicyClient
from tflearn.net.tls import TlsFiles


@pytest.mark.parametrize('mutual', [False, True])
def test_tls_and_mutual_tls(root, tmp_path, mutual):
    own, strange = certificates.make(tmp_path, 'own'), certificates.make(tmp_path, 'strange')
    tls = TlsFiles(own[1], own[0], own[1] if mutual else None)
    with served_policies.serving(root, tls=tls) as (server, _):
        ca = own[1].read_bytes()
        pairs = {
            'none': (),
            'strange': tuple(path.read_bytes() for path in strange),
            'own': tuple(p.read_bytes() for p in own),
        }
        answered = {}
        for name, pair in pairs.items():
            client = PolicyClient(f'localhost:{server.port}', credentials=grpc.ssl_channel_credentials(ca, *pair))
            try:
                assert client.predict({'observation': served_policies.OBSERVATION})[1] == 7
                answered[name] = 'OK'
            except grpc.RpcError as error:
                answered[name] = error.code().name
            client.close()
    others = 'UNAVAILABLE' if mutual else 'OK'
    assert answered == {'none': others, 'strange': others, 'own': 'OK'}


def test_certificates_are_replaced_while_it_serves(root, tmp_path):
    made = [certificates.make(tmp_path, name) for name in ('first', 'second')]
    used = [tmp_path / 'used.key', tmp_path / 'used.pem']

    def use(*pair):
        for source, target in zip(pair, used, strict=True):
            shutil.copy(source, target)

    def answers(ca, client=None):
        client = client or PolicyClient(f'localhost:{server.port}', credentials=grpc.ssl_channel_credentials(ca))
        try:
            return client.predict({'observation': served_policies.OBSERVATION})[1] == 7
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            return False

    old, new = (certificate.read_bytes() for _, certificate in made)
    use(*made[0])
    with served_policies.serving(root, tls=TlsFiles(used[1], used[0])) as (server, _):
        connected = PolicyClient(f'localhost:{server.port}', credentials=grpc.ssl_channel_credentials(old))
        assert answers(old, connected) and not answers(new)
        use(made[0][0], made[1][1])
        assert answers(old), 'the new certificate does not fit the old key'
        use(*made[1])
        assert answers(new) and not answers(old)
        assert answers(old, connected), 'connections go on'
