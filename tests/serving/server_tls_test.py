"""Encryption, and servers that require a client certificate."""

import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
import grpc

from tests.testing import certificates, served_policies
from tflearn.rpc.server import TlsFiles
from tflearn.serving.client import PolicyClient


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
