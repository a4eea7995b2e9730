"""A tunnel forwards for those whose certificate an authority signed, and for nobody else."""

import contextlib
import os
import pathlib
import random
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from tests.testing import certificates, docs_blocks
from tflearn.core.waiting import wait_until
from tflearn.net import tls
from tflearn.net.tunnel import Address, Side, Tunnel, TunnelOptions, opened

DEADLINE_SECS = 30.0


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """The files of both sides, of one authority; and of a stranger, of another one."""
    folder = tmp_path_factory.mktemp('certificates')
    own, other = (certificates.make_authority(folder, name) for name in ('own_ca', 'other_ca'))
    sides = {name: certificates.signed(folder, name, own) for name in ('server', 'client', 'next')}
    found = {name: tls.TlsFiles(certificate, key, own[1]) for name, (key, certificate) in sides.items()}
    key, certificate = certificates.signed(folder, 'stranger', other)
    return {**found, 'stranger': tls.TlsFiles(certificate, key, own[1]), 'other_ca': other[1]}


@pytest.fixture
def echo():
    """The port of a server that returns what it gets; and how many have connected."""
    made = []

    def answer(connection):
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                made.append(listener.accept()[0])
                threading.Thread(target=answer, args=made[-1:], daemon=True).start()

    with socket.create_server(('localhost', 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1], made
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE_SECS)


def local(port=0):
    return Address('localhost', port)


@contextlib.contextmanager
def tunnel(files, port, client='client', **limits):
    """Both sides. Yields them."""
    server = opened(TunnelOptions(Side.SERVER, local(), local(port), files['server'], **limits))
    with server as server, opened(TunnelOptions(Side.CLIENT, local(), local(server.port), files[client])) as client:
        yield server, client


def connected(port):
    return socket.create_connection(('localhost', port), DEADLINE_SECS)


def reached(port, data=b'ping'):
    """Returns what the server at the other end answers; b'' if the connection is closed instead."""
    with contextlib.suppress(ConnectionError), connected(port) as connection:
        connection.sendall(data)
        return connection.recv(len(data))
    return b''


def refusal(encrypted):
    """Returns how a connection without a certificate ends; '' if it is answered."""
    with encrypted:
        try:
            encrypted.sendall(b'ping')
            return '' if encrypted.recv(4) else 'closed'
        except OSError as error:
            return str(error)


def test_forwards_whole_streams_in_both_directions(files, echo):
    data = os.urandom(8_000_000)
    with tunnel(files, echo[0]) as (server, client):
        received = bytearray()
        with connected(client.port) as connection:
            sender = threading.Thread(target=connection.sendall, args=(data,))
            sender.start()
            while len(received) < len(data):
                received += connection.recv(1 << 20)
            sender.join()
            assert server.num_connections == client.num_connections == 1
        assert received == data
        wait_until(lambda: not server.num_connections + client.num_connections, 'the end of both', DEADLINE_SECS)


def test_refuses_who_shows_no_certificate_or_that_of_another_authority(files, echo):
    with tunnel(files, echo[0], 'stranger') as (server, client):
        assert reached(client.port) == b''
        trusting = ssl.create_default_context(cafile=str(files['client'].client_ca))
        with connected(server.port) as plain:
            plain.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n')
            assert plain.recv(100)[:1] in (b'', b'\x15'), 'nothing, or an alert of TLS'
        assert refusal(trusting.wrap_socket(connected(server.port), server_hostname='localhost'))
        assert echo[1] == [], 'no stranger has a connection to the server'
        with opened(TunnelOptions(Side.CLIENT, local(), local(server.port), files['client'])) as good:
            assert reached(good.port) == b'ping'


def test_the_client_refuses_a_server_of_another_authority_or_name(files, echo):
    believed = files['client']
    strangers = tls.TlsFiles(believed.certificate, believed.key, files['other_ca'])
    server = opened(TunnelOptions(Side.SERVER, local(), local(echo[0]), files['server']))
    with server as server:
        for found, name in ((strangers, None), (believed, 'elsewhere')):
            options = TunnelOptions(Side.CLIENT, local(), local(server.port), found, name)
            with opened(options) as client:
                assert reached(client.port) == b''
    assert echo[1] == []


def test_takes_over_replaced_files_and_keeps_the_old_ones_while_they_do_not_fit(files, echo, tmp_path):
    own = files['server']
    copies = tls.TlsFiles(tmp_path / 'own.pem', tmp_path / 'own.key', own.client_ca)
    for source, target in ((own.certificate, copies.certificate), (own.key, copies.key)):
        shutil.copy(source, target)
    trusting = files['client'].client_context()

    def shown():
        with trusting.wrap_socket(connected(server.port), server_hostname='localhost') as encrypted:
            return dict(item[0] for item in encrypted.getpeercert()['subject'])['commonName']

    with opened(TunnelOptions(Side.SERVER, local(), local(echo[0]), copies)) as server:
        assert shown() == 'server'
        shutil.copy(files['next'].certificate, copies.certificate)
        assert shown() == 'server', 'the certificate does not fit the key'
        shutil.copy(files['next'].key, copies.key)
        assert shown() == 'next'


