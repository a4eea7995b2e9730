"""Ten thousand malformed messages for each port that is ours: nothing ends, nothing grows, and it goes on answering."""

import contextlib
import functools
import re
import subprocess
import sys

import pytest

from tests.chaos import fuzzing
from tests.chaos.chaos_run import ROOT, wait_for
from tests.conftest import SEED
from tflearn.environments.external_client import SimulatorClient
from tflearn.launch.local import free_port

COUNT = 10_000
STOP_SECS = 60.0
GET_METRICS = b'GET /metrics HTTP/1.0\r\n\r\n'


@contextlib.contextmanager
def program(directory, module, *arguments):
    """Starts a program; gives it, and a function that returns what it has written."""
    output = directory / 'output.txt'
    with output.open('wb') as file:
        command = [sys.executable, '-m', module, *arguments]
        started = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield started, output.read_text
    finally:
        started.terminate()
        started.wait(STOP_SECS)
        started.stdin.close()


@pytest.fixture(scope='module')
def served(tmp_path_factory):
    """A real server of a policy: its process, its ports of gRPC, of metrics and of REST."""
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tests.testing import served_policies

    directory = tmp_path_factory.mktemp('served')
    served_policies.Publisher(directory / 'run' / 'policies').publish(1)
    ports = free_port(), free_port(), free_port()
    flags = [f'--root_dir={directory / "run"}', f'--port={ports[0]}', f'--metrics_port={ports[1]}']
    flags.append(f'--rest_port={ports[2]}')
    with program(directory, 'scripts.serve', *flags) as (started, text):
        wait_for(lambda: b'200' in fuzzing.send(f'localhost:{ports[1]}', GET_METRICS), 'the metrics')
        wait_for(lambda: predict(ports[0]), 'an action')
        yield started, *ports
        assert started.poll() is None, text()[-3000:]


def predict(port):
    """Returns an action of the served policy; None if there is no answer."""
    import grpc

    from tests.extensions.serving import server_load_test
    from tflearn.extensions.serving.tensor_protos import prediction_service_pb2_grpc

    with grpc.insecure_channel(f'localhost:{port}') as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        with contextlib.suppress(grpc.RpcError):
            return list(stub.Predict(server_load_test.good_request(), 30.0).outputs['action'].int64_val)


def check(report, name, pid, attack):
    """Attacks, checks that nothing has grown, and adds a row to the table."""
    before, after = fuzzing.measure(pid, attack, COUNT, SEED)
    report(name, before, after)
    assert before.growth(after) is None


@pytest.fixture
def report(capsys):
    def write(name, before, after):
        numbers = ' | '.join(
            f'{getattr(before, each):.0f}, {getattr(after, each):.0f}' for each in ('rss_mb', 'threads', 'handles')
        )
        with capsys.disabled():
            sys.stdout.write(f'\n| {name} | {COUNT:,} | {numbers} |\n')

    return write


@pytest.mark.chaos
def test_requests_of_grpc(served, report):
    import grpc

    from tests.extensions.serving import server_load_test

    started, port, *_ = served

    def attack(count, seed):
        with grpc.insecure_channel(f'localhost:{port}') as channel:
            codes = server_load_test.fuzz(channel, count, seed)
        assert set(codes) <= server_load_test.ALLOWED, codes

    check(report, '`tflearn-serve`, requests of gRPC', started.pid, attack)
    assert predict(port) == [1, 0]


@pytest.mark.chaos
@pytest.mark.parametrize('protocol', ['http2', 'noise', 'tls'])
def test_connections_of_grpc(served, report, protocol):
    started, port, *_ = served
    attack = functools.partial(fuzzing.fuzz, f'localhost:{port}', fuzzing.PROTOCOLS[protocol])
    check(report, f'`tflearn-serve`, connections of gRPC ({protocol})', started.pid, attack)
    assert predict(port) == [1, 0]


@pytest.mark.chaos
def test_metrics(served, report):
    started, _, port, _ = served
    check(
        report,
        '`tflearn-serve`, metrics',
        started.pid,
        functools.partial(fuzzing.fuzz, f'localhost:{port}', fuzzing.http),
    )
    assert b'tflearn_requests' in fuzzing.send(f'localhost:{port}', GET_METRICS)


@pytest.mark.chaos
def test_rest(served, report):
    started, _, _, port = served
    attack = functools.partial(fuzzing.fuzz, f'localhost:{port}', fuzzing.http)
    check(report, '`tflearn-serve`, REST', started.pid, attack)
    assert b'AVAILABLE' in fuzzing.send(f'localhost:{port}', b'GET /v1/models/greedy_policy HTTP/1.0\r\n\r\n')


@pytest.mark.chaos
def test_external_simulators(tmp_path, report):
    with program(tmp_path, 'tests.chaos.external_program') as (started, text):
        wait_for(lambda: 'http://' in text(), 'the address')
        address = re.search(r'http://(\S+)', text())[1]
        attack = functools.partial(fuzzing.fuzz, address, fuzzing.http)
        check(report, 'external simulators, HTTP', started.pid, attack)
        with contextlib.closing(SimulatorClient(f'http://{address}', 30.0)) as client:
            assert 0 <= client.begin([0.5, 0.5]) < 5
            assert 0 <= client.step(1.0, [0.5, 0.5]) < 5
        assert 'a request failed' not in text(), text()[-3000:]
