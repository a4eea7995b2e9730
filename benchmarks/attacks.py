"""What unknown clients can do to each of our servers: does a client notice?

    python benchmarks/attacks.py

Each server runs with its default options and at most 1,024 file handles. The attacker, a process of its own, opens what
is closed again at once. A client of this machine goes on meanwhile, half of its requests over a new connection. The
table says how many failed, their 99th percentile, and what the server's memory grew by. It exits with 1 if a request
failed, took longer than a second at the 99th percentile, or a server grew by 50 MB (150 MB where it gets 16 whole
requests of 4 MB of JSON at once).

Each port also gets 10,000 valid and half-valid messages (`wrong_messages`): a server must answer each, or refuse it by
the field's name; afterwards it must stand still and have grown by 150 MB at most.

Only servers that this program starts are attacked, at 127.0.0.1.
"""

import argparse
import contextlib
import http.client
import json
import multiprocessing
import pathlib
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, edge_requests, half_valid, wrong_forms, wrong_messages  # noqa: E402
from benchmarks.unfinished_streams import Streams  # noqa: E402
from tests.testing import console_programs  # noqa: E402
from tflearn.coordinator.server import MAX_CONNECTIONS  # noqa: E402
from tflearn.core.waiting import is_listening, wait_until  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402

HOST = '127.0.0.1'
_HTTP2 = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\x00\x00\x00\x04\x00\x00\x00\x00\x00'  # and no settings
_SLOW_HEAD = b'GET /metrics HTTP/1.1\r\nX-Slow: '
PREDICT, HEALTH = '/tensorflow.serving.PredictionService/Predict', '/grpc.health.v1.Health/Check'
_MAX_ATTEMPTS = 200_000  # of one attack
_HANDSHAKE_SECS = 12.0  # gRPC's own 10 s, and the time to ask


