"""What does an observation of 20 parts cost, beside the same numbers in one vector?

    python benchmarks/structured.py

An environment returns 60 numbers, as a dict of 20 parts or as one vector. Train steps are those of the learner's
compiled loop, with batches from the replay in this process (DQN) and minibatches of collected sequences (PPO).
Collection is an actor with 64 environments, which writes every step to a replay server (DQN, PPO) or to the replay in
this process (DQN synchronous). Both sides are measured one after the other in each round, in another order each time;
a ratio is the median of the ratios of the rounds. Where other programs share the machine, `--cpu_time` counts the time
of this process alone.
"""

import contextlib
import dataclasses
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium import spaces

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, tables  # noqa: E402
from tflearn.actors.actor import Actor, Observer  # noqa: E402
from tflearn.actors.episode_metrics import EpisodeMetrics  # noqa: E402
from tflearn.agents import dqn, ppo  # noqa: E402
from tflearn.core.experience import Experience, Iteration, Uniform  # noqa: E402
from tflearn.core.train_step import create_train_step  # noqa: E402
from tflearn.environments import vector_env  # noqa: E402
from tflearn.environments.vector_env import VectorEnvironment  # noqa: E402
from tflearn.files.run_dir import RunDir  # noqa: E402
from tflearn.learner.learner import Learner, LearnerOptions  # noqa: E402
from tflearn.replay.reverb.server import ReplayServer  # noqa: E402
from tflearn.replay.storage import Storage  # noqa: E402
from tflearn.replay.writers import ReplayWriter  # noqa: E402
from tflearn.sampling.minibatches import MinibatchSource  # noqa: E402
from tflearn.sampling.ring_source import LocalReplay  # noqa: E402
from tflearn.sampling.source import Source  # noqa: E402

NUM_PARTS, PART_SIZE = 20, 3
EPISODE_STEPS = 200
NUM_ENVIRONMENTS = 64
SEQUENCE_STEPS = 128
FORMS = ('dict', 'vector')
WANTED = {'train': 1.3, 'collect': 1.5}

Run = Callable[[int], object]


