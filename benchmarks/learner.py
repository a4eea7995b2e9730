"""How fast is the learner, fed from a replay server in another process, beside the limit and TF-Agents' Learner?

    python benchmarks/learner.py --cases=dqn,sac,pixels

The limit is the same agent's train step on one constant batch inside a compiled loop, with no writer at work. All
others read from servers in another process, into which a writer inserts 3 000 steps a second meanwhile; what that takes
from the limit on this machine is a row too, and the last rows have the limit beside such a writer: what is left then is
the data path's own. TF-Agents' Learner is measured beside its own writer, 64 Python observers,
and beside ours, the load that our sides have. All sides are measured in another order each round; a ratio is the median
of the ratios of the rounds.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tf_agents.replay_buffers import reverb_replay_buffer
from tf_agents.train import learner as tf_agents_learner

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, learner_cases, replay_process, tables  # noqa: E402
from tflearn.core import strategies  # noqa: E402
from tflearn.core.train_step import create_train_step  # noqa: E402
from tflearn.extensions.tf_agents import tf_agents_learner as drop_in  # noqa: E402
from tflearn.files.run_dir import RunDir  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402
from tflearn.learner.learner import Learner, LearnerOptions  # noqa: E402
from tflearn.learner.train_loop import LoopOptions  # noqa: E402
from tflearn.replay.backend import Shards  # noqa: E402
from tflearn.replay.storage import Storage  # noqa: E402
from tflearn.sampling import replay_servers  # noqa: E402
from tflearn.sampling.source import Source  # noqa: E402

TIMEOUT_SECS = 600.0
OTHER_SIDES = 'also xla_loop, and with it datasets; or prioritized,prioritized_mirror,prioritized_xla_loop,tf_agents'
SINGLE_CALLS, PEER_SINGLE_CALLS = 1_000, 200
SETTLE_SECS = 0.5
LOADED = 'limit beside a writer'
XLA_LOOP = 'xla_loop'  # the mirror, with many train steps in one XLA program
JAX = 'JAX scan'
PRIORITIZED_MIRROR, PRIORITIZED_XLA_LOOP = 'prioritized_mirror', 'prioritized_xla_loop'
DATASETS = 'datasets'
# With our agent, and with TF-Agents' own.
PEERS = 'tf_agents, gathered dataset', "tf_agents, gathered dataset, TF-Agents' agent"
DROP_INS = 'drop-in, gathered', "drop-in, gathered, TF-Agents' agent"
STEPS_OF_CALL = 100  # of the learners above
PEER, PEER_BESIDE_OURS = 'tf_agents', 'tf_agents beside our writer'


@dataclasses.dataclass(frozen=True)
class Side:
    """Something whose train steps are timed; `writer` is the server that is written to meanwhile."""

    name: str
    run: Callable[[int], object]
    writer: str = 'nothing'


def main() -> int:
    """Measures every case, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--cases', default='dqn,sac,pixels')
    parser.add_argument('--num_stored', type=int, default=100_000, help='steps in each server')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--inter_op_threads', type=int, default=None, help="TensorFlow's, for all sides")
    parser.add_argument('--jit_compile', action='store_true', help='XLA for the limit and for us')
    parser.add_argument('--sides', default='mirror,server,tf_agents', help=OTHER_SIDES)
    parser.add_argument('--jax_python', default=None, help='adds JAX to dqn; of requirements_peers.txt')
    parser.add_argument('--quick', action='store_true', help='a short run of the first case')
    options = parser.parse_args()
    strategies.use_threads(options.inter_op_threads)
    cases = options.cases.split(',')
    if options.quick:
        cases, options.num_stored, options.rounds = cases[:1], 5_000, 3
    rows = []
    for case in cases:
        with _jax(options.jax_python if case == 'dqn' else None) as others:
            chosen = options.sides.split(',')
            rows += _measure_case(case, options.num_stored, options.rounds, options.jit_compile, chosen, others)
        print(tables.table(rows), flush=True)
    command_line.write(options.json, rows)
    return 0


