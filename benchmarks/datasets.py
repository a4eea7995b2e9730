"""How fast do recorded episodes feed the learner, beside the in-memory replay? What does recording cost a collector?

    python benchmarks/datasets.py --cases=dqn,sac,pixels

The same steps are in a replay in memory (`LocalReplay`, whose draws are those of the learner's mirror) and in files of
TFRecords, from which the learner is fed in three ways: loaded into memory and drawn uniformly; loaded, and each
sequence once an epoch; as a stream, which reads, parses and shuffles the files again in each epoch while it trains.
Before its time counts, a stream trains on what it has read ahead. A collector of 64 environments writes to a replay
server in another process, with and without an `EpisodeRecorder` beside it; episodes of 200 steps, and of CartPole with
random actions, which takes about 22.

All sides are measured in another order each round; a ratio is the median of the ratios of the rounds. Where other
programs share the machine, `--cpu_time` counts the CPU time of this process alone, all its threads together.
"""

import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, learner, learner_cases, structured, tables  # noqa: E402
from tflearn.actors.actor import Actor, Observer  # noqa: E402
from tflearn.actors.episode_metrics import EpisodeMetrics  # noqa: E402
from tflearn.agents import dqn  # noqa: E402
from tflearn.core import strategies  # noqa: E402
from tflearn.core.experience import Experience, Uniform  # noqa: E402
from tflearn.core.train_step import create_train_step  # noqa: E402
from tflearn.data import columns  # noqa: E402
from tflearn.data.reader import Dataset  # noqa: E402
from tflearn.data.writer import EpisodeRecorder, EpisodeWriter  # noqa: E402
from tflearn.environments import gymnasium_env  # noqa: E402
from tflearn.environments.vector_env import VectorEnvironment  # noqa: E402
from tflearn.replay.reverb.server import ReplayServer  # noqa: E402
from tflearn.replay.storage import Storage  # noqa: E402
from tflearn.replay.writers import ReplayWriter  # noqa: E402
from tflearn.sampling import episode_files  # noqa: E402
from tflearn.sampling.episode_files import Reading  # noqa: E402
from tflearn.sampling.ring_source import LocalReplay  # noqa: E402
from tflearn.sampling.source import Source  # noqa: E402

NUM_STORED = {'dqn': 100_000, 'sac': 100_000, 'pixels': 10_000}
NUM_ENVIRONMENTS = 10
WINDOW_SHARE = 0.25  # of the stored steps, that a stream shuffles at a time
MIRROR = 'replay in memory'
READINGS = {
    'files in memory, uniform': Reading('memory'),
    'files in memory, epochs': Reading('memory', 'epochs'),
    'files as a stream': Reading('stream'),
}
COLLECTORS = ('200 steps', 'CartPole, random')
RECORDINGS = ('not recorded', 'recorded')
IDLE_SHARE, IDLE_SECS, MAX_SETTLE_SECS = 0.1, 0.3, 20.0

Run = Callable[[int], object]


