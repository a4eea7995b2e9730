"""How fast are the replay backends, and what do they cost? Reverb against Valkey, interleaved.

    python benchmarks/replay_backends.py --rounds=3 --json=results.json

Processes write chunks as fast as they can to one replay server, and a learner's mirror in this process reads them. The
items are chunks of CartPole's rows with 4, 16 and 64 steps, and chunks of 16 rows with images of 28 kB. `delay` is the
time for which a proxy holds back each message, in both directions. The rate counts the chunks that the mirror has
written to its memory; each was in the server's replay table before. The processor time is that of the server's process
for each chunk; the memory is its resident set after that. (Reverb serves in a process of Python with TensorFlow.)

Both backends are measured in another order in each round of each cell. The table has medians.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import random
import secrets
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, shard_process, shards  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402
from tflearn.replay import backend, reader  # noqa: E402
from tflearn.sampling.mirror import ReplayMirror  # noqa: E402

KINDS = (backend.REVERB, backend.VALKEY)
_DEADLINE_SECS = 120.0
_WARM_UP_SECS = 0.5


@dataclasses.dataclass(frozen=True, order=True)
class Cell:
    """What is measured together."""

    with_images: bool
    chunk_steps: int
    delay_ms: float
    num_writers: int

    @property
    def layout(self) -> tuple[int, bool]:
        """The arguments of `replay_backends_process.storage`."""
        return self.chunk_steps, self.with_images


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one backend did in a cell."""

    chunks_per_sec: float
    server_micros: float
    server_mb: float
    reader_micros: float


class Process:
    """A process of `replay_backends_process`."""

    def __init__(self, stack: contextlib.ExitStack):
        self._process = shards.start(['benchmarks.replay_backends_process'], stack)

    def begin(self, **command: Any) -> None:
        """Sends a command."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(command) + '\n')
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Waits for the answer to the last command."""
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())


def main() -> int:
    """Measures, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--chunk_steps', default='4,16,64')
    parser.add_argument('--delays_ms', default='0,1')
    parser.add_argument('--writers', default='1,2,4')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--secs', type=float, default=2.0, help='of each measurement')
    parser.add_argument('--quick', action='store_true', help='one small cell, to see that it works')
    options = parser.parse_args()
    # A proxy's port is another one than the server's, by which a password would be found.
    os.environ |= {'BENCHMARK_SECRET': secrets.token_hex(16), 'TFLEARN_VALKEY_PASSWORD': 'env:BENCHMARK_SECRET'}
    reader._CHECK_CLOSED_MS = 300  # so that a stream ends soon
    layouts = [(False, int(steps)) for steps in options.chunk_steps.split(',')] + [(True, 16)]
    delays, counts = map(float, options.delays_ms.split(',')), map(int, options.writers.split(','))
    cells = [Cell(*layout, delay, count) for layout, delay, count in itertools.product(layouts, [*delays], [*counts])]
    cells, rounds = (cells[:1], 1) if options.quick else (cells, options.rounds)
    results: dict[tuple[Cell, str], list[Measured]] = collections.defaultdict(list)
    with contextlib.ExitStack() as stack:
        host = Process(stack)
        writers = [Process(stack) for _ in range(max(cell.num_writers for cell in cells))]
        for cell in (cell for cell in cells for _ in range(rounds)):
            for kind in random.sample(KINDS, len(KINDS)):
                results[cell, kind].append(_measure(cell, kind, host, writers[: cell.num_writers], options.secs))
    print(table(results), flush=True)
    rows = [
        {**dataclasses.asdict(cell), 'kind': kind, 'measured': list(map(dataclasses.asdict, found))}
        for (cell, kind), found in results.items()
    ]
    command_line.write(options.json, rows)
    return 0


def _measure(cell: Cell, kind: str, host: Process, writers: Sequence[Process], secs: float) -> Measured:
    host.begin(do='serve', kind=kind, layout=cell.layout)
    address, pid = host.answer()
    server = psutil.Process(pid)
    with contextlib.ExitStack() as stack:
        if cell.delay_ms:
            start, _, port = address.rpartition(':')
            proxied = free_port()
            target = json.dumps({proxied: int(port)})
            shards.start(['benchmarks.delaying_proxy', target, str(cell.delay_ms / 1e3)], stack)
            address = f'{start}:{proxied}'
        layout = shard_process.storage(*cell.layout)
        source = ReplayMirror(address, layout, 1, _DEADLINE_SECS)
        stack.callback(source.close)
        stack.enter_context(shards.granting(source))
        for writer in writers:
            writer.begin(do='write', address=address, layout=cell.layout)
        _wait_for_first(source)
        threading.Event().wait(_WARM_UP_SECS)
        begin, began, own, its = source._ring.num_written, time.perf_counter(), time.process_time(), _cpu_secs(server)
        threading.Event().wait(secs)
        end, ended, own_end, its_end = (
            source._ring.num_written,
            time.perf_counter(),
            time.process_time(),
            _cpu_secs(server),
        )
        megabytes = server.memory_info().rss / 1e6
        for writer in writers:
            writer.begin(do='rest')
            writer.answer()
            writer.answer()
        source.close()
        for each in source._readers.each:
            for thread in each._threads:
                thread.join()
    host.begin(do='stop')
    host.answer()
    read = (end - begin) / layout.sequences_per_chunk
    if not read:
        raise TimeoutError(f'got no chunk within {secs:g} s of {cell} over {kind}; measure for longer')
    return Measured(read / (ended - began), 1e6 * (its_end - its) / read, megabytes, 1e6 * (own_end - own) / read)


def _wait_for_first(source: ReplayMirror) -> None:
    deadline, pause = time.monotonic() + _DEADLINE_SECS, threading.Event()
    while not source._ring.num_written:
        if source.error or time.monotonic() > deadline:
            raise source.error or TimeoutError('got no chunk')
        pause.wait(0.01)


def _cpu_secs(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def table(results: dict[tuple[Cell, str], list[Measured]]) -> str:
    """Returns the medians as a Markdown table, both backends of a cell in one line."""
    lines = [
        '| chunk | delay, ms | writers | chunks/s: Reverb | Valkey | ratio | processor time of the server for a chunk, '
        "us: Reverb | Valkey | the reader's: Reverb | Valkey | memory, MB: Reverb | Valkey |",
        '|---' * 12 + '|',
    ]
    for cell in sorted({cell for cell, _ in results}):
        both = [results[cell, kind] for kind in KINDS]
        ratio = statistics.median(b.chunks_per_sec / a.chunks_per_sec for a, b in zip(*both, strict=True))
        rates, micros, reading, memory = (
            [statistics.median(getattr(each, name) for each in found) for found in both]
            for name in ('chunks_per_sec', 'server_micros', 'reader_micros', 'server_mb')
        )
        what = '16 images' if cell.with_images else f'{cell.chunk_steps} steps'
        columns = [what, f'{cell.delay_ms:g}', cell.num_writers, *(f'{rate:,.0f}' for rate in rates), f'{ratio:.2f}']
        columns += [f'{value:,.0f}' for value in (*micros, *reading, *memory)]
        lines.append('| ' + ' | '.join(map(str, columns)) + ' |')
    return '\n'.join(lines)


if __name__ == '__main__':
    sys.exit(main())