def _measure_case(
    name: str, num_stored: int, rounds: int, jit_compile: bool, chosen: list[str], others: list[Side]
) -> list[dict[str, Any]]:
    case = learner_cases.CASES[name]
    room = int(1.1 * num_stored) + 2 * learner_cases.EPISODE_STEPS * replay_process.NUM_ENVIRONMENTS
    min_size = int(0.97 * num_stored)
    known: dict[str, dict[str, Any]] = {
        'mirror': {'sampling': 'learner'},
        XLA_LOOP: {'sampling': 'learner'},
        'server': {'sampling': 'server'},
        'prioritized': {'prioritized': True, 'sampling': 'server'},
        PRIORITIZED_MIRROR: {'prioritized': True, 'sampling': 'learner'},
        PRIORITIZED_XLA_LOOP: {'prioritized': True, 'sampling': 'learner'},
    }
    experiences = {side: {**known[side], 'max_size': room, 'min_size': min_size} for side in chosen if side in known}
    prioritized = 'prioritized' in chosen
    served = servers(name, experiences, num_stored, prioritized, with_peer=PEER in chosen)
    with tempfile.TemporaryDirectory() as directory, served as (ports, command):
        limit = _limit(case, jit_compile)
        sides = [Side('limit', limit), Side('limit with XLA', _limit(case, True)), *others]
        our_writer = 'server' if 'server' in chosen else chosen[0]
        sides.append(Side(LOADED, limit, our_writer))
        for side, changes in experiences.items():
            batches = source(case, changes, ports[side])
            loop = LoopOptions(jit_compile=jit_compile or side in (XLA_LOOP, PRIORITIZED_XLA_LOOP))
            run = our_learner(case, batches, pathlib.Path(directory) / side, loop)
            sides.append(Side(side, run, side))
        if PEER in ports:
            peer = _peer_learner(case, ports[PEER], f'{directory}/peer', prioritized)
            sides += [Side(PEER, peer, PEER), Side(PEER_BESIDE_OURS, peer, our_writer)]
        on_datasets = _dataset_sides(case, pathlib.Path(directory)) if DATASETS in chosen else []
        sides += on_datasets
        for prepared in sides:
            prepared.run(10)
        read = [prepared.run for prepared in sides if prepared.name in experiences]
        # A mirrored server is filled only as fast as its learner reads.
        command('write nothing', lambda: [run(1) for run in read])
        many = _rounds(sides, case.num_steps, rounds, command)
        # A drop-in whose first call takes one train step is another: it reads no stacks.
        once = [side for side in sides[3 + len(others) :] if side.name not in (*DROP_INS, PEERS[1])]
        single = _rounds(once, 1, rounds, command)
    beside = {side: many[side] for side in (LOADED, *experiences, PEER_BESIDE_OURS) if side in many}
    single_beside = {side: single[side] for side in (*experiences, PEER_BESIDE_OURS) if side in single}
    names = [XLA_LOOP, *(side.name for side in on_datasets if side.name not in (PEERS[1], DROP_INS[1]))]
    own = {side.name: many.pop(side.name) for side in on_datasets if side.name not in names}
    of_datasets = {side: many[side] for side in names} if on_datasets else {}
    many = {side: rates for side, rates in many.items() if side == XLA_LOOP or side not in names}
    return [
        *_rows(case.name, 'datasets; the limit is our source with XLA', of_datasets, XLA_LOOP, PEERS[0]),
        *_rows(case.name, 'datasets', own, peer=PEERS[1]),
        *_rows(case.name, 'train steps per call: many; each side beside its own writer', many),
        *_rows(case.name, 'train steps per call: 1; each side beside its own writer', single),
        *_rows(case.name, 'train steps per call: many; every side beside our writer', beside, LOADED, PEER_BESIDE_OURS),
        *_rows(case.name, 'train steps per call: 1; every side beside our writer', single_beside, '', PEER_BESIDE_OURS),
    ]


