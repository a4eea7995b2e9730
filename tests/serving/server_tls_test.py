"""Encryption, and clients that have to show a certificate."""

import subprocess

import numpy as np
import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')

from tests.testing import served_policies
from tflearn.serving.client import PolicyClient
from tflearn.serving.protos import grpc
from tflearn.serving.server import TlsFiles

DEADLINE_SECS = 60.0
OBSERVATION = np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    """Version 7 of a policy."""
    root = tmp_path_factory.mktemp('policies')
    served_policies.Publisher(root).publish(7)
    return root


def certificate(folder, name):
    """Makes a key and a certificate for localhost, signed by itself."""
    key, file = folder / f'{name}.key', folder / f'{name}.pem'
    command = ['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', f'/CN={name}']
    command += ['-addext', 'subjectAltName=DNS:localhost', '-keyout', str(key), '-out', str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECS)
    if ended.returncode:
        pytest.skip(f'needs an openssl that can sign: {ended.stderr}')
    return key, file


@pytest.mark.parametrize('mutual', [False, True])
def test_tls_and_mutual_tls(root, tmp_path, mutual):
    own, strange = certificate(tmp_path, 'own'), certificate(tmp_path, 'strange')
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
                assert client.predict({'observation': OBSERVATION})[1] == 7
                answered[name] = 'OK'
            except grpc.RpcError as error:
                answered[name] = error.code().name
            client.close()
    others = 'UNAVAILABLE' if mutual else 'OK'
    assert answered == {'none': others, 'strange': others, 'own': 'OK'}


def test_rejects_invalid_pem_files(tmp_path):
    own, strange = certificate(tmp_path, 'own'), certificate(tmp_path, 'strange')
    (tmp_path / 'noise').write_bytes(b'noise')
    for files in ((own[1], strange[0]), (own[1], own[0], tmp_path / 'noise'), (tmp_path / 'none', own[0])):
        with pytest.raises(ValueError, match=f'got the files {files[0]}, .*; need a certificate, its key, CAs, in PEM'):
            TlsFiles(*files).credentials()
