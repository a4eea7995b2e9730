"""The processes that `grid.py` measures: a replay server, a collector or the learner's reader.

Each does what a line of JSON on its standard input says (`start`, `count`, `drain`, `stop`), and answers with one line.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import sys
import threading
import time
from typing import Any

import numpy as np
import reverb
from tf_agents.trajectories import policy_step, trajectory

from benchmarks import shard_process
from tflearn.core.waiting import Stopped
from tflearn.environments import gymnasium_env
from tflearn.replay import reader
from tflearn.replay.reverb import library
from tflearn.replay.storage import STREAM, Storage
from tflearn.replay.writers import ReplayWriter
from tflearn.sampling import mirror

NUM_ENVIRONMENTS = 16
_RECORDED_STEPS = 512
_DEADLINE_SECS = 60.0
_BATCH_SIZE, _SAMPLES_PER_INSERT = 64, 8.0
_QUIET_SECS = 0.2


class Server:
    """A replay server for each chunk size, of which one at a time is used."""

    def __init__(self, ports: dict[str, int]):
        self._clients: dict[int, reverb.Client] = {}
        self._servers = []
        for chunk_steps, port in ports.items():
            tables = [*map(library.make_table, shard_process.storage(int(chunk_steps)).make_tables())]
            self._servers.append(reverb.Server(tables, port))
            self._clients[int(chunk_steps)] = reverb.Client(f'localhost:{port}')

    def start(self, chunk_steps: int, **_: Any) -> None:
        """Counts the chunks of this size from now on."""
        self._client = self._clients[chunk_steps]

    def count(self) -> dict[str, float]:
        """Returns the chunks that were ever inserted into the stream, and read from it."""
        info = self._client.server_info()[STREAM].rate_limiter_info
        return {'inserted': info.insert_stats.completed, 'read': info.sample_stats.completed}

    def stop(self) -> None:
        """Does nothing: the server goes on."""


class Collector:
    """Writes recorded steps of CartPole with the project's writer: as fast as it can, or at a pace."""

    def __init__(self) -> None:
        self._recorded = _record()
        self._stop = threading.Event()

    def start(self, addresses: list[str], chunk_steps: int, pace: float | None, **_: Any) -> None:
        """Begins to write; `pace` is in environment steps per second, None is as fast as possible."""
        self._stop = threading.Event()
        storage = shard_process.storage(chunk_steps)
        self._writer = ReplayWriter(lambda: addresses, storage, NUM_ENVIRONMENTS, self._stop)
        self._thread = threading.Thread(target=self._write, args=(pace,), daemon=True)
        self._thread.start()

    def _write(self, pace: float | None) -> None:
        begin, pause = time.monotonic(), threading.Event()
        with contextlib.suppress(Stopped):
            for i, step in enumerate(itertools.cycle(self._recorded)):
                if self._stop.is_set():
                    break
                if pace and (early := begin + i * NUM_ENVIRONMENTS / pace - time.monotonic()) > 0:
                    pause.wait(early)
                self._writer(step, 0)

    def count(self) -> dict[str, float]:
        """Returns the environment steps that were ever sent."""
        return {'steps': self._writer.num_sequences}

    def stop(self) -> None:
        """Stops writing."""
        self._stop.set()
        self._thread.join(_DEADLINE_SECS)
        self._writer._writer.close()


def _record() -> list[trajectory.Trajectory]:
    environment = gymnasium_env.make('CartPole-v1', NUM_ENVIRONMENTS, seed=0)
    random, steps, before = np.random.default_rng(0), [], environment.reset()
    for _ in range(_RECORDED_STEPS):
        action = random.integers(0, 2, NUM_ENVIRONMENTS)
        after = environment.step(action)
        steps.append(trajectory.from_transition(before, policy_step.PolicyStep(action), after))
        before = after
    environment.close()
    return steps


class Reader:
    """The learner's mirror, which publishes what it reads; limited by samples per insert if there is a train rate."""

    def __init__(self) -> None:
        reader._CHECK_CLOSED_MS = 300  # so that a stream ends soon

    def start(self, addresses: list[str], chunk_steps: int, train_rate: float | None, **_: Any) -> None:
        """Begins to read; `train_rate` is in train steps per second, of `_BATCH_SIZE` sequences each."""
        storage = shard_process.storage(chunk_steps)
        if train_rate:
            replay = dataclasses.replace(storage.experience.replay, samples_per_insert=_SAMPLES_PER_INSERT)
            storage = Storage(dataclasses.replace(storage.experience, replay=replay), storage.data_spec)
        self._source = mirror.ReplayMirror(addresses, storage, _BATCH_SIZE, _DEADLINE_SECS, filled_from=())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._grant, args=(train_rate,), daemon=True)
        self._thread.start()

    def _grant(self, train_rate: float | None) -> None:
        begin, granted = time.monotonic(), 0
        while not self._stop.wait(0.01):
            due = int((time.monotonic() - begin) * train_rate) - granted if train_rate else 1
            while due > 0 and not self._stop.is_set():
                steps = self._source.grant(due)
                granted, due = granted + steps, due - steps

    def count(self) -> dict[str, float]:
        """Returns the sequences that were read since the start."""
        if self._source.error:
            raise self._source.error
        return {'steps': self._source._ring.num_written}

    def drain(self) -> None:
        """Reads without a limit from now on."""
        self._source._wanted_chunks = lambda: 16

    def stop(self) -> None:
        """Reads what is left, then closes."""
        deadline, before = time.monotonic() + _DEADLINE_SECS, -1.0
        while (found := self.count()['steps']) != before and time.monotonic() < deadline:
            before = found
            threading.Event().wait(_QUIET_SECS)
        self._stop.set()
        self._source.close()
        self._thread.join(_DEADLINE_SECS)
        for each in self._source._readers.each:
            for thread in each._threads:  # they would take chunks of the next point
                thread.join(_DEADLINE_SECS)


def main() -> None:
    """Serves until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('role', choices=['server', 'collector', 'reader'])
    parser.add_argument('--ports', default='{}', help='of the servers by chunk size, JSON')
    options = parser.parse_args()
    made: Any = {'server': lambda: Server(json.loads(options.ports)), 'collector': Collector, 'reader': Reader}
    role = made[options.role]()
    print('{}', flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer = getattr(role, order.pop('do'))(**order) or {}
        print(json.dumps({**answer, 'at': time.monotonic()}), flush=True)


if __name__ == '__main__':
    main()