@contextlib.contextmanager
def servers(
    case: str,
    experiences: dict[str, dict[str, Any]],
    num_stored: int,
    prioritized: bool = False,
    with_peer: bool = True,
) -> Iterator[tuple[dict[str, int], Callable[..., None]]]:
    """Starts the servers in a process of their own; gives their ports and a function that sends it a command."""
    names = [*experiences, PEER] if with_peer else [*experiences]
    ports = {name: free_port() for name in names}
    sides = {name: {'port': ports[name], 'experience': changes} for name, changes in experiences.items()}
    if with_peer:
        sides |= {PEER: {'port': ports[PEER], 'peer': True, 'prioritized': prioritized}}
    arguments = [f'--case={case}', f'--sides={json.dumps(sides)}', f'--num_steps={num_stored}']
    process = subprocess.Popen(
        [sys.executable, '-m', 'benchmarks.replay_process', *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin and process.stdout
    stdin, stdout = process.stdin, process.stdout
    if stdout.readline().strip() != 'serving':
        raise RuntimeError('the replay process could not start; run it by hand to see why')

    answers: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: [answers.put(line.strip()) for line in stdout], daemon=True).start()

    def command(line: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        stdin.write(line + '\n')
        stdin.flush()
        answer = ''
        while answer != 'ok':
            meanwhile()
            with contextlib.suppress(queue.Empty):
                answer = answers.get(timeout=0.1)
            if process.poll() is not None:
                raise RuntimeError('the replay process has ended')

    try:
        yield ports, command
    finally:
        process.kill()
        process.wait()


def _limit(case: learner_cases.Case, jit_compile: bool) -> Callable[[int], object]:
    agent = case.make_agent(case.specs, create_train_step(), case.experience())
    agent.initialize()
    batch = learner_cases.batch(case)
    train = tf.function(lambda: agent.train(batch).loss, autograph=False, jit_compile=jit_compile or None)

    @tf.function
    def loop(num_steps: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0.0)
        for _ in tf.range(num_steps):
            total += train()
        return total

    return lambda num_steps: loop(tf.constant(num_steps)).numpy()


@contextlib.contextmanager
def _jax(python: str | None) -> Iterator[list[Side]]:
    """The side that takes the steps in JAX, in a process of another environment, if there is one."""
    if python is None:
        yield []
        return
    command = [python, str(ROOT / 'benchmarks' / 'learner_jax.py')]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def run(num_steps: int) -> None:
            process.stdin.write(f'{num_steps}\n')  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            if not process.stdout.readline():  # type: ignore[union-attr]
                raise RuntimeError('JAX ended; see its message above')

        run(learner_cases.CASES['dqn'].num_steps)  # compiles
        yield [Side(JAX, run)]
        process.stdin.close()  # type: ignore[union-attr]


def source(case: learner_cases.Case, replay: dict[str, Any], port: int) -> Source:
    agent = case.make_agent(case.specs, create_train_step(), case.experience())
    storage = Storage(case.experience(**replay), agent.collect_data_spec)
    return replay_servers.make(Shards((f'localhost:{port}',)), storage, case.batch_size, TIMEOUT_SECS, seed=0)


def our_learner(
    case: learner_cases.Case, source: Source, directory: pathlib.Path, loop: LoopOptions | None = None
) -> Callable[[int], None]:
    """Returns what takes train steps of our learner, which does nothing else."""
    agent = case.make_agent(case.specs, create_train_step(), case.experience())
    options = LearnerOptions(checkpoint_interval_steps=None, summaries=None, loop=loop or LoopOptions())
    learner = Learner(agent, source, RunDir(directory), options=options)

    def run(num_steps: int) -> None:
        while num_steps > 0:
            taken = learner.run(num_steps).num_steps
            if not taken:
                raise RuntimeError(f'no data came: {source.error}')
            num_steps -= taken

    return run


def _peer_learner(case: learner_cases.Case, port: int, root_dir: str, prioritized: bool) -> Callable[[int], object]:
    """TF-Agents' Learner as its documentation sets it up; priorities are updated by its `after_train_...` function."""
    agent = case.make_agent(case.specs, create_train_step(), case.experience())
    replay = reverb_replay_buffer.ReverbReplayBuffer(
        agent.collect_data_spec,
        sequence_length=2,
        table_name=replay_process.PEER_TABLE,
        server_address=f'localhost:{port}',
    )

    def update_priorities(sample: Any, loss_info: Any) -> None:
        keys, errors = sample[1].key[:, 0], tf.abs(loss_info.extra.td_error)
        replay.update_priorities(keys, tf.cast(errors, tf.float64) + 1e-6)

    learner = tf_agents_learner.Learner(
        root_dir,
        agent.train_step_counter,
        agent,
        experience_dataset_fn=lambda: replay.as_dataset(sample_batch_size=case.batch_size, num_steps=2).prefetch(3),
        after_train_strategy_step_fn=update_priorities if prioritized else None,
        checkpoint_interval=10**9,
        summary_interval=10**9,
    )
    return lambda num_steps: learner.run(iterations=num_steps)


def _dataset_sides(case: learner_cases.Case, directory: pathlib.Path) -> list[Side]:
    """Our learner on datasets; its drop-in and TF-Agents' on the one that gathers batches from 150 batches' items."""
    one = learner_cases.batch(case)
    items = tf.nest.map_structure(lambda leaf: tf.repeat(leaf, 150, axis=0), one)

    def constant(context: Any = None) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors((one, ())).repeat()

    def gathered(context: Any = None) -> tf.data.Dataset:
        def gather(seed: tf.Tensor) -> Any:
            rows = tf.random.stateless_uniform((case.batch_size,), (seed, 0), 0, 150 * case.batch_size, tf.int32)
            return tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), items), ()

        return tf.data.Dataset.random(seed=1).map(gather)

    sides = []
    for name, dataset_fn in (('one batch', constant), ('gathered', gathered)):
        for jit_compile in (False, True):
            options = LearnerOptions(None, None, loop=LoopOptions(jit_compile=jit_compile))
            agent = case.make_agent(case.specs, create_train_step(), case.experience())
            side = f'dataset, {name}{", XLA" if jit_compile else ""}'
            sides.append(Side(side, Learner(agent, dataset_fn, RunDir(directory / side), options=options).run))
    makers = [case.make_agent, *([case.make_peer_agent] if case.make_peer_agent else [])]
    xla = functools.partial(drop_in.Learner, jit_compile=True)
    for kind, names in ((tf_agents_learner.Learner, PEERS), (xla, DROP_INS)):
        for side, make_agent in zip(names, makers, strict=False):
            agent = make_agent(case.specs, create_train_step(), case.experience())
            given = str(directory / side), agent.train_step_counter, agent, gathered
            learner = kind(*given, checkpoint_interval=10**9, summary_interval=10**9)
            sides.append(Side(side, functools.partial(_in_calls, learner)))
    return sides


