"""TLS to a Valkey server: its certificate, ours, and a user with no more rights than docs/distributed.md says."""

import contextlib
import dataclasses
import itertools
import subprocess
import sys

import numpy as np
import pytest

from tests.replay.valkey_test import SECRET, Given
from tests.testing import certificates, tls_proxy
from tests.testing.replay import chunks_of
from tflearn.core.waiting import is_listening, wait_until
from tflearn.launch.local import free_port
from tflearn.replay import backend
from tflearn.replay.storage import REPLAY, STREAM
from tflearn.replay.valkey import library

RIGHTS = (
    '~tflearn:* +@connection +@stream +@list +@hash +@set +@transaction +del +exists +expire +rename '
    '+function|load +fcall +info +config|get'
)
USER = f'save 3600 1\nuser replay on >{SECRET} {RIGHTS}'


@dataclasses.dataclass
class Encrypted(Given):
    """A given server that is reached by TLS at another port."""

    tls_port: int = 0

    @property
    def address(self):
        return f'valkeys://localhost:{self.tls_port}/3'


@dataclasses.dataclass
class Files:
    """Paths of PEM files."""

    authority: object
    key: object
    certificate: object
    client: object


@pytest.fixture
def files(tmp_path):
    authority = certificates.make_authority(tmp_path, 'authority')
    key, certificate = certificates.signed(tmp_path, 'server', authority)
    ours = certificates.signed(tmp_path, 'client', authority)
    client = tmp_path / 'both.pem'
    client.write_text(''.join(path.read_text() for path in ours))
    return Files(authority[1], key, certificate, client)


@pytest.fixture
def known(tmp_path, files, monkeypatch):
    """User, password and certificates are in the environment."""
    (tmp_path / 'password').write_text(SECRET)
    monkeypatch.setenv(library.USER_VARIABLE, 'replay')
    monkeypatch.setenv(library.PASSWORD_VARIABLE, str(tmp_path / 'password'))
    monkeypatch.setenv(library.CERTIFICATE_VARIABLE, str(files.client))
    monkeypatch.setenv('SSL_CERT_FILE', str(files.authority))


@pytest.fixture
def served(tmp_path, files, known):
    """A function (kind, key, certificate) -> a server whose TLS is its own, or that of a proxy."""
    with contextlib.ExitStack() as stack:

        def start(kind, key=files.key, certificate=files.certificate):
            given = Encrypted(tmp_path / 'given', USER)
            if kind == 'proxy':
                given.start()
                given.tls_port = free_port()
                arguments = [given.tls_port, given.port, key, certificate, files.authority]
                proxy = subprocess.Popen([sys.executable, tls_proxy.__file__, *map(str, arguments)])
                stack.callback(proxy.wait)
                stack.callback(proxy.kill)
                wait_until(lambda: is_listening(f'localhost:{given.tls_port}'), 'the proxy', 30)
            else:
                given.tls_port = given.port
                given.settings += f"""
                    port 0
                    tls-port {given.port}
                    tls-auth-clients yes
                    tls-cert-file {certificate}
                    tls-key-file {key}
                    tls-ca-cert-file {files.authority}"""
                try:
                    given.start()
                except ChildProcessError:
                    pytest.skip('needs a valkey-server with TLS on the PATH')
            stack.callback(given.process.wait)
            stack.callback(given.process.kill)
            return given

        yield start


@pytest.mark.parametrize('kind', ['proxy', 'server'])
def test_a_replay_over_tls(served, kind):
    running = served(kind)
    keeper = running.keep()
    chunks = [*chunks_of(running.storage, 0, 12)]
    writer = backend.connect(running.address).writer()
    writer.insert(chunks, [(REPLAY, STREAM)] * 12, 1.0)
    assert writer.flush(0, 10.0)
    stream = backend.connect(running.address).stream(STREAM, running.storage.item_shape, 4)
    found = [*itertools.chain.from_iterable(itertools.takewhile(len, stream))]
    assert np.array_equal(found, chunks)
    before = keeper.counts()
    assert before[STREAM].samples == 12
    keeper.checkpoint()
    keeper.close()
    assert backend.counts(running.address) == before


@pytest.mark.parametrize(
    'kind, variable, value, error',
    [
        ('proxy', 'SSL_CERT_FILE', None, 'unable to get local issuer certificate|self-signed'),
        ('server', library.CERTIFICATE_VARIABLE, None, 'certificate required'),  # the proxy ends without a reason
        ('proxy', library.CERTIFICATE_VARIABLE, '/nowhere', 'which cannot be read; need the path of a PEM file'),
        ('proxy', library.USER_VARIABLE, 'another', 'refuses this user or password'),
    ],
)
def test_refuses_in_one_line_what_is_not_trusted(served, monkeypatch, kind, variable, value, error):
    running = served(kind)
    monkeypatch.setenv(variable, value) if value else monkeypatch.delenv(variable)
    _refused(running.address, error)


def test_refuses_the_certificate_of_another_name(served, tmp_path, files):
    authority = certificates.make_authority(tmp_path, 'authority')
    files.authority.write_text(authority[1].read_text())
    _refused(served('proxy', *certificates.signed(tmp_path, 'other', authority, 'elsewhere')).address, 'mismatch')


def _refused(address, error):
    with pytest.raises(ValueError, match=error) as found:
        # In TLS 1.3 the reason may be lost with the connection; all who wait for a server ask again.
        wait_until(lambda: backend.counts(address), 'an answer', 10.0)
    assert '\n' not in str(found.value) and SECRET not in str(found.value)