def main() -> int:
    """Measures, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--cases', default='dqn,sac,pixels,record', help='of these')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--secs', type=float, default=3.0, help='of each side in a round, about')
    parser.add_argument('--cpu_time', action='store_true', help='steps per CPU second')
    parser.add_argument('--inter_op_threads', type=int, default=None, help="TensorFlow's, for all sides")
    parser.add_argument('--quick', action='store_true', help='three short rounds')
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.secs = 3, 0.3
    strategies.use_threads(options.inter_op_threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    second = 'CPU s' if options.cpu_time else 's'
    rows = []
    for name in options.cases.split(','):
        with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
            if name == 'record':
                measured = [_collectors(kind, pathlib.Path(directory) / kind[:3], stack) for kind in COLLECTORS]
                peer, of, unit = 'not recorded', structured.NUM_ENVIRONMENTS, f'environment steps/{second}'
            else:
                measured = [_learners(learner_cases.CASES[name], name, pathlib.Path(directory), stack)]
                peer, of, unit = MIRROR, 1, f'train steps/{second}'
            for case, sides in measured:
                rates = _rounds(sides, options.rounds, options.secs, clock)
                rows += _rows(case, rates, peer, of, unit)
                print(tables.table(rows), flush=True)
    command_line.write(options.json, rows)
    return 0


def _learners(
    case: learner_cases.Case, name: str, directory: pathlib.Path, stack: contextlib.ExitStack
) -> tuple[str, dict[str, tuple[Run, int]]]:
    """Returns the case's name and its sides: what takes train steps, and how many come before those that count."""
    num_stored = NUM_STORED[name]
    experience = case.experience(max_size=num_stored, min_size=1, samples_per_insert=1e9)
    replay = LocalReplay(Storage(experience, _agent(case).collect_data_spec), NUM_ENVIRONMENTS, case.batch_size)
    with contextlib.closing(EpisodeWriter(directory / 'data', case.specs)) as writer:
        recorder = EpisodeRecorder(writer, NUM_ENVIRONMENTS)
        for row in itertools.islice(learner_cases.steps(case, NUM_ENVIRONMENTS), num_stored // NUM_ENVIRONMENTS):
            recorder(row)
            replay(row, 0)
    sides: dict[str, tuple[Run, int]] = {MIRROR: (_learner(case, replay, directory / 'mirror', stack), 0)}
    for number, (side, reading) in enumerate(READINGS.items()):
        window = int(WINDOW_SHARE * num_stored)
        source = episode_files.from_files(
            Dataset([str(directory / 'data')]),
            experience,
            columns.data_spec(case.specs),
            tf.distribute.get_strategy(),
            seed=0,
            reading=Reading(reading.storage, reading.order, window if reading.storage == 'stream' else None),
        )
        ahead = 0
        if reading.storage == 'stream':  # what it can have read while others were measured
            (stream,) = source.sources
            ahead = stream.max_read_ahead + 2 * window // case.batch_size
        sides[side] = (_learner(case, source, directory / str(number), stack), ahead)
    return case.name, sides


def _agent(case: learner_cases.Case) -> Any:
    return case.make_agent(case.specs, create_train_step(), case.experience())


def _learner(case: learner_cases.Case, source: Source, directory: pathlib.Path, stack: contextlib.ExitStack) -> Run:
    stack.callback(source.close)
    return learner.our_learner(case, source, directory)


def _collectors(
    kind: str, directory: pathlib.Path, stack: contextlib.ExitStack
) -> tuple[str, dict[str, tuple[Run, int]]]:
    """Returns the case's name and its sides: collectors that write to a replay server, one of them also to files."""
    sides = {}
    ports = _start_servers(kind, directory, stack)
    for side in RECORDINGS:
        environment, agent, storage = _collecting(kind)
        stack.callback(environment.close)
        stop = threading.Event()
        stack.callback(stop.set)
        writer = ReplayWriter(f'localhost:{ports[side]}', storage, structured.NUM_ENVIRONMENTS, stop)
        observers: list[Observer] = [EpisodeMetrics(structured.NUM_ENVIRONMENTS), _written(writer)]
        if side == 'recorded':
            files = EpisodeWriter(directory / side / 'data', environment.specs)
            stack.callback(files.close)
            observers.append(EpisodeRecorder(files, structured.NUM_ENVIRONMENTS))
        sides[side] = (Actor(environment, agent.collect_policy, observers).run, 0)
    return f'collect, episodes of {kind}', sides


def _collecting(kind: str) -> tuple[VectorEnvironment, Any, Storage]:
    """Returns a collector's environment, agent, and replay tables, from which the server draws."""
    made: VectorEnvironment
    if kind == 'CartPole, random':
        made = gymnasium_env.make('CartPole-v1', num_environments=structured.NUM_ENVIRONMENTS, seed=0)
    else:
        made = structured.environments('vector')
    experience = Experience(replay=Uniform(max_size=10_000, min_size=1, sampling='server'))
    agent = dqn.make_agent(made.specs, create_train_step(), experience, epsilon=1.0)
    agent.initialize()
    return made, agent, Storage(experience, agent.collect_data_spec)


def _start_servers(kind: str, directory: pathlib.Path, stack: contextlib.ExitStack) -> dict[str, int]:
    """Starts a process with a replay server for each side; returns the servers' ports."""
    context = multiprocessing.get_context('spawn')
    mine, other = context.Pipe()
    process = context.Process(target=_serve, args=(kind, directory, other), daemon=True)
    process.start()
    stack.callback(process.join, MAX_SETTLE_SECS)
    stack.callback(mine.send, 'end')
    other.close()
    return mine.recv()


def _serve(kind: str, directory: pathlib.Path, connection: multiprocessing.connection.Connection) -> None:
    environment, _, storage = _collecting(kind)
    environment.close()
    servers = {side: ReplayServer(storage.make_tables(), 0, directory / side / 'replay') for side in RECORDINGS}
    connection.send({side: server.port for side, server in servers.items()})
    connection.recv()
    for server in servers.values():
        server.close()


def _written(writer: ReplayWriter) -> Observer:
    return lambda row: writer(row, 0)


def _rounds(
    sides: dict[str, tuple[Run, int]], rounds: int, secs: float, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Returns the steps per second of `clock` of each side in each round."""
    counts = {}
    for name, (run, ahead) in sides.items():
        run(20 + ahead)
        start = time.perf_counter()
        run(50)
        per_step = (time.perf_counter() - start) / 50
        if per_step < 0.005:
            start = time.perf_counter()
            run(500)
            per_step = (time.perf_counter() - start) / 500
        counts[name] = max(20, int(secs / per_step))
    rates: dict[str, list[float]] = {name: [] for name in sides}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(sides), len(sides)):
            run, ahead = sides[name]
            _settle()
            if ahead:
                run(ahead)
            start = clock()
            run(counts[name])
            rates[name].append(counts[name] / (clock() - start))
    return rates


def _settle() -> None:
    """Waits until other sides have read ahead as far as they can."""
    end = time.monotonic() + MAX_SETTLE_SECS
    while time.monotonic() < end:
        start = time.process_time()
        threading.Event().wait(IDLE_SECS)
        if time.process_time() - start < IDLE_SHARE * IDLE_SECS:
            return


def _rows(case: str, rates: dict[str, list[float]], peer: str, of: int, unit: str) -> list[dict[str, Any]]:
    return [
        {
            'case': f'{case}: {side}',
            'metric': unit.split()[0],
            'ours': of * statistics.median(rates[side]),
            'peer': of * statistics.median(rates[peer]),
            'limit': None,
            'ratio_to_peer': tables.ratio(rates[side], rates[peer]),
            'ratio_to_limit': None,
            'unit': unit,
            'rounds': len(rates[side]),
        }
        for side in rates
        if side != peer
    ]


if __name__ == '__main__':
    sys.exit(main())
