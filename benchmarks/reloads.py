"""Does a policy server lose a request or a decision, under 200 clients, with a new version every two seconds?

    python benchmarks/reloads.py

Half of the clients ask over gRPC, half over REST, each again as soon as it has its answer, until the server has decided
so often. Every answer has to be the action of the version that it names. Then the server is stopped, and its log has to
have each decision exactly once, as it was answered. Prints one line of JSON; ends with 1 if anything failed.
"""

import argparse
import asyncio
import collections
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import aiohttp
import grpc
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import half_valid  # noqa: E402
from tests.testing import console_programs, served_policies  # noqa: E402
from tflearn.core.waiting import is_listening, wait_until  # noqa: E402
from tflearn.extensions.serving import tensor_protos  # noqa: E402
from tflearn.extensions.serving.tensor_protos import predict_pb2  # noqa: E402
from tflearn.files.run_dir import RunDir  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402

PREDICT = '/tensorflow.serving.PredictionService/Predict'
_DEADLINE_SECS = 60.0


class Clients:
    """All clients, on one thread.

    Attributes:
      answered: the action of each decision by its id.
      versions: how many answers each version gave over gRPC, which names it.
      failures: what went wrong, a line each.
    """

    def __init__(self, decisions: int):
        self.answered: dict[str, int] = {}
        self.versions: collections.Counter[int] = collections.Counter()
        self.failures: list[str] = []
        self.latencies: list[float] = []
        self._decisions, self._asked = decisions, 0

    async def run(self, port: int, rest: int, clients: int) -> None:
        """Asks until there are enough decisions."""
        with_rest = clients // 2
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            url = f'http://127.0.0.1:{rest}/v1/models/greedy_policy:predict'
            await asyncio.gather(
                *(self._repeat(lambda event, row: self._ask_rest(session, url, event, row)) for _ in range(with_rest)),
                *(self._over_grpc(f'127.0.0.1:{port}', number) for number in range(clients - with_rest)),
            )

    async def _over_grpc(self, address: str, number: int) -> None:
        options = [('grpc.use_local_subchannel_pool', 1), ('tflearn.client', number)]
        async with grpc.aio.insecure_channel(address, options) as channel:
            call = channel.unary_unary(PREDICT, lambda request: request.SerializeToString(), _answer)
            await self._repeat(lambda event, row: self._ask_grpc(call, event, row))

    async def _repeat(self, ask: Any) -> None:
        while self._asked < self._decisions:
            self._asked += 1
            event, row = f'event-{self._asked}', [random.uniform(-1.0, 1.0) for _ in range(4)]
            begun = time.perf_counter()
            try:
                self.answered[event] = await ask(event, row)
            except (aiohttp.ClientError, grpc.RpcError, OSError, ValueError) as error:
                self.failures.append(f'{event}: {error!r:.200}')
            self.latencies.append(time.perf_counter() - begun)

    async def _ask_grpc(self, call: Any, event: str, row: list[float]) -> int:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = 'greedy_policy'
        tensor_protos.fill(request.inputs['observation'], np.array([row], np.float32))
        answer = await call(request, timeout=_DEADLINE_SECS, metadata=(('event-id', event),))
        version, action = answer.model_spec.version.value, int(answer.outputs['action'].int64_val[0])
        self.versions[version] += 1
        if not served_policies.agrees([row], [action], version):
            raise ValueError(f'got the action {action} of version {version} for {row}')
        return action

    async def _ask_rest(self, session: aiohttp.ClientSession, url: str, event: str, row: list[float]) -> int:
        message = {'inputs': {'observation': [row]}}
        timeout = aiohttp.ClientTimeout(_DEADLINE_SECS)
        async with session.post(url, json=message, headers={'event-id': event}, timeout=timeout) as answer:
            found = await answer.json()
            if answer.status != 200:
                raise ValueError(f'got {answer.status}: {found}')
            outputs = found['outputs']
            return int(outputs['action'][0] if isinstance(outputs, dict) else outputs[0])


def _answer(data: bytes) -> Any:
    return predict_pb2.PredictResponse.FromString(data)


def logged(directory: pathlib.Path) -> tuple[dict[str, int], int]:
    """Returns the actions of all decisions of a log by id, and how many lines repeat one."""
    found: dict[str, int] = {}
    repeated = 0
    for path in sorted(directory.glob('decisions-*.jsonl')):
        for line in path.read_text(encoding='utf-8').splitlines():
            decision = json.loads(line)
            repeated += decision['id'] in found
            found[decision['id']] = int(decision['action'])
    return found, repeated


def measure(root: pathlib.Path, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the row of a run."""
    publisher, stop = served_policies.Publisher(RunDir(root).policies), threading.Event()
    publisher.publish(1)
    port, rest, log = free_port(), free_port(), root / 'log'
    flags = f'--root_dir={root}', f'--port={port}', f'--rest_port={rest}', f'--decision_log={log}', '--host=127.0.0.1'
    process = subprocess.Popen([sys.executable, '-m', *console_programs.words('serve'), *flags], cwd=ROOT)

    def publish() -> None:
        for step in range(2, 1_000_000):
            if stop.wait(options.reload_secs):
                return
            publisher.publish(step)

    thread, clients = threading.Thread(target=publish), Clients(options.decisions)
    try:
        wait_until(lambda: is_listening(f'127.0.0.1:{rest}'), 'the server', 120.0)
        wait_until(lambda: RunDir(root).statuses().get('serve', {}).get('state') == 'running', 'the policy', 120.0)
        before, begun = half_valid.resident_mb(process.pid), time.monotonic()
        thread.start()
        asyncio.run(clients.run(port, rest, options.clients))
        secs, grown = time.monotonic() - begun, half_valid.resident_mb(process.pid) - before
        process.send_signal(signal.SIGTERM)
        status = process.wait(120.0)
    finally:
        stop.set()
        process.kill()
        process.wait()
        if thread.ident:
            thread.join()
    found, repeated = logged(log)
    return {
        'clients': options.clients,
        'decisions': len(clients.answered),
        'failed': len(clients.failures),
        'versions': len(clients.versions),
        'requests_per_sec': round(len(clients.latencies) / secs),
        'p99_ms': round(1e3 * float(np.percentile(clients.latencies, 99)), 1),
        'grown_mb': round(grown, 1),
        'exit_status': status,
        'missing_in_log': len(clients.answered.keys() - found.keys()),
        'only_in_log': len(found.keys() - clients.answered.keys()),
        'repeated_in_log': repeated,
        'other_actions': sum(found.get(event, action) != action for event, action in clients.answered.items()),
        'first_failures': clients.failures[:3],
    }


def main() -> int:
    """Runs the server and its clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--clients', type=int, default=200)
    parser.add_argument('--decisions', type=int, default=100_000)
    parser.add_argument('--reload_secs', type=float, default=2.0, help='between two versions')
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        row = measure(pathlib.Path(root), options)
    print(json.dumps(row))
    faults = ('failed', 'missing_in_log', 'only_in_log', 'repeated_in_log', 'other_actions')
    return int(any(row[name] for name in faults) or row['versions'] < 2)


if __name__ == '__main__':
    sys.exit(main())
