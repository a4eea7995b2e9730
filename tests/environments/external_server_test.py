"""The server over real HTTP: wrong messages, curl, a Python program without tflearn, TLS."""

import base64
import contextlib
import http.client
import json
import pathlib
import re
import shlex
import shutil
import ssl
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.environments.playing import DEADLINE_SECS, Playing, make
from tests.testing import certificates
from tflearn.environments import external_client, external_server
from tflearn.environments.external_client import SimulatorClient
from tflearn.environments.external_server import ExternalOptions, TlsFiles

ROOT = pathlib.Path(__file__).resolve().parents[2]

BAD = [
    ('POST', '/v1/episodes', b'{', 400, 'got a body that is no JSON'),
    ('POST', '/v1/episodes', b'[' * 100_000, 400, 'got a body that is no JSON'),
    ('POST', '/v1/episodes', b'\xff', 400, 'got a body that is no JSON'),
    ('POST', '/v1/episodes', b'[1]', 400, 'got a JSON list; need an object with observation'),
    ('POST', '/v1/episodes', b'{}', 400, 'got a message without observation'),
    ('POST', '/v1/episodes', b'{"observation": [1]}', 400, 'got observation with shape [1]; need [2]'),
    ('POST', '/v1/episodes', b'{"observation": [1, NaN]}', 400, 'got observation with numbers that are not finite'),
    ('POST', '/v1/episodes', b'{"observation": [1, 2], "reward": 1}', 400, 'got a message with reward; need only'),
    ('POST', '/v1/episodes/none/steps', b'{"reward": 1, "observation": [1, 2]}', 410, 'there is none'),
    ('POST', '/v1/episodes/{}/steps', b'{"reward": "1", "observation": [1, 2]}', 400, "got reward='1'; need a finite"),
    ('POST', '/v1/episodes/{}/steps', b'{"reward": 1e999, "observation": [1, 2]}', 400, 'got reward=inf'),
    ('POST', '/v1/episodes/{}/steps', b'{"reward": 1e99, "observation": [1, 2]}', 400, 'got reward=1e+99'),
    ('POST', '/v1/episodes/{}/steps', b'{"reward": 1, "observation": [1, 2], "terminated": 1}', 400, 'need true or'),
    ('POST', '/v1/episodes/{}/steps', b'{"reward": 1, "observation": [1, 2], "step": "x"}', 400, "got step='x'"),
    ('POST', '/v1/episodes/{}/steps', b'{"observation": [1, 2]}', 400, 'got a message without reward'),
    ('GET', '/', b'', 404, 'got GET /; need GET /v1/specs'),
    ('DELETE', '/v1/episodes/none', b'', 410, 'there is none'),
    ('POST', '/v1/episodes', b'x' * 2000, 413, 'got a request of 2000 bytes; need at most 1000'),
]


def test_bad_messages_get_one_line_and_nothing_ends():
    options = ExternalOptions(ports=(0,), max_request_bytes=1000, slot_timeout_secs=5.0)
    with Playing(make(1, options)) as playing:
        simulator = SimulatorClient(playing.environment.address, DEADLINE_SECS)
        simulator.begin([1, 0])
        port = int(playing.environment.address.rpartition(':')[2])
        for method, path, body, status, message in BAD:
            if body.startswith(b'[['):
                body = body[:900]
            connection = http.client.HTTPConnection('localhost', port, timeout=DEADLINE_SECS)
            with contextlib.closing(connection):
                connection.request(method, path.format(simulator._episode), body)
                response = connection.getresponse()
                found = json.loads(response.read())
            assert (response.status, message in found['error']) == (status, True), (path, body, found)
            assert '\n' not in found['error']
        for raw in (b'\x16\x03\x01\x00\x00', b'POST /v1/episodes HTTP/1.1\r\nContent-Length: -4\r\n\r\n', b''):
            connection = http.client.HTTPConnection('localhost', port, timeout=DEADLINE_SECS)
            with contextlib.closing(connection):
                connection.connect()
                connection.sock.sendall(raw)
                connection.sock.shutdown(1)
                connection.sock.recv(1000)
        assert simulator.step(1.0, [1, 1]) == 2, 'the episode goes on'
        simulator.close()


