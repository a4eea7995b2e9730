"""Train steps in one XLA program (`LoopOptions.jit_compile`) beside the plain program, for which agents, of which size?

    python -m benchmarks.train_loops --cpu_time

Both sides are a learner whose data are in this process: a replay (DQN, SAC), the minibatches of an iteration (PPO), or
batches as a queue has them (IMPALA). They are measured one after the other in each round; a ratio is the median of the
ratios of the rounds. The last column is what `jit_compile='auto'` chooses.

    python -m benchmarks.train_loops --replicas=2

measures host values instead, on logical CPU devices: the host divides each batch, and makes the next one while the
replicas take a step; beside it without making ahead, and beside giving every replica the batch of all of them.
"""

import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, learner_cases, tables  # noqa: E402
from tflearn.agents import dqn, impala, ppo, sac  # noqa: E402
from tflearn.core import strategies  # noqa: E402
from tflearn.core.experience import BatchItems, Experience, Iteration, Uniform  # noqa: E402
from tflearn.core.train_step import create_train_step  # noqa: E402
from tflearn.core.types import Agent  # noqa: E402
from tflearn.files.run_dir import RunDir  # noqa: E402
from tflearn.learner import xla_loop  # noqa: E402
from tflearn.learner.batches import SourceBatches  # noqa: E402
from tflearn.learner.learner import Learner, LearnerOptions  # noqa: E402
from tflearn.learner.summaries import SummaryOptions  # noqa: E402
from tflearn.learner.train_loop import JitCompile, LoopOptions, TrainLoop  # noqa: E402
from tflearn.learner.xla_loop import Program  # noqa: E402
from tflearn.networks.networks import NetworkOptions  # noqa: E402
from tflearn.replay.storage import Storage  # noqa: E402
from tflearn.sampling.minibatches import MinibatchSource  # noqa: E402
from tflearn.sampling.ring_source import LocalReplay  # noqa: E402
from tflearn.sampling.source import Source  # noqa: E402

NUM_STORED = 6_400
NUM_ENVIRONMENTS = 64
_SPECS = {name: case.specs for name, case in learner_cases.CASES.items()}


class Stored(Source):
    """A `Source` of one batch, again and again, whose length is that of a queue's draw."""

    max_draw_steps, takes_indices = 32, True

    def __init__(self, batch: Any, copies: int = 1):
        self._copies = tf.nest.map_structure(lambda leaf: tf.stack([leaf] * copies), batch)

    def grant(self, num_steps: int) -> int:
        return num_steps

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> tf.Tensor:
        return tf.zeros([num_steps], tf.int32)

    def batch(self, drawn: tf.Tensor, i: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]:
        data = tf.nest.map_structure(lambda leaf: tf.gather(leaf, tf.gather(drawn, i)), self._copies)
        return data, {'policy_version': tf.cast(data.step_type, tf.int64)}


Made = tuple[Agent, Source]


