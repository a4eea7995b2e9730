"""How long do new weights take to those who act, and how many bytes leave the learner's machine?

    python benchmarks/weights.py --case=latency      one coordinator, 50 subscribers, 50 MB
    python benchmarks/weights.py --case=relays       1,000 subscribers behind 20 relays, 1 MB

All processes are on this machine; subscribers are threads of a few processes, which receive the weights and drop them.
The latency is the time from `publish` to the moment when a subscriber has all bytes; the sides take turns. Processor
time is that of all processes.
"""

import argparse
import collections
import contextlib
import json
import math
import os
import pathlib
import queue
import statistics
import subprocess
import sys
import threading
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tflearn.coordinator.client import Coordinator, Role  # noqa: E402
from tflearn.coordinator.weights_transport import CoordinatorLost  # noqa: E402
from tflearn.core.access import Access  # noqa: E402
from tflearn.core.waiting import wait_until  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402

_DEADLINE_SECS = 300.0
SERVER, NARROW = 'float32', 'bfloat16'


def variables(megabytes: float) -> list:
    """Returns the variables of a policy of that size, of random numbers that nothing compresses."""
    import tensorflow as tf

    size = max(1, int(megabytes * 1e6 / 4))
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    return [tf.Variable(values, name='kernel'), tf.Variable(values[:10], name='bias')]


