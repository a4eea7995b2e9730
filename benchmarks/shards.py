"""How fast does the learner's mirror read the replay servers' streams, and what does that cost?

    python benchmarks/shards.py --chunk_steps=4,16,64 --shards=1,4 --delays_ms=0,1

A process with several replay servers fills their streams with chunks; a mirror in this process reads them all. `delay`
is the time that a proxy holds back each message, in both directions: a round trip takes twice as long. `one stream` is
a mirror that asks for a chunk when it has received the one before, as before there were several streams. The time
counts while chunks are read that the mirror had not read ahead before, from the moment when all streams are open; the
processor time is that of this process alone.

All cells are measured in another order each round; the table has the medians. Four shards are on one machine here: that
they read faster on four is not shown.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, shard_process  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402
from tflearn.replay import reader  # noqa: E402
from tflearn.sampling import mirror  # noqa: E402

ONE_STREAM, STREAMS = 'one stream', 'read-ahead'
_DEADLINE_SECS = 120.0


@dataclasses.dataclass(frozen=True, order=True)
class Cell:
    """What is measured together."""

    chunk_steps: int
    num_shards: int
    delay_ms: float
    side: str


class Servers:
    """A process with replay servers, and one with proxies for each delay."""

    def __init__(self, chunk_steps: int, num_shards: int, delays_ms: Sequence[float], stack: contextlib.ExitStack):
        self._ports = [free_port() for _ in range(num_shards)]
        self._proxied = {0.0: self._ports}
        given = ['benchmarks.shard_process', f'--chunk_steps={chunk_steps}', f'--ports={json.dumps(self._ports)}']
        self._process = start(given, stack)
        for delay_ms in filter(None, delays_ms):
            self._proxied[delay_ms] = [free_port() for _ in self._ports]
            targets = json.dumps(dict(zip(self._proxied[delay_ms], self._ports, strict=True)))
            start(['benchmarks.delaying_proxy', targets, str(delay_ms / 1e3)], stack)

    def addresses(self, cell: Cell) -> list[str]:
        """Returns the addresses of the cell's servers, or of their proxies."""
        return [f'localhost:{port}' for port in self._proxied[cell.delay_ms][: cell.num_shards]]

    def fill(self, num_shards: int, num_chunks: int) -> None:
        """Fills the streams of the first servers, with as many chunks together."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f'{num_shards} {num_chunks}\n')
        self._process.stdin.flush()
        assert self._process.stdout.readline() == 'filled\n'


def main() -> int:
    """Measures, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--chunk_steps', default='4,16,64')
    parser.add_argument('--shards', default='1,4')
    parser.add_argument('--delays_ms', default='0,1')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--chunks', type=int, default=600, help='in a round of a cell')
    options = parser.parse_args()
    reader._CHECK_CLOSED_MS = 300  # so that a stream ends soon
    results: dict[Cell, list[tuple[float, float]]] = collections.defaultdict(list)
    delays, shards = [float(each) for each in options.delays_ms.split(',')], _numbers(options.shards)
    for chunk_steps in _numbers(options.chunk_steps):
        with contextlib.ExitStack() as stack:
            servers = Servers(chunk_steps, max(shards), delays, stack)
            cells = [Cell(chunk_steps, *given) for given in itertools.product(shards, delays, (ONE_STREAM, STREAMS))]
            for _ in range(options.rounds):
                for cell in random.sample(cells, len(cells)):
                    results[cell].append(_measure(cell, servers, options.chunks))
        print(table(results), flush=True)
    rows = [{**dataclasses.asdict(cell), 'rates': rates} for cell, rates in results.items()]
    command_line.write(options.json, rows)
    return 0


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(',')]


def start(arguments: Sequence[str], stack: contextlib.ExitStack) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, '-m', *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout and process.stdout.readline()
    return process