def test_python_program_without_tflearn(tmp_path):
    """The client file alone, in a process that cannot import tflearn, nor numpy."""
    shutil.copy(external_client.__file__, tmp_path / 'client.py')
    program = """
import sys, client
c = client.SimulatorClient(sys.argv[1])
print(c.specs()['action']['high'], c.begin([3, 0]), c.step(1, [3, 1]), c.step(1, [3, 2], truncated=True), c.last_return)
"""
    with Playing(make(1)) as playing:
        ended = subprocess.run(
            [sys.executable, '-S', '-c', program, playing.environment.address],
            cwd=tmp_path, env={}, capture_output=True, text=True, timeout=DEADLINE_SECS,
        )  # fmt: skip
    assert (ended.stdout, ended.stderr) == ('4 3 4 None 2.0\n', '')


@pytest.mark.skipif(shutil.which('curl') is None, reason='needs curl')
def test_the_commands_of_the_page():
    page = (ROOT / 'docs' / 'external-simulators.md').read_text(encoding='utf-8')
    commands, episode, found = re.findall('^curl .*$', page, re.MULTILINE), '', []
    act = lambda observation: np.ones(len(observation), np.int64)  # noqa: E731
    with Playing(make(1, observation={'shape': (4,)}, action={'choices': 2}), act) as playing:
        for command in commands:
            command = re.sub(r'(?<=/episodes/)\w+', episode, command)
            words = shlex.split(command.replace('http://localhost:8600', playing.environment.address))
            ended = subprocess.run(words, capture_output=True, check=True, timeout=DEADLINE_SECS)
            found.append(json.loads(ended.stdout))
            episode = found[0]['episode']
    assert found == [
        {'episode': episode, 'step': 0, 'action': 1},
        {'step': 1, 'action': 1},
        {'steps': 2, 'return': 2.0},
    ]


def test_simulators_show_a_token(tmp_path, monkeypatch):
    (tmp_path / 'token').write_text('0123456789abcdef\n')
    monkeypatch.setenv('SIMULATORS', '0123456789abcdef')
    for source in (str(tmp_path / 'token'), 'env:SIMULATORS'):
        with Playing(make(1, ExternalOptions(ports=(0,), token=source))) as playing:
            address = playing.environment.address
            for token in ('', '0123456789abcdeF', '0123456789abcde'):
                stranger = SimulatorClient(address, DEADLINE_SECS, token=token)
                for call in (stranger.specs, lambda: stranger.begin([1, 0]), stranger.give_up):  # noqa: B023
                    with pytest.raises(PermissionError, match='got no token, or another; need Authorization: Bearer'):
                        call()
                stranger.close()
            simulator = SimulatorClient(address, DEADLINE_SECS, token='0123456789abcdef')
            assert simulator.begin([1, 0]) == 1
            simulator.close()


def test_tls_files_are_replaced_while_it_listens(tmp_path):
    files = [tmp_path / 'used.key', tmp_path / 'used.pem']
    made = [certificates.make(tmp_path, name) for name in ('first', 'second')]

    def use(pair):
        for source, target in zip(pair, files, strict=True):
            shutil.copy(source, target)

    use(made[0])
    with Playing(make(1, ExternalOptions(ports=(0,), tls=TlsFiles(files[1], files[0])))) as playing:
        for pair in made:
            use(pair)
            trusted = ssl.create_default_context(cafile=pair[1])
            simulator = SimulatorClient(playing.environment.address, DEADLINE_SECS, trusted)
            assert simulator.specs()['slots'] == 1
            simulator.close()


def test_tls_with_certificates_of_clients(tmp_path):
    key, certificate = certificates.make(tmp_path, 'server')
    client_key, client_certificate = certificates.make(tmp_path, 'client')
    options = ExternalOptions(ports=(0,), tls=TlsFiles(certificate, key, client_certificate))
    with Playing(make(1, options)) as playing:
        context = ssl.create_default_context(cafile=str(certificate))
        context.load_cert_chain(client_certificate, client_key)
        simulator = SimulatorClient(playing.environment.address, DEADLINE_SECS, context)
        assert simulator.begin([1, 0]) == 1
        simulator.close()
        for without in (None, ssl.create_default_context(cafile=str(certificate))):
            refused = SimulatorClient(playing.environment.address, DEADLINE_SECS, without)
            with pytest.raises(OSError):
                refused.begin([1, 0])
            refused.close()


NEST = {
    'image': {'shape': (2, 2), 'dtype': 'uint8', 'low': 0, 'high': 255},
    'gear': {'choices': 3},
    'arm': {'position': {'shape': (2,), 'low': -1.0, 'high': 1.0}, 'counts': {'choices': (2, 4)}},
}
SPEC = external_server.to_spec(NEST, 'observation')
VALUE = {'image': [[0, 255], [1, 2]], 'gear': 2, 'arm': {'position': [0.5, -1], 'counts': [1, 3]}}