def replay_case(name: str, batch_size: int, make: Callable[..., Agent]) -> Made:
    """Returns an agent and a replay with steps for it."""
    case = dataclasses.replace(learner_cases.CASES[name], batch_size=batch_size)
    replay = Uniform(max_size=2 * NUM_STORED, min_size=1, samples_per_insert=1e9)
    experience = Experience(replay=replay, batch=BatchItems(batch_size))
    agent = make(case.specs, create_train_step(), experience)
    source = LocalReplay(Storage(experience, agent.collect_data_spec), NUM_ENVIRONMENTS, batch_size)
    generator = learner_cases.steps(case, NUM_ENVIRONMENTS)
    for _ in range(NUM_STORED // NUM_ENVIRONMENTS):
        source(next(generator), 0)
    return agent, source


def _sequences(agent: Agent, size: int, length: int) -> Any:
    """Returns trajectories [size, length] of the agent's collect data, within an episode."""
    random = np.random.default_rng(0)

    def draw(leaf: tf.TensorSpec) -> tf.Tensor:
        shape = (size, length, *leaf.shape)
        numbers = random.integers(0, 2, shape) if leaf.dtype.is_integer else random.uniform(-1, 1, shape)
        return tf.constant(numbers, leaf.dtype)

    data = tf.nest.map_structure(draw, agent.collect_data_spec)
    ones = tf.ones((size, length), tf.int32)  # steps in the middle of an episode
    return data._replace(step_type=ones, next_step_type=ones, discount=tf.ones((size, length)))


def ppo_case(units: tuple[int, ...], minibatch_steps: int) -> Made:
    """Returns an agent, and the minibatches of 8 x 32 steps, 20 epochs, as in `ppo_cartpole`."""
    slicing = dataclasses.replace(ppo.EXPERIENCE.slicing, sequence_length=33, stride=32)
    experience = dataclasses.replace(ppo.EXPERIENCE, slicing=slicing)
    agent: Any = ppo.make_agent(
        _SPECS['dqn'], create_train_step(), experience, network=NetworkOptions(fc_layer_params=units)
    )
    sequences = Stored(_sequences(agent, 8, 33))
    iteration = Iteration(num_epochs=20, minibatch_steps=minibatch_steps)
    return agent, MinibatchSource(sequences, agent.prepare, iteration, tf.distribute.get_strategy())


def impala_case(units: tuple[int, ...], batch_size: int) -> Made:
    """Returns an agent, and batches of sequences of 20 steps."""
    network = NetworkOptions(fc_layer_params=units)
    agent = impala.make_agent(_SPECS['dqn'], create_train_step(), impala.EXPERIENCE, network=network)
    return agent, Stored(_sequences(agent, batch_size, 21), copies=32)


def _dqn(units: tuple[int, ...], batch_size: int) -> Made:
    return replay_case(
        'dqn', batch_size, lambda *args: dqn.make_agent(*args, network=NetworkOptions(fc_layer_params=units))
    )


def _sac(units: tuple[int, ...], batch_size: int) -> Made:
    layers = {'network': NetworkOptions(fc_layer_params=units, critic_fc_layer_params=units)}
    return replay_case('sac', batch_size, lambda *args: sac.make_agent(*args, **layers))


CASES: dict[str, Callable[[], Made]] = {
    'DQN 100-50, batch 64': lambda: _dqn((100, 50), 64),
    'DQN 128-128, batch 64': lambda: _dqn((128, 128), 64),
    'DQN 256-256, batch 32': lambda: _dqn((256, 256), 32),
    'DQN 256-256, batch 64': lambda: _dqn((256, 256), 64),
    'DQN 256-256, batch 256': lambda: _dqn((256, 256), 256),
    'PPO 64-64, minibatch 64': lambda: ppo_case((64, 64), 64),
    'PPO 256-256, minibatch 256': lambda: ppo_case((256, 256), 256),
    'IMPALA 64-64, batch 4 x 20': lambda: impala_case((64, 64), 4),
    'IMPALA 64-64, batch 32 x 20': lambda: impala_case((64, 64), 32),
    'IMPALA 256-256, batch 32 x 20': lambda: impala_case((256, 256), 32),
    'SAC 64-64, batch 64': lambda: _sac((64, 64), 64),
    'SAC 256-256, batch 256': lambda: _sac((256, 256), 256),
    'DQN 84x84x4 pixels, batch 32': lambda: replay_case('pixels', 32, learner_cases.CASES['pixels'].make_agent),
}


# Of two replicas and more: the batch of each replica.
REPLICA_CASES: dict[str, Callable[[int], Made]] = {
    'DQN 100-50, batch 64': lambda n: replay_case(
        'dqn', 64 * n, lambda *args: dqn.make_agent(*args, network=NetworkOptions(fc_layer_params=(100, 50)))
    ),
    'DQN 84x84x4 pixels, batch 32': lambda n: replay_case('pixels', 32 * n, learner_cases.CASES['pixels'].make_agent),
}


class WholeBatches(SourceBatches):
    """Every replica gets the batch of all of them, and takes its own part on its device (see `_own_part`)."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        self._makes_ahead = False

    def _element(self, drawn: Any, i: tf.Tensor | int) -> Any:
        return self._source.batch(drawn, i)


class DividedBatches(SourceBatches):
    """The host divides the batch, but makes the next one only after a step."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        self._makes_ahead = False


def _own_part(data: Any) -> Any:
    context = tf.distribute.get_replica_context()
    replica, count = context.replica_id_in_sync_group, context.num_replicas_in_sync

    def part(column: tf.Tensor) -> tf.Tensor:
        size = column.shape[0] // count
        return tf.ensure_shape(column[replica * size : (replica + 1) * size], [size, *column.shape[1:]])

    return tf.nest.map_structure(part, data)


def _replica_side(
    make: Callable[[int], Made], strategy: tf.distribute.Strategy, kind: type[SourceBatches]
) -> tuple[Program, int]:
    """Returns a program, and the bytes that a replica receives for a step."""
    with strategy.scope():
        agent, source = make(strategy.num_replicas_in_sync)
        agent.initialize()
        given = kind(source, strategy, agent.train_step_counter)
        options = LoopOptions(preprocess=_own_part if kind is WholeBatches else None)
        loop = TrainLoop(agent, given, strategy, options)
        loop.begin(pathlib.Path(tempfile.mkdtemp()), SummaryOptions(interval_steps=None))
    size = sum(spec.shape.num_elements() * spec.dtype.size for spec in tf.nest.flatten(given.host_spec))
    source.grant(1 << 30)
    return loop.take, size if kind is WholeBatches else size // strategy.num_replicas_in_sync


def _measured_replicas(
    name: str, make: Callable[[int], Made], replicas: int, rounds: int, secs: float, clock: Callable[[], float]
) -> list[dict[str, Any]]:
    """Returns a row for each way to give replicas their batches, with the steps/s and the bytes of a replica."""
    strategy = strategies.make(f'mirrored:{replicas}')
    kinds = {'whole batch': WholeBatches, 'divided': DividedBatches, 'divided, made ahead': SourceBatches}
    sides = {side: _replica_side(make, strategy, kind) for side, kind in kinds.items()}
    rates: dict[str, list[float]] = {side: [] for side in sides}
    start = time.perf_counter()
    for program, _ in sides.values():
        program(20)
    count = max(8, int(60 * secs / (time.perf_counter() - start)))
    for program, _ in sides.values():
        program(count)
    names = [*sides]
    for _ in range(rounds):
        names = names[1:] + names[:1]  # another one is first in each round
        for side in names:
            start = clock()
            sides[side][0](count)
            rates[side].append(count / (clock() - start))
    return [
        {
            'case': name,
            'metric': f'{replicas} replicas: {side}; {size} bytes for each',
            'ours': statistics.median(rates[side]),
            'peer': None,
            'limit': statistics.median(rates['whole batch']),
            'ratio_to_peer': None,
            'ratio_to_limit': tables.ratio(rates[side], rates['whole batch']),
            'unit': 'train steps/s',
            'rounds': rounds,
        }
        for side, (_, size) in sides.items()
    ]


def main() -> int:
    """Measures every case, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--cases', nargs='+', default=[''], help='those whose names contain one of these')
    parser.add_argument('--replicas', type=int, default=1, help='2 or more measures host values')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--secs', type=float, default=0.5, help='of the plain side in a round')
    parser.add_argument('--cpu_time', action='store_true', help='steps per CPU second of this process')
    parser.add_argument('--quick', action='store_true', help='a short run of the first case')
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.secs, options.cases = 3, 0.2, ['DQN 100-50']
    clock = time.process_time if options.cpu_time else time.perf_counter
    rows: list[dict[str, Any]] = []
    if options.replicas > 1:
        devices = [tf.config.LogicalDeviceConfiguration()] * options.replicas
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0], devices)
        for name, make_for in REPLICA_CASES.items():
            if any(part in name for part in options.cases):
                rows += _measured_replicas(name, make_for, options.replicas, options.rounds, options.secs, clock)
    for name, make in CASES.items() if options.replicas == 1 else ():
        if any(part in name for part in options.cases):
            rows.append(_measured(name, make, options.rounds, options.secs, clock))
            print(tables.table(rows[-1:]).splitlines()[-1], flush=True)
    command_line.finish(options.json, rows)
    return 0


def _measured(
    name: str, make: Callable[[], Made], rounds: int, secs: float, clock: Callable[[], float]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        xla_loop.AUTO_AFTER_STEPS = 0  # it would need 10,000 train steps to choose
        plain, with_xla, auto = (
            _learner(make(), pathlib.Path(directory) / str(choice), choice) for choice in (False, True, 'auto')
        )
        start = clock()
        with_xla.prepare(1)
        compile_secs = clock() - start
        sides = {'plain': plain, 'xla': with_xla}
        rates: dict[str, list[float]] = {side: [] for side in sides}
        count = _count(plain, secs)
        for learner in sides.values():
            learner.run(count)
        for _ in range(rounds):
            for side, learner in sides.items():
                start = clock()
                learner.run(count)
                rates[side].append(count / (clock() - start))
        auto.prepare(1)
        chosen = auto.jit_compiles
    return {
        'case': name,
        'metric': f'XLA of many steps; compiled in {compile_secs:.1f} s; auto: {"XLA" if chosen else "plain"}',
        'ours': statistics.median(rates['xla']),
        'peer': None,
        'limit': statistics.median(rates['plain']),
        'ratio_to_peer': None,
        'ratio_to_limit': tables.ratio(rates['xla'], rates['plain']),
        'unit': 'train steps/s',
        'rounds': rounds,
    }


def _count(learner: Learner, secs: float) -> int:
    """Returns how many train steps take about so long, 8 at least."""
    learner.run(10)
    start = time.perf_counter()
    learner.run(20)
    return max(8, int(20 * secs / (time.perf_counter() - start)))


def _learner(made: Made, directory: pathlib.Path, jit_compile: JitCompile) -> Learner:
    agent, source = made
    loop = LoopOptions(jit_compile=jit_compile)
    return Learner(agent, source, RunDir(directory), options=LearnerOptions(None, None, loop=loop))


if __name__ == '__main__':
    sys.exit(main())
