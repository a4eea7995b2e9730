"""How many steps a second do collectors, replay servers and the learner's reader move, and what does each take for it?

    unshare --net bash -c 'ip link set lo up && nice -n -15 python -m benchmarks.scale.grid'

The grid to which `fit.py` fits the simulator, and on which it judges it: collectors x replay servers x delay of
each message (by the proxies of `delaying_proxy.py`, between collectors and servers and between servers and reader),
under several loads. Everything is a process of its own, with one core for servers and proxies, and one for collectors
and reader. The collectors write recorded steps of CartPole with `ReplayWriter`; the reader is the learner's mirror.

A point that is in the file is not measured again in the same round. As root, with a network of its own (`unshare`),
the bytes are those of these processes alone; with a high priority, other programs take little of the two cores.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from tflearn.launch.local import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]

DATA = pathlib.Path(__file__).with_name('grid.json')
COLLECTORS, SHARDS, DELAYS_MS = (1, 2, 4, 8), (1, 2, 4), (0.0, 0.25, 1.0)
SERVER_CORE, CLIENT_CORE = 0, 1
_TICKS = os.sysconf('SC_CLK_TCK')


@dataclasses.dataclass(frozen=True)
class Load:
    """What the collectors and the learner try to do.

    Attributes:
      pace: environment steps per second of each collector; None is as fast as possible.
      train_rate: train steps per second of the learner, to which 8 samples per insert limit the inserts; None is
        without a limit.
    """

    pace: float | None = None
    train_rate: float | None = None
    chunk_steps: int = 16


LOADS = {
    'free': Load(),
    'paced': Load(pace=6_000.0),
    'limited': Load(train_rate=1_000.0),
    'small chunks': Load(chunk_steps=4),
    'large chunks': Load(chunk_steps=64),
}
GRID_LOADS = ('free', 'paced')  # measured at all points; the others at a few


@dataclasses.dataclass(frozen=True)
class Point:
    """What is measured together."""

    collectors: int
    shards: int
    delay_ms: float
    load: str

    @property
    def is_training(self) -> bool:
        """Whether the simulator is fitted to this point: every second one of the grid, under all loads."""
        indices = COLLECTORS.index(self.collectors), SHARDS.index(self.shards), DELAYS_MS.index(self.delay_ms)
        return sum(indices) % 2 == 0


def points() -> list[Point]:
    """Returns the grid: all points under two loads, and the corners and a middle one under the others."""
    found = [Point(*each) for each in itertools.product(COLLECTORS, SHARDS, DELAYS_MS, GRID_LOADS)]
    for load in sorted(set(LOADS) - set(GRID_LOADS)):
        found += [Point(*each, load) for each in itertools.product((1, 4), (1, 4), (0.0, 0.25))]
    return found


class Process:
    """A process on one core, with orders and answers."""

    def __init__(self, core: int, arguments: Sequence[str], stack: contextlib.ExitStack):
        self._process = subprocess.Popen(
            ['taskset', '--cpu-list', str(core), sys.executable, '-m', *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        stack.callback(self._process.wait)
        stack.callback(self._process.kill)

    def send(self, do: str, **order: Any) -> None:
        """Sends an order."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({'do': do, **order}) + '\n')
        self._process.stdin.flush()

    def answer(self) -> str:
        """Waits for a line."""
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f'the process {self._process.args} ended')
        return line

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Sends an order and returns the answer."""
        self.send(do, **order)
        return json.loads(self.answer())

    def cpu_secs(self) -> float:
        """Returns the processor time that it has taken, in user and kernel mode."""
        stat = pathlib.Path(f'/proc/{self._process.pid}/stat').read_text().rpartition(')')[2].split()
        return (int(stat[11]) + int(stat[12])) / _TICKS


def ask_all(processes: Sequence[Process], do: str, **order: Any) -> list[dict[str, Any]]:
    """Sends all the same order at the same time; returns the answers."""
    for process in processes:
        process.send(do, **order)
    return [json.loads(process.answer()) for process in processes]


class System:
    """All processes of the largest point; the others use some of them."""

    def __init__(self, stack: contextlib.ExitStack):
        sizes = sorted({load.chunk_steps for load in LOADS.values()})
        ports = [{size: free_port() for size in sizes} for _ in range(max(SHARDS))]
        self._ports: dict[float, list[dict[int, int]]] = {0.0: ports}
        program = 'benchmarks.scale.processes'
        servers = [Process(SERVER_CORE, [program, 'server', f'--ports={json.dumps(each)}'], stack) for each in ports]
        collectors = [Process(CLIENT_CORE, [program, 'collector'], stack) for _ in range(max(COLLECTORS))]
        reader = Process(CLIENT_CORE, [program, 'reader'], stack)
        self._proxies: dict[float, Process] = {}
        for delay_ms in filter(None, DELAYS_MS):
            self._ports[delay_ms] = own = [{size: free_port() for size in sizes} for _ in ports]
            targets = {own[i][size]: ports[i][size] for i in range(len(ports)) for size in sizes}
            arguments = ['benchmarks.delaying_proxy', json.dumps(targets), str(delay_ms / 1e3)]
            self._proxies[delay_ms] = Process(SERVER_CORE, arguments, stack)
        for process in (*servers, *collectors, reader, *self._proxies.values()):
            process.answer()
        self._servers, self._collectors, self._reader = servers, collectors, reader

    def measure(self, point: Point, settle_secs: float, secs: float) -> dict[str, Any]:
        """Runs the system for so long; returns rates per second, and the share of a core that each process took."""
        load, pause = LOADS[point.load], threading.Event()
        addresses = [f'localhost:{each[load.chunk_steps]}' for each in self._ports[point.delay_ms][: point.shards]]
        servers, collectors = self._servers[: point.shards], self._collectors[: point.collectors]
        ask_all(servers, 'start', chunk_steps=load.chunk_steps)
        given = {'addresses': addresses, 'chunk_steps': load.chunk_steps}
        self._reader.ask('start', train_rate=load.train_rate, **given)
        for i, collector in enumerate(collectors):  # like the hash of their names, but as many for each shard
            ranked = addresses[i % len(addresses) :] + addresses[: i % len(addresses)]
            collector.ask('start', addresses=ranked, chunk_steps=load.chunk_steps, pace=load.pace)
        pause.wait(settle_secs)
        used = {'server': servers, 'collector': collectors, 'reader': [self._reader]}
        used['proxy'] = [self._proxies[point.delay_ms]] if point.delay_ms else []
        before = self._snapshot(used)
        pause.wait(secs)
        after = self._snapshot(used)
        self._reader.ask('drain')
        ask_all(collectors, 'stop')
        self._reader.ask('stop')
        return _rates(before, after)

    def _snapshot(self, used: dict[str, list[Process]]) -> dict[str, Any]:
        cpu = {role: [process.cpu_secs() for process in processes] for role, processes in used.items()}
        answers = {role: ask_all(used[role], 'count') for role in ('server', 'collector', 'reader')}
        counts = {
            'chunks_inserted': sum(each['inserted'] for each in answers['server']),
            'chunks_read': sum(each['read'] for each in answers['server']),
            'steps_sent': sum(each['steps'] for each in answers['collector']),
            'steps_read': answers['reader'][0]['steps'],
            'bytes': _loopback_bytes(),
        }
        busy, stolen = _core_secs()
        return {'at': time.monotonic(), 'cpu': cpu, 'counts': counts, 'busy': busy, 'stolen': stolen}


def _rates(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    secs = after['at'] - before['at']
    rates = {f'{name}_per_sec': (after['counts'][name] - count) / secs for name, count in before['counts'].items()}
    cpu = {
        role: [round((b - a) / secs, 4) for a, b in zip(before['cpu'][role], own, strict=True)]
        for role, own in after['cpu'].items()
    }
    cores = {
        name: [round((b - a) / secs, 4) for a, b in zip(before[name], after[name], strict=True)]
        for name in ('busy', 'stolen')
    }
    return {'secs': round(secs, 3), **{name: round(rate, 1) for name, rate in rates.items()}, 'cpu': cpu, **cores}


def _loopback_bytes() -> int:
    lines = pathlib.Path('/proc/net/dev').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith('lo:'))


def _core_secs() -> tuple[list[float], list[float]]:
    """Returns for each core the time of all programs of normal or high priority, and what the hypervisor took."""
    lines = [line.split() for line in pathlib.Path('/proc/stat').read_text().splitlines()]
    ticks = [list(map(int, words[1:])) for words in lines if words and words[0][:3] == 'cpu' and words[0][3:].isdigit()]
    return [(each[0] + each[2] + each[5] + each[6]) / _TICKS for each in ticks], [each[7] / _TICKS for each in ticks]


def main() -> int:
    """Measures what is not in the file yet, in another order each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=2)
    parser.add_argument('--secs', type=float, default=5.0, help='of each point')
    parser.add_argument('--settle_secs', type=float, default=1.2, help='before, so that queues fill')
    parser.add_argument('--json', type=pathlib.Path, default=DATA)
    parser.add_argument('--max_secs', type=float, default=1e9, help='no further point begins after so long')
    options = parser.parse_args()
    results = json.loads(options.json.read_text()) if options.json.exists() else []
    done = {(each['round'], json.dumps(each['point'])) for each in results}
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        system = System(stack)
        print(f'started in {time.monotonic() - began:.0f} s', flush=True)
        for number in range(options.rounds):
            for point in random.sample(points(), len(points())):
                given = dataclasses.asdict(point)
                if (number, json.dumps(given)) in done or time.monotonic() - began > options.max_secs:
                    continue
                measured = system.measure(point, options.settle_secs, options.secs)
                results.append({'round': number, 'point': given, **measured})
                print(json.dumps(results[-1]), flush=True)
                options.json.parent.mkdir(exist_ok=True)
                text = ',\n'.join(map(json.dumps, results))
                options.json.with_suffix('.tmp').write_text(f'[\n{text}\n]\n')
                options.json.with_suffix('.tmp').replace(options.json)
    return 0


if __name__ == '__main__':
    sys.exit(main())