class Subscribers:
    """Processes of subscribers, and what they report."""

    def __init__(self, stack: contextlib.ExitStack, count: int, processes: int, megabytes: float, *where: str):
        """Starts them; each has about the same number."""
        self._reports: queue.Queue[dict] = queue.Queue()
        shares = [count // processes + (i < count % processes) for i in range(processes)]
        for i, share in enumerate(shares):
            flags = [f'--count={share}', f'--name=p{i}', f'--megabytes={megabytes}', *where]
            process = _start(stack, 'benchmarks.weights_subscribers', *flags)
            threading.Thread(target=self._read, args=(process,), daemon=True).start()
        self.count = count
        for _ in shares:
            assert 'ready' in self._reports.get(timeout=_DEADLINE_SECS)

    def _read(self, process: subprocess.Popen) -> None:
        assert process.stdout
        for line in process.stdout:
            if line.startswith('{'):
                self._reports.put(json.loads(line))

    def received(self, version: int) -> list[dict]:
        """Returns the reports of all subscribers that have this version."""
        found: dict[str, dict] = {}
        deadline = time.monotonic() + _DEADLINE_SECS
        while len(found) < self.count:
            report = self._reports.get(timeout=max(0.1, deadline - time.monotonic()))
            if report['version'] == version:
                assert report['right']
                found[report['name']] = report
        return list(found.values())


def main() -> int:
    """Measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--case', choices=['latency', 'relays'], required=True)
    parser.add_argument('--subscribers', type=int, default=None, help='50 or 1,000')
    parser.add_argument('--megabytes', type=float, default=None, help='of weights; 50 or 1')
    parser.add_argument('--relays', type=int, default=20)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--processes', type=int, default=4, help='that hold the subscribers')
    options = parser.parse_args()
    measure = {'latency': _latency, 'relays': _relays}[options.case]
    print(measure(options), flush=True)
    return 0


def _learner(stack: contextlib.ExitStack, address: str, dtype: str = SERVER) -> Coordinator:
    """Returns a learner, which may publish."""
    learner = stack.enter_context(contextlib.closing(Coordinator(Access(address, None, dtype), 'train')))
    learner.join(Role('train', contract={'all': {}}, epoch=1), 60.0)
    return learner


def _latency(options: argparse.Namespace) -> str:
    from tflearn.coordinator.published_weights import Publisher

    count, megabytes = options.subscribers or 50, options.megabytes or 50.0
    own = variables(megabytes)
    secs: dict[str, list[list[float]]] = collections.defaultdict(list)
    cpu: dict[str, list[float]] = collections.defaultdict(list)
    with contextlib.ExitStack() as stack:
        sides = {}
        for side in (SERVER, NARROW):
            address = _server(stack)
            publisher = stack.enter_context(contextlib.closing(Publisher(_learner(stack, address, side), own)))
            subscribers = Subscribers(stack, count, options.processes, megabytes, f'--coordinator={address}')
            sides[side] = publisher, subscribers
        for version in range(1, options.rounds + 2):  # the first one warms up
            for side, (publisher, subscribers) in sides.items():
                own[0].assign_add(np.full(own[0].shape, 0.001, np.float32))
                before = _cpu_secs()
                publisher.publish(version, version, 0)
                reports = subscribers.received(version)
                if version > 1:
                    secs[side].append([report['secs'] for report in reports])
                    cpu[side].append(_cpu_secs() - before)
    lines = [
        f'{count} subscribers, {megabytes:g} MB, {options.rounds} publications:',
        '| sent as | median, ms | p99, ms | processor time, ms |',
        '|---|---|---|---|',
    ]
    for side, rounds in secs.items():
        median, p99 = (
            statistics.median(sorted(each)[math.ceil(share * len(each)) - 1] for each in rounds)
            for share in (0.5, 0.99)
        )
        lines.append(f'| {side} | {1e3 * median:.1f} | {1e3 * p99:.1f} | {1e3 * statistics.mean(cpu[side]):.0f} |')
    return '\n'.join(lines)


_PIDS: list[int] = []


def _cpu_secs() -> float:
    """Returns the processor time of all processes so far."""
    fields = [pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split() for pid in (os.getpid(), *_PIDS)]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf('SC_CLK_TCK')


def _relays(options: argparse.Namespace) -> str:
    from tflearn.coordinator import weights_transport

    count, megabytes = options.subscribers or 1000, options.megabytes or 1.0
    values = np.random.default_rng(0).standard_normal(int(megabytes * 1e6 / 4)).astype(np.float32)
    secs = []
    with contextlib.ExitStack() as stack:
        root = _server(stack)
        learner = _learner(stack, root)
        relays = [_server(stack, root, i) for i in range(options.relays)]
        wait_until(lambda: len(learner.addresses('relay')) == len(relays), 'all relays', 60.0)
        subscribers = Subscribers(stack, count, options.processes, megabytes, f'--coordinator={root}')
        for version in range(1, options.rounds + 1):
            counters = {'policy_version': version, 'published_at': time.time_ns() // 1000}
            learner.put_weights(weights_transport.make(counters, ['kernel'], [values + version], None))
            secs += [report['secs'] for report in subscribers.received(version)]
        sent = learner.status()['sent_bytes'] / options.rounds
        of_relays = sum(_status(relay)['sent_bytes'] for relay in relays) / options.rounds
    secs.sort()
    lines = [
        '| subscribers | relays | weights, MB | sent by the root for a publication, MB | by all relays | median, s | '
        'p99, s |',
        '|---' * 7 + '|',
        f'| {count:,} | {options.relays} | {megabytes:g} | {sent / 1e6:.2f} | {of_relays / 1e6:,.0f} | '
        f'{secs[len(secs) // 2]:.2f} | {secs[int(0.99 * len(secs))]:.2f} |',
    ]
    return '\n'.join(lines)


def _server(stack: contextlib.ExitStack, upstream: str = '', index: int = 0) -> str:
    """Starts a coordinator, or a relay; returns its address."""
    address = f'localhost:{free_port()}'
    relay = [f'--relay_address={address}', f'--index={index}'] if upstream else []
    _start(stack, 'scripts.coordinator', f'--coordinator_address={upstream or address}', *relay)

    def answers() -> bool:
        with contextlib.suppress(CoordinatorLost):
            _status(address)
            return True
        return False

    wait_until(answers, f'the server at {address}', 60.0)
    return address


def _status(address: str) -> dict:
    with contextlib.closing(Coordinator(Access(address), 'status')) as asking:
        return asking.status()


def _start(stack: contextlib.ExitStack, *arguments: str) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, '-m', *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    _PIDS.append(process.pid)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


if __name__ == '__main__':
    sys.exit(main())