def test_specs():
    assert [(leaf.name, leaf.dtype, tuple(leaf.shape)) for leaf in tf.nest.flatten(SPEC)] == [
        ('observation/arm/counts', tf.int64, (2,)),
        ('observation/arm/position', tf.float32, (2,)),
        ('observation/gear', tf.int64, ()),
        ('observation/image', tf.uint8, (2, 2)),
    ]
    assert SPEC['gear'].maximum == 2
    assert SPEC['arm']['counts'].maximum.tolist() == [1, 3]
    plain = external_server.to_spec({'shape': (4,)}, 'observation')
    assert np.all(plain.maximum == np.finfo(np.float32).max)


def test_values_of_a_nest():
    arrays = external_server.from_json(VALUE, SPEC, 'observation')
    for array, spec in zip(tf.nest.flatten(arrays), tf.nest.flatten(SPEC), strict=True):
        assert (array.dtype, array.shape) == (spec.dtype.as_numpy_dtype, tuple(spec.shape))
    assert arrays['arm']['position'].tolist() == [0.5, -1.0]
    assert external_server.to_json(arrays, SPEC) == VALUE


def test_bytes_in_base64():
    spec = external_server.to_spec({'shape': (3,)}, 'observation')
    text = base64.b64encode(np.array([1, -2, 0.5], '<f4').tobytes()).decode()
    assert external_server.from_json(text, spec, 'observation').tolist() == [1, -2, 0.5]


def test_floats_of_actions_are_clipped_and_their_array_is_kept():
    spec = external_server.to_spec({'shape': (2,), 'low': -1.0, 'high': 1.0}, 'action')
    action = np.array([3.0, -0.5], np.float32)
    assert external_server.to_json(action, spec) == [1.0, -0.5]
    assert action[0] == 3


def test_clients_get_the_description():
    assert external_server.describe(SPEC)['gear'] == {'shape': [], 'dtype': 'int64', 'low': 0, 'high': 2}
    assert external_server.describe(external_server.to_spec({'shape': (4,)}, 'o')) == {
        'shape': [4],
        'dtype': 'float32',
    }


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        ({'gear': 3}, r'got observation.gear from 3 to 3; need 0 to 2'),
        ({'gear': 1.5}, 'got observation.gear with float64 values; need int64'),
        ({'gear': [1]}, r'got observation.gear with shape \[1\]; need \[\]'),
        ({'gear': None}, 'got observation.gear with NoneType; need numbers'),
        ({'image': ['x' * 50_000, *[''] * 50_000]}, 'got observation.image with str; need numbers'),  # 10 GB in numpy
        ({'image': [[0, 256], [0, 0]]}, 'got observation.image with numbers beyond uint8'),
        ({'image': [[0, 1], [0]]}, 'got observation.image with lists of several sizes'),
        ({'image': 'AAA='}, 'got observation.image of 2 bytes; need 4'),
        ({'image': '!'}, 'got observation.image as a string that is no base64'),
        ({'arm': {'position': [0.0, float('nan')], 'counts': [0, 0]}}, 'numbers that are not finite'),
        ({'arm': {'position': [0.0, 1e300], 'counts': [0, 0]}}, 'numbers that are not finite'),
        ({'arm': {'position': [0.0, 0.0]}}, r"got observation.arm with the keys \['position'\]; need an object"),
        ({'arm': 3}, 'got observation.arm with int; need an object with the keys'),
    ],
)
def test_wrong_values_are_named(part, message):
    with pytest.raises(ValueError, match=message):
        external_server.from_json(VALUE | part, SPEC, 'observation')


@pytest.mark.parametrize(
    ('description', 'message'),
    [
        (4, 'got 4 as description of action; need a dict'),
        ({}, 'got {} as description of action'),
        ({'choices': 0}, 'choices=0'),
        ({'shape': (2,), 'dtype': 'float64'}, 'not float32 or an integer'),
        ({'shape': (2,), 'size': 3}, 'size'),
        ({'shape': (2,), 'low': 2.0, 'high': 1.0}, 'low=2.0 above high=1.0'),
        ({'arm': {'choices': (2, 0)}}, r'as description of action/arm'),
    ],
)
def test_wrong_descriptions_are_refused(description, message):
    with pytest.raises(ValueError, match=message):
        external_server.to_spec(description, 'action')