def test_the_commands_of_the_documents_make_certificates(echo, tmp_path):
    (block,) = [each.text for each in docs_blocks.of('bash') if 'run-authority' in each.text]
    subprocess.run(['bash', '-e'], input=block, cwd=tmp_path, text=True, capture_output=True, timeout=60, check=True)
    made = {
        name: tls.TlsFiles(tmp_path / f'{name}.pem', tmp_path / f'{name}.key', tmp_path / 'ca.pem')
        for name in ('replay', 'collector')
    }
    with opened(TunnelOptions(Side.SERVER, local(), local(echo[0]), made['replay'])) as server:
        options = TunnelOptions(Side.CLIENT, local(), local(server.port), made['collector'], 'replay')
        with opened(options) as client:
            assert reached(client.port) == b'ping'


def test_unix_sockets_for_network_namespaces(files, echo, tmp_path):
    path = Address.parse(f'unix:{tmp_path / "socket"}', '--to')
    with opened(TunnelOptions(Side.SERVER, local(), local(echo[0]), files['server'])) as server:
        inside = TunnelOptions(Side.CLIENT, path, local(server.port), files['client'])
        with opened(inside) as client, socket.socket(socket.AF_UNIX) as connection:
            assert client.port is None
            connection.settimeout(DEADLINE_SECS)
            connection.connect(path.host)
            connection.sendall(b'ping')
            assert connection.recv(4) == b'ping'
            with pytest.raises(ValueError, match='got the address unix:.*, which cannot be listened at'):
                Tunnel(inside)
        assert not os.path.exists(path.host)


def resident_bytes():
    return int(pathlib.Path('/proc/self/statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def _malformed(rng):
    """Bytes that are no handshake, and beginnings of one."""
    hello = bytes.fromhex('16030100c8010000c40303') + rng.randbytes(32)
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 400))
    if kind == 1:
        return hello[: rng.randrange(1, len(hello))] + rng.randbytes(rng.randrange(50))
    if kind == 2:
        return b'\x16\x03\x01\xff\xff' + rng.randbytes(100)
    return b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + rng.randbytes(20)


@pytest.mark.parametrize('count', [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_malformed_messages_end_nothing_and_leave_nothing_behind(files, echo, count):
    rng = random.Random(int(os.environ.get('TFLEARN_TEST_SEED', '0')))
    with tunnel(files, echo[0], handshake_timeout_secs=2.0, max_connections=64) as (server, client):
        assert reached(client.port) == b'ping'
        handles = len(os.listdir('/proc/self/fd'))
        for i in range(count):
            if i == count // 2:
                before = resident_bytes()
            with contextlib.suppress(OSError), connected(server.port) as connection:
                connection.sendall(_malformed(rng))
        wait_until(lambda: reached(client.port) == b'ping', 'a place', DEADLINE_SECS)
        wait_until(lambda: not server.num_connections, 'the end of the connections', DEADLINE_SECS)
        assert len(echo[1]) == 2
        assert resident_bytes() - before < 40e6, 'what 64 connections hold, and not what all of them have held'
        wait_until(lambda: len(os.listdir('/proc/self/fd')) <= handles + 4, 'closed handles', DEADLINE_SECS)


def test_connections_are_bounded_and_a_silent_one_is_closed(files, echo):
    with tunnel(files, echo[0], max_connections=2, handshake_timeout_secs=1.0) as (server, client):
        silent = [connected(server.port) for _ in range(3)]
        assert silent[2].recv(1) == b'', 'the third one is refused'
        assert [connection.recv(1) for connection in silent[:2]] == [b'', b''], 'no handshake within a second'
        assert reached(client.port) == b'ping'
        for connection in silent:
            connection.close()


@pytest.mark.parametrize(
    ('text', 'valid'),
    [
        ('localhost:1', True),
        ('[::1]:80', True),
        ('unix:/x', True),
        ('unix:', False),
        ('host', False),
        ('a:70000', False),
        ('a..b:80', False),
    ],
)
def test_addresses(text, valid):
    if valid:
        assert str(Address.parse(text, '--to')) == text
    else:
        with pytest.raises(ValueError, match=f'got --to={text}; need HOST:PORT or unix:PATH'):
            Address.parse(text, '--to')


def test_rejects_an_authority_that_is_missing(files):
    without = tls.TlsFiles(files['server'].certificate, files['server'].key)
    with pytest.raises(ValueError, match='got no authority'):
        TunnelOptions(Side.SERVER, local(), local(), without)