def _measure(cell: Cell, servers: Servers, num_chunks: int) -> tuple[float, float]:
    """Returns the chunks per second, and the processor time of a chunk [s]."""
    storage = shard_process.storage(cell.chunk_steps)
    servers.fill(cell.num_shards, num_chunks)
    mirror._MAX_STREAMS = 1 if cell.side == ONE_STREAM else _STREAMS
    source = mirror.ReplayMirror(servers.addresses(cell), storage, 1, _DEADLINE_SECS)
    try:
        source._wanted_chunks = lambda: 0
        with granting(source):
            ahead = _wait_for_streams(source, num_chunks // cell.num_shards)
            del source._wanted_chunks
            first, began, cpu_began = _wait(source, ahead * cell.chunk_steps)
            last, ended, cpu_ended = _wait(source, num_chunks * cell.chunk_steps)
    finally:
        source.close()
        for each in source._readers.each:
            for thread in each._threads:  # they would take chunks of the next round
                thread.join()
    read = (last - first) / cell.chunk_steps
    return read / (ended - began), (cpu_ended - cpu_began) / read


_STREAMS = mirror._MAX_STREAMS


def _wait_for_streams(source: mirror.ReplayMirror, most: int) -> int:
    """Returns the number of chunks that were read ahead, as soon as no more fit."""
    deadline, pause, sizes = time.monotonic() + _DEADLINE_SECS, threading.Event(), [0]
    while True:
        before, sizes = sizes, [each.size() for each in source._readers.each]
        if all(sizes) and sizes == before:
            break
        if source.error or time.monotonic() > deadline or max(sizes) >= most:
            raise source.error or TimeoutError(f'got {sizes} chunks that were read ahead; need fewer than all')
        pause.wait(0.25)
    return sum(sizes)


@contextlib.contextmanager
def granting(source: mirror.ReplayMirror) -> Iterator[None]:
    """Publishes what was read, as the learner does between two calls of its loop."""
    done = threading.Event()

    def grant() -> None:
        while not done.wait(0.01):
            source.grant(1)

    thread = threading.Thread(target=grant, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        source.close()
        thread.join()


def _wait(source: mirror.ReplayMirror, inserts: int) -> tuple[int, float, float]:
    """Returns the sequences that were read, and the times, as soon as there are as many."""
    deadline, pause = time.monotonic() + _DEADLINE_SECS, threading.Event()
    while (found := source._ring.num_written) < inserts:
        if source.error or time.monotonic() > deadline:
            raise source.error or TimeoutError(f'got {found} of {inserts} sequences')
        pause.wait(0.005)
    return found, time.perf_counter(), time.process_time()


def table(results: dict[Cell, list[tuple[float, float]]]) -> str:
    """Returns the medians as a Markdown table, both sides of a cell in one line."""
    lines = [
        '| steps of a chunk | shards | delay, ms | chunks/s, one stream | read-ahead | ratio | steps/s | '
        'processor time of a step, us: one stream | read-ahead |',
        '|---' * 9 + '|',
    ]
    for cell in sorted(each for each in results if each.side == STREAMS):
        before = results[dataclasses.replace(cell, side=ONE_STREAM)]
        (rates, cpu), (rates_before, cpu_before) = zip(*results[cell], strict=True), zip(*before, strict=True)
        ratio = statistics.median(a / b for a, b in zip(rates, rates_before, strict=True))
        rate, micros = statistics.median(rates), 1e6 / cell.chunk_steps
        lines.append(
            f'| {cell.chunk_steps} | {cell.num_shards} | {cell.delay_ms:g} | {statistics.median(rates_before):,.0f} | '
            f'{rate:,.0f} | {ratio:.2f} | {rate * cell.chunk_steps:,.0f} | '
            f'{micros * statistics.median(cpu_before):.1f} | {micros * statistics.median(cpu):.1f} |'
        )
    return '\n'.join(lines)


if __name__ == '__main__':
    sys.exit(main())