class Numbers(gymnasium.Env):
    """Random observations of 60 numbers; 1 is the better action. `as_dict` returns them as a dict of 20 parts.

    Two of them alternate, made in advance, so that neither form takes more of the environment's own time.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, as_dict: bool):
        size = NUM_PARTS * PART_SIZE
        part = spaces.Box(-np.inf, np.inf, (PART_SIZE,), np.float32)
        parts = {f'part_{i:02}': slice(i * PART_SIZE, (i + 1) * PART_SIZE) for i in range(NUM_PARTS)}
        vector = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.observation_space = spaces.Dict(dict.fromkeys(parts, part)) if as_dict else vector
        numbers = np.random.default_rng(0).normal(size=(2, size)).astype(np.float32)
        self._observations: list[Any] = list(numbers)
        if as_dict:
            self._observations = [{name: row[where] for name, where in parts.items()} for row in numbers]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env`."""
        self._steps = 0
        return self._observations[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env`."""
        self._steps += 1
        return self._observations[self._steps % 2], float(action), False, self._steps == EPISODE_STEPS, {}


@dataclasses.dataclass
class Constant(Source):
    """A `Source` whose every batch is the same one."""

    data: Any

    def grant(self, num_steps: int) -> int:
        """Grants all."""
        return num_steps

    def draw(self, num_steps: tf.Tensor, seed: tf.Tensor, batch_size: tf.Tensor | None = None) -> tf.Tensor:
        """Draws nothing."""
        return num_steps

    def batch(self, drawn: tf.Tensor, i: tf.Tensor) -> tuple[Any, dict[str, tf.Tensor]]:
        """Returns the batch."""
        return self.data, {'policy_version': tf.zeros(self.data.reward.shape, tf.int64)}


class Rows:
    """An observer that keeps the trajectories of all steps."""

    def __init__(self) -> None:
        self._rows: list[Any] = []

    def __call__(self, trajectory: Any) -> None:
        """Keeps one step."""
        self._rows.append(trajectory)

    def sequences(self) -> Any:
        """Returns a Trajectory [B, T, ...] of tensors."""
        return tf.nest.map_structure(lambda *leaves: tf.constant(np.stack(leaves, axis=1)), *self._rows)


def environments(form: str) -> VectorEnvironment:
    """Makes the environments, whose observations are a 'dict' or a 'vector'."""
    return vector_env.in_process(lambda: Numbers(form == 'dict'), NUM_ENVIRONMENTS, seed=0)


def main() -> int:
    """Measures, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--secs', type=float, default=2.0, help='of each side in a round, about')
    parser.add_argument('--cpu_time', action='store_true', help='steps per CPU second')
    parser.add_argument('--quick', action='store_true', help='three short rounds')
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.secs = 3, 0.3
    rows = []
    clock = time.process_time if options.cpu_time else time.perf_counter
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        for name, make in CASES.items():
            sides = {form: make(form, pathlib.Path(directory) / name / form, stack) for form in FORMS}
            rates = _rounds(sides, options.rounds, options.secs, clock)
            rows += _rows(name, rates, 'CPU s' if options.cpu_time else 's')
            print(tables.table(rows[-1:]), flush=True)
    print(tables.table(rows))
    for row in rows:
        cost = 1 / row['ratio_to_peer']
        print(f'{row["case"]}: {cost:.2f}x the time of one vector (wanted: at most {WANTED[row["metric"]]}x)')
    command_line.write(options.json, rows)
    return 0


def _train_dqn(form: str, directory: pathlib.Path, stack: contextlib.ExitStack) -> Run:
    replay = Uniform(max_size=10_000, min_size=1, samples_per_insert=1e9)
    with contextlib.closing(environments(form)) as made:
        agent = dqn.make_agent(made.specs, create_train_step(), Experience(replay=replay))
        source = LocalReplay(Storage(Experience(replay=replay), agent.collect_data_spec), NUM_ENVIRONMENTS, 64)
        Actor(made, agent.collect_policy, [lambda row: source(row, 0)]).run(100)
    return _learner(agent, source, directory)


def _train_ppo(form: str, directory: pathlib.Path, stack: contextlib.ExitStack) -> Run:
    slicing = dataclasses.replace(ppo.EXPERIENCE.slicing, sequence_length=SEQUENCE_STEPS + 1, stride=SEQUENCE_STEPS)
    experience = dataclasses.replace(ppo.EXPERIENCE, slicing=slicing)
    rows = Rows()
    with contextlib.closing(environments(form)) as made:
        agent = ppo.make_agent(made.specs, create_train_step(), experience)
        Actor(made, agent.collect_policy, [rows]).run(SEQUENCE_STEPS + 1)
    iteration = Iteration(num_epochs=4, minibatch_steps=256)
    constant = Constant(rows.sequences())
    source = MinibatchSource(constant, agent.prepare, iteration, tf.distribute.get_strategy())
    return _learner(agent, source, directory)


def _learner(agent: Any, source: Any, directory: pathlib.Path) -> Run:
    options = LearnerOptions(checkpoint_interval_steps=None, summaries=None)
    learner = Learner(agent, source, RunDir(directory), options=options)

    def run(num_steps: int) -> None:
        while num_steps > 0:
            num_steps -= learner.run(num_steps).num_steps

    return run


def _collect(algorithm: Any, synchronous: bool = False) -> Callable[[str, pathlib.Path, contextlib.ExitStack], Run]:
    def make(form: str, directory: pathlib.Path, stack: contextlib.ExitStack) -> Run:
        made = stack.enter_context(contextlib.closing(environments(form)))
        experience = algorithm.EXPERIENCE
        agent = algorithm.make_agent(made.specs, create_train_step(), experience)
        agent.initialize()
        replay = Uniform(max_size=10_000, min_size=1, sampling='server')
        storage = Storage(Experience(replay=replay), agent.collect_data_spec)
        written: Observer
        if synchronous:
            local = LocalReplay(storage, NUM_ENVIRONMENTS, 64)
            written = lambda row: local(row, 0)  # noqa: E731
        else:
            server = ReplayServer(storage.make_tables(), 0, directory)
            stack.callback(server.close)
            stop = threading.Event()
            stack.callback(stop.set)
            writer = ReplayWriter(f'localhost:{server.port}', storage, NUM_ENVIRONMENTS, stop)
            written = lambda row: writer(row, 0)  # noqa: E731
        return Actor(made, agent.collect_policy, [EpisodeMetrics(NUM_ENVIRONMENTS), written]).run

    return make


CASES = {
    'train DQN': _train_dqn,
    'train PPO': _train_ppo,
    'collect DQN': _collect(dqn),
    'collect DQN synchronous': _collect(dqn, synchronous=True),
    'collect PPO': _collect(ppo),
}


def _rounds(sides: dict[str, Run], rounds: int, secs: float, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Returns the steps per second of `clock` of each side in each round."""
    counts = {}
    for name, run in sides.items():
        run(20)
        start = clock()
        run(200)
        counts[name] = max(1, int(200 * secs / (clock() - start)))
    rates: dict[str, list[float]] = {name: [] for name in sides}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(sides), len(sides)):
            start = clock()
            sides[name](counts[name])
            rates[name].append(counts[name] / (clock() - start))
    return rates


def _rows(case: str, rates: dict[str, list[float]], second: str) -> list[dict[str, Any]]:
    metric = case.split()[0]
    of, unit = (1, f'train steps/{second}') if metric == 'train' else (NUM_ENVIRONMENTS, f'environment steps/{second}')
    return [
        {
            'case': case,
            'metric': metric,
            'ours': of * statistics.median(rates['dict']),
            'peer': of * statistics.median(rates['vector']),
            'limit': None,
            'ratio_to_peer': tables.ratio(rates['dict'], rates['vector']),
            'ratio_to_limit': None,
            'unit': unit,
            'rounds': len(rates['dict']),
        }
    ]


if __name__ == '__main__':
    sys.exit(main())
