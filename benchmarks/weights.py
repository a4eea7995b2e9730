"""How long do new weights take to those who act, and how many bytes leave the learner's machine?

    python benchmarks/weights.py --case=latency      one server or the replay server's table, 50 subscribers, 50 MB
    python benchmarks/weights.py --case=relays       1,000 subscribers behind 20 relays, 1 MB

All processes are on this machine; subscribers are threads of a few processes, which receive the weights and drop them.
The latency is the time from `publish` to the moment when a subscriber has all bytes; the sides take turns. `table` is
the replay server's table of one publication, polled twice a second.
"""

import argparse
import collections
import contextlib
import json
import math
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

from tflearn.coordinator.weights_client import Client, Lost  # noqa: E402
from tflearn.core.waiting import wait_until  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402

_DEADLINE_SECS = 300.0
TABLE, SERVER, NARROW = "the replay server's table, polled", 'a weights server', 'the same, bfloat16'


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


def _latency(options: argparse.Namespace) -> str:
    import reverb

    from tflearn.coordinator import weights_contract
    from tflearn.coordinator.publisher import Publisher
    from tflearn.coordinator.weights_channels import Plane

    count, megabytes = options.subscribers or 50, options.megabytes or 50.0
    own = variables(megabytes)
    table = reverb.Server([weights_contract.table(own)])
    address = f'localhost:{table.port}'
    secs: dict[str, list[list[float]]] = collections.defaultdict(list)
    with contextlib.ExitStack() as stack:
        roots = [_server(stack) for _ in range(2)]
        planes = {TABLE: Plane(), SERVER: Plane((roots[0],)), NARROW: Plane((roots[1],), dtype='bfloat16')}
        where = {TABLE: f'--table={address}', SERVER: f'--servers={roots[0]}', NARROW: f'--servers={roots[1]}'}
        sides = {}
        for side, plane in planes.items():
            publisher = stack.enter_context(contextlib.closing(Publisher(address, own, plane)))
            sides[side] = publisher, Subscribers(stack, count, options.processes, megabytes, where[side])
        for version in range(1, options.rounds + 2):  # the first one warms up
            for side, (publisher, subscribers) in sides.items():
                own[0].assign_add(np.full(own[0].shape, 0.001, np.float32))
                publisher.publish(version, version, 0)
                reports = subscribers.received(version)
                if version > 1:
                    secs[side].append([report['secs'] for report in reports])
    table.stop()
    return _latency_table(secs, count, megabytes)


def _latency_table(secs: dict[str, list[list[float]]], count: int, megabytes: float) -> str:
    """Returns the medians over the rounds of each round's percentiles, as a Markdown table."""

    def percentile(side: str, share: float) -> float:
        return statistics.median(sorted(each)[math.ceil(share * len(each)) - 1] for each in secs[side])

    lines = [
        f'{count} subscribers, {megabytes:g} MB, {len(secs[TABLE])} publications:',
        '| weights by | median, s | p99, s | p99 to that of the table |',
        '|---|---|---|---|',
    ]
    for side in secs:
        ratio = statistics.median(
            sorted(a)[math.ceil(0.99 * len(a)) - 1] / sorted(b)[math.ceil(0.99 * len(b)) - 1]
            for a, b in zip(secs[side], secs[TABLE], strict=True)
        )
        lines.append(f'| {side} | {percentile(side, 0.5):.2f} | {percentile(side, 0.99):.2f} | {ratio:.2f} |')
    return '\n'.join(lines)


def _relays(options: argparse.Namespace) -> str:
    from tflearn.coordinator import weights_messages

    count, megabytes = options.subscribers or 1000, options.megabytes or 1.0
    values = np.random.default_rng(0).standard_normal(int(megabytes * 1e6 / 4)).astype(np.float32)
    secs = []
    with contextlib.ExitStack() as stack:
        root = _server(stack)
        relays = [_server(stack, f'--upstream={root}') for _ in range(options.relays)]
        subscribers = Subscribers(stack, count, options.processes, megabytes, f'--servers={",".join(relays)}')
        learner = stack.enter_context(contextlib.closing(Client([root], 'learner')))
        for version in range(1, options.rounds + 1):
            counters = {'policy_version': version, 'published_at': time.time_ns() // 1000}
            learner.put(weights_messages.make(1, counters, ['kernel'], [values + version], None))
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


def _server(stack: contextlib.ExitStack, *flags: str) -> str:
    """Starts a weights server; returns its address."""
    address = f'localhost:{free_port()}'
    _start(stack, 'scripts.weights', f'--listen={address}', *flags)

    def answers() -> bool:
        with contextlib.suppress(Lost):
            _status(address)
            return True
        return False

    wait_until(answers, f'the server at {address}', 60.0)
    return address


def _status(address: str) -> dict:
    with contextlib.closing(Client([address], 'status')) as client:
        return client.status()


def _start(stack: contextlib.ExitStack, *arguments: str) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, '-m', *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


if __name__ == '__main__':
    sys.exit(main())