def main() -> int:
    """Attacks, and prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--secs', type=float, default=60.0, help='of each attack')
    parser.add_argument('--idle', type=int, default=1100, help='idle connections')
    parser.add_argument('--handles', type=int, default=1024, help='file handles of each server')
    parser.add_argument('--messages', type=int, default=10_000, help='half-valid ones to each port')
    parser.add_argument('--servers', default=','.join(SERVERS))
    parser.add_argument('--log', type=argparse.FileType('w'), default=None, help='what servers log')
    options = parser.parse_args()
    rows = []
    for name in options.servers.split(','):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
            rows += SERVERS[name](pathlib.Path(root), options)
    for row in rows:
        print('| ' + ' | '.join(map(str, row.values())) + ' |')
    command_line.write(options.json, rows)
    return 0 if all(passed(row) for row in rows) else 1


def passed(row: dict[str, Any]) -> bool:
    """Returns whether a server stood an attack."""
    if 'stood' in row:
        return bool(row['stood'])
    return bool(row['requests'] and not row['failed'] and row['p99_secs'] <= 1.0 and row['grown_mb'] < row['most_mb'])


def attacked(
    name: str,
    pid: int,
    attack: Callable[[float], None],
    ask: Callable[[bool], object],
    secs: float,
    most_mb: float = 50.0,
    refuses_new: bool = False,
) -> dict[str, Any]:
    """Asks while the attack goes on.

    Args:
      pid: the server's process.
      attack: attacks for so many seconds, in a process of its own.
      most_mb: by which the server may grow.
      refuses_new: whether it may refuse new connections as long as the attack goes on, and 10 s more.
      ask: sends a request, over a new connection if its argument is true; raises an exception if it fails.
    """
    for _ in range(20):
        ask(True), ask(False)
    before = half_valid.resident_mb(pid)
    process = multiprocessing.get_context('fork').Process(target=_attack, args=(attack, secs))
    process.start()
    latencies, failures, most = [], [], before
    end = time.monotonic() + secs
    while time.monotonic() < end:
        start = time.monotonic()
        try:
            ask(len(latencies) % 2 == 0 and not refuses_new)
        except Exception as error:
            failures.append(repr(error)[:200])
        latencies.append(time.monotonic() - start)
        most = max(most, half_valid.resident_mb(pid))
        time.sleep(0.02)  # noqa: TID251
    process.join(30)
    process.kill()
    if refuses_new:
        wait_until(lambda: _answers(ask), 'an answer over a new connection', _HANDSHAKE_SECS)
    row = {
        'server': name,
        'requests': len(latencies),
        'failed': len(failures),
        'p99_secs': round(float(np.percentile(latencies, 99)), 3),
        'grown_mb': round(most - before, 1),
        'most_mb': most_mb,
    }
    print(json.dumps(row), failures[:2], flush=True)
    return row


def _answers(ask: Callable[[bool], object]) -> bool:
    with contextlib.suppress(Exception):
        ask(True)
        return True
    return False


def _attack(attack: Callable[[float], None], secs: float) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192) if hard > 0 else 8192, hard))
    attack(secs)


def connections(port: int, count: int, first: bytes = b'', dripped: bytes = b'') -> Callable[[float], None]:
    """An attack by `count` connections, which are opened again when they are closed.

    Args:
      first: what each of them sends.
      dripped: what each of them sends every second after that.
    """

    def attack(secs: float) -> None:
        end, next_drip, attempts = time.monotonic() + secs, 0.0, 0
        with selectors.DefaultSelector() as opened, contextlib.ExitStack() as closing:
            closing.callback(lambda: [key.fileobj.close() for key in list(opened.get_map().values())])  # type: ignore
            while time.monotonic() < end and attempts < _MAX_ATTEMPTS:
                while len(opened.get_map()) < count and time.monotonic() < end:
                    attempts += 1
                    with contextlib.suppress(OSError):
                        made = socket.create_connection((HOST, port), 2.0)
                        opened.register(made, selectors.EVENT_READ)
                        made.sendall(first)
                        made.setblocking(False)
                if dripped and time.monotonic() > next_drip:
                    next_drip = time.monotonic() + 1.0
                    for key in list(opened.get_map().values()):
                        with contextlib.suppress(OSError):
                            key.fileobj.send(dripped)  # type: ignore[union-attr]
                for key, _ in opened.select(0.1):
                    closed = True
                    with contextlib.suppress(BlockingIOError, OSError):
                        closed = not key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    if closed:
                        opened.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]

    return attack


def unfinished(port: int, streams: int, size: int, method: str = PREDICT) -> Callable[[float], None]:
    """An attack by requests of gRPC that lack their last byte: so many streams, over two connections."""

    def attack(secs: float) -> None:
        end = time.monotonic() + secs
        with contextlib.ExitStack() as closing:
            both = [Streams((HOST, port), streams // 2, size, method) for _ in range(2)]
            closing.callback(lambda: [each.close() for each in both])
            while time.monotonic() < end:
                for i, each in enumerate(both):
                    each.turn()
                    if each.ended:
                        each.close()
                        both[i] = Streams((HOST, port), streams // 2, size, method)
                time.sleep(0.001)  # noqa: TID251

    return attack


def requests(address: str, data: bytes, at_once: int = 32) -> Callable[[float], None]:
    """An attack by whole requests of gRPC, so many at the same time."""

    def attack(secs: float) -> None:
        import grpc

        end = time.monotonic() + secs
        with grpc.insecure_channel(address) as channel:
            call = channel.unary_unary(PREDICT)
            while time.monotonic() < end:
                for asked in [call.future(data, 10.0) for _ in range(at_once)]:
                    asked.exception(10.0)

    return attack


def posts(port: int, path: str, body: bytes, at_once: int = 16) -> Callable[[float], None]:
    """An attack by whole requests of HTTP, so many at the same time."""
    head = f'POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n'.encode()

    def post(end: float) -> None:
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), 10.0) as made:
                made.sendall(head + body)
                while made.recv(1 << 16):
                    pass

    def attack(secs: float) -> None:
        with futures.ThreadPoolExecutor(at_once) as pool:
            list(pool.map(post, [time.monotonic() + secs] * at_once))

    return attack


def save_sequence_policy(path: pathlib.Path) -> None:
    """Saves a policy that acts on sequences of any length: its input has two unknown dimensions."""
    import tensorflow as tf

    module = tf.Module()
    observation = tf.TensorSpec((None, None), tf.float32, 'observation')
    module.act = tf.function(lambda observation: {'action': tf.reduce_sum(observation, axis=1) > 0}, [observation])
    tf.saved_model.save(module, str(path), signatures={'serving_default': module.act})
    (path / 'metadata.json').write_text('{"train_step": 1}')


def serve(root: pathlib.Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Attacks tflearn-serve: its port, that of REST, and that of its metrics."""
    import grpc

    from tflearn.extensions.serving import tensor_protos
    from tflearn.extensions.serving.tensor_protos import predict_pb2
    from tflearn.files.run_dir import RunDir

    save_sequence_policy(RunDir(root).greedy_policy / '1')
    port, rest, metrics = free_port(), free_port(), free_port()
    request = predict_pb2.PredictRequest()
    request.model_spec.name = 'greedy_policy'
    tensor_protos.fill(request.inputs['observation'], np.ones((1, 4), np.float32))
    data = request.SerializeToString()
    few = request.inputs['observation']
    few.tensor_shape.dim[0].size, few.tensor_shape.dim[1].size = 1024, 500_000
    few.float_val[:] = [1.0]
    address, few_bytes = f'{HOST}:{port}', request.SerializeToString()
    flags = (
        f'--root_dir={root}',
        f'--host={HOST}',
        f'--port={port}',
        f'--rest_port={rest}',
        f'--metrics_port={metrics}',
        f'--decision_log={root / "log"}',
    )
    with _program(options, 'serve', *flags) as pid, grpc.insecure_channel(address) as kept:
        wait_until(lambda: b'running' in _read(RunDir(root).status('serve')), 'the server', 60)

        def ask(fresh: bool) -> None:
            if not fresh:
                kept.unary_unary(PREDICT)(data, 10.0)
                return
            with grpc.insecure_channel(address, [('grpc.use_local_subchannel_pool', 1)]) as channel:
                channel.unary_unary(PREDICT)(data, 10.0)

        for name, attack in {
            'idle connections': connections(port, options.idle),
            'idle connections of HTTP/2': connections(port, options.idle, _HTTP2),
            '200 unfinished requests of 4 MB': unfinished(port, 200, (4 << 20) - 100),
            '200 unfinished health checks of 4 MB': unfinished(port, 200, (4 << 20) - 100, HEALTH),
            f'requests of {len(few_bytes)} bytes for 2 GB': requests(address, few_bytes),
        }.items():
            # gRPC has no limit of bytes that it has received of unfinished requests: see docs/security.md.
            most_mb = 50.0 + (200 * 4.2 if 'unfinished' in name else 0.0)
            given = most_mb, 'idle' in name
            yield attacked(f'serve: {name}', pid, attack, ask, options.secs, *given)
        places = min(512, options.handles // 2)
        path = '/v1/models/greedy_policy'
        yield from _http_attacks('REST of serve', pid, rest, places, path, options)
        nested = f'{path}:predict', b'{"inputs": [' + b'[],' * 131_000 + b'1.5,' * 900_000 + b'[]]}'
        with _http_client(rest, path) as asked:
            yield attacked(
                'REST of serve: 4 MB of lists and numbers', pid, posts(rest, *nested), asked, options.secs, 150.0
            )
        yield from _http_attacks('metrics of serve', pid, metrics, 32, '/metrics', options)
        yield from _half_valid_requests(pid, kept, rest, metrics, options)


def _half_valid_requests(
    pid: int, channel: Any, rest: int, metrics: int, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    yield half_valid.over_http('metrics of serve', pid, metrics, wrong_forms.METRICS, options.messages)
    rows = {'observation': [[1.0, 0.5]]}
    yield half_valid.over_http('REST of serve', pid, rest, wrong_forms.rest('greedy_policy', rows, 1), options.messages)
    shape = {'dim': [{'size': 1}, {'size': 2}]}
    tensor = {'dtype': 'DT_FLOAT', 'tensorShape': shape, 'floatVal': [1.0, 0.5]}
    messages = wrong_forms.grpc_messages('greedy_policy', {'observation': tensor}, 1)

    def ask(count: int) -> tuple[dict[str, int], list[str]]:
        def call(method: str, data: bytes) -> object:
            return channel.unary_unary(method)(data, wrong_messages.DEADLINE_SECS)

        return wrong_forms.ask_grpc(call, messages, count, half_valid.SEED)

    yield half_valid.sent('gRPC of serve', pid, ask, options.messages)


def coordinator(root: pathlib.Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Attacks tflearn-coordinator."""
    port = free_port()
    with _program(options, 'coordinator', f'--coordinator_address={HOST}:{port}') as pid:
        wait_until(lambda: is_listening(f'{HOST}:{port}'), 'the server', 60)
        places = min(MAX_CONNECTIONS, options.handles // 2)  # every second handle is left free
        yield from _http_attacks('coordinator', pid, port, places, '/v1/status', options)
        with contextlib.closing(wrong_messages.Port(port)) as asked:
            wrong_forms.take_over(asked)
        yield half_valid.over_http('coordinator', pid, port, wrong_forms.coordinator(), options.messages)
        relay = free_port()
        addresses = f'--coordinator_address={HOST}:{port}', f'--relay_address={HOST}:{relay}'
        with _program(options, 'coordinator', *addresses) as relaying:
            wait_until(lambda: is_listening(f'{HOST}:{relay}'), 'the relay', 60)
            yield half_valid.over_http('relay', relaying, relay, wrong_forms.coordinator(), options.messages)


def run_metrics(root: pathlib.Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Attacks tflearn run-metrics."""
    port = free_port()
    with _program(options, 'run_metrics', f'--root_dir={root}', f'--port={port}') as pid:
        wait_until(lambda: is_listening(f'{HOST}:{port}'), 'the server', 60)
        yield from _http_attacks('run-metrics', pid, port, 32, '/metrics', options)
        yield half_valid.over_http('run-metrics', pid, port, wrong_forms.METRICS, options.messages)


def simulators(root: pathlib.Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Attacks the server of external simulators, as a collector has it."""
    port = free_port()
    code = (
        'import numpy as np; from tflearn.environments.external_env import make; '
        'from tflearn.environments.external_server import *\n'
        f'options = ExternalOptions(ports=({port},), begin_wait_secs=0.01)\n'
        f"environment = make(1, None, {wrong_forms.OBSERVATION_SPEC}, {{'choices': 5}}, options)\n"
        'environment.reset()\n'
        'while True: environment.step(np.zeros(1, np.int64))'
    )
    with _process(options, '-c', code) as pid:
        wait_until(lambda: is_listening(f'{HOST}:{port}'), 'the server', 60)
        yield from _http_attacks('simulators', pid, port, 256, '/v1/specs', options)

        def play(count: int) -> tuple[dict[Any, int], list[str]]:
            asked = wrong_messages.Port(port)
            with contextlib.closing(asked):
                wrong_forms.play(asked, count, half_valid.SEED)
            return asked.statuses, asked.faults

        yield half_valid.sent('simulators', pid, play, options.messages)


def _http_attacks(
    name: str, pid: int, port: int, places: int, path: str, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    for row in edge_requests.results(name, (HOST, port), path):
        print(json.dumps(row), flush=True)
        yield row
    slow = connections(port, places + 100, _SLOW_HEAD, b'x')
    with _http_client(port, path) as ask:
        yield attacked(f'{name}: idle connections', pid, connections(port, options.idle), ask, options.secs)
        yield attacked(f'{name}: {places + 100} slow heads', pid, slow, ask, options.secs)


@contextlib.contextmanager
def _http_client(port: int, path: str) -> Iterator[Callable[[bool], None]]:
    kept = http.client.HTTPConnection(HOST, port, timeout=10.0)

    def ask(fresh: bool) -> None:
        connection = http.client.HTTPConnection(HOST, port, timeout=10.0) if fresh else kept
        connection.request('GET', path)
        answer = connection.getresponse()
        answer.read()
        if fresh:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f'got the status {answer.status}')

    with contextlib.closing(kept):
        yield ask


@contextlib.contextmanager
def _program(options: argparse.Namespace, name: str, *arguments: str) -> Iterator[int]:
    with _process(options, '-m', *console_programs.words(name), *arguments) as pid:
        yield pid


@contextlib.contextmanager
def _process(options: argparse.Namespace, *arguments: str) -> Iterator[int]:
    limits = (options.handles, options.handles)
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=options.log or subprocess.DEVNULL,
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
    )
    try:
        yield process.pid
        if process.poll() is not None:
            raise RuntimeError(f'the server has ended with exit status {process.returncode}')
    finally:
        process.kill()
        process.wait()


def _read(path: pathlib.Path) -> bytes:
    return path.read_bytes() if path.exists() else b''


SERVERS = {
    'serve': serve,
    'coordinator': coordinator,
    'simulators': simulators,
    'run_metrics': run_metrics,
}

if __name__ == '__main__':
    sys.exit(main())