def _in_calls(learner: Any, num_steps: int) -> None:
    """Takes train steps, as programs of TF-Agents do that take many at a time."""
    for begin in range(0, num_steps, STEPS_OF_CALL):
        learner.run(iterations=min(STEPS_OF_CALL, num_steps - begin))


def _rounds(sides: list[Side], num_steps: int, rounds: int, command: Callable[..., None]) -> dict[str, list[float]]:
    """Returns train steps per second of every side in every round."""
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    order = random.Random(0)
    for _ in range(rounds):
        # In another order each time: what a side still reads ahead, when its time is over, disturbs the next one.
        for side in order.sample(sides, len(sides)):
            command(f'write {side.writer}')
            threading.Event().wait(SETTLE_SECS)
            # The slow side gets fewer steps, for about the same time.
            slow = side.name in (PEER, PEER_BESIDE_OURS, *PEERS)
            calls = 1 if num_steps > 1 else PEER_SINGLE_CALLS if slow else SINGLE_CALLS
            count = max(1, num_steps // 5) if slow else num_steps
            start = time.perf_counter()
            for _ in range(calls):
                side.run(count)
            rates[side.name].append(calls * count / (time.perf_counter() - start))
    command('write nothing')
    return rates


def _rows(
    case: str, metric: str, rates: dict[str, list[float]], limit: str = 'limit', peer: str = PEER
) -> list[dict[str, Any]]:
    return [
        {
            'case': f'{case}: {side}',
            'metric': metric,
            'ours': statistics.median(rates[side]),
            'peer': statistics.median(rates[peer]) if peer in rates else None,
            'limit': statistics.median(rates[limit]) if limit in rates else None,
            'ratio_to_peer': tables.ratio(rates[side], rates[peer]) if peer in rates else None,
            'ratio_to_limit': tables.ratio(rates[side], rates[limit]) if limit in rates else None,
            'unit': 'train steps/s',
            'rounds': len(rates[side]),
        }
        for side in rates
        if side not in (limit, PEER, PEER_BESIDE_OURS, PEERS[1])
    ]


if __name__ == '__main__':
    sys.exit(main())
