"""The conformance matrix: every agent, kind of observation, of action, and path of the data, as a user's run.

A cell is 20 train steps of `tflearn.train` or of the jobs, with their defaults but for small sizes. Then its policy is
loaded in a process that has TensorFlow alone, whose actions are those of `tflearn.load_policy`, and acts for an episode
in an environment that takes legal actions only. A cell that cannot work is refused in one line by the run's start.

A cell of which only the agent, the observation or its network is new can do without a run: four train steps, compiled
as a learner does it, and an export. What moves the data sees a nest of arrays, whatever the network is.
"""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from gymnasium import spaces

import tflearn
from tests.agents import example_data
from tests.testing import jobs, structured
from tests.testing.algorithms import ALGORITHMS, Algorithm
from tests.testing.plain_loader import PlainLoader
from tflearn.core.experience import BatchItems, Experience, Iteration, Prioritized, Queue, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.data.reader import Dataset
from tflearn.environments import pacing, vector_env
from tflearn.files.run_dir import RunDir
from tflearn.jobs import run as job_run
from tflearn.jobs.collect import collect
from tflearn.jobs.policy_exports import ExportOptions, PolicyExports
from tflearn.jobs.record import Quota, record
from tflearn.jobs.train import train
from tflearn.jobs.train_offline import train_offline
from tflearn.jobs.train_settings import Initial
from tflearn.learner.stop_conditions import DataStopConditions, StopConditions
from tflearn.networks import own_heads, sets
from tflearn.networks.networks import NetworkOptions
from tflearn.policies import signatures, versions
from tflearn.replay import reader
from tflearn.sampling.episode_files import Reading
from tflearn.transforms import normalize, transformed

NUM_TRAIN_STEPS = 20
BRIEF_TRAIN_STEPS = 4  # an actor may be trained in some steps only
TIMEOUT_SECS = 600.0
STEP_INTERVAL_SECS = 0.01
STORED = {'max_size': 64, 'min_size': 1}

IN_PROCESS = ('synchronous', 'worker processes')
# Where items come from -> the paths on which they do.
PATHS_OF = {
    'uniform': (*IN_PROCESS, 'mirror', 'server'),
    'prioritized': ('prioritized',),
    'queue': (*IN_PROCESS, 'queue'),
    'recorded': ('recorded',),
}
PATHS = ('synchronous', 'worker processes', 'mirror', 'server', 'prioritized', 'queue', 'recorded')

ACTIONS: dict[str, spaces.Space[Any]] = {
    'discrete': structured.CHOICE,
    'continuous': structured.CONTINUOUS,
    'multi-discrete': structured.CATEGORIES,
    'masked discrete': structured.CHOICE,
    'masked multi-discrete': structured.CATEGORIES,
    'nested': spaces.Tuple((structured.CHOICE, spaces.Dict(move=structured.CONTINUOUS, kinds=structured.CATEGORIES))),
}
# Settings of an algorithm come after all algorithms: `cover` takes first what comes first.
AGENTS = dict(sorted(ALGORITHMS.items(), key=lambda item: item[1].is_variant))
_PREVIOUS = NetworkOptions((8,), lstm_size=(4,), previous_action=True, previous_reward=True)
_impala = ALGORITHMS['impala']
AGENTS['impala_previous'] = _impala._replace(example=dataclasses.replace(_impala.example, network=_PREVIOUS))
_BETA = dataclasses.replace(ALGORITHMS['ppo'].example, network=NetworkOptions((8,), make_head=own_heads.beta))
_BETA = dataclasses.replace(_BETA, actions=('continuous', 'nested'))
AGENTS['ppo_beta'] = ALGORITHMS['ppo']._replace(example=_BETA)
# Transforms of observations with floats, as the packaged gin files have them.
TRANSFORMS: dict[str, Callable[[], list[Any]]] = {'td3_bc': lambda: [normalize.Observations()]}

VECTORS, PICTURE = (structured.TASKS[name][0] for name in ('dict of vectors', 'picture and vector'))
CATEGORY = spaces.Discrete(5)
IMAGE = spaces.Box(0, 255, (12, 12, 3), np.uint8)


def _joined(parts: Any) -> tf.Tensor:
    """Returns floats [B, n] of any observation."""
    flat = [
        tf.reshape(tf.cast(leaf, tf.float32), (-1, leaf.shape[1:].num_elements())) for leaf in tf.nest.flatten(parts)
    ]
    return tf.concat(flat, axis=-1)


def _sequential(*layers: Callable[[], tf.keras.layers.Layer]) -> Callable[[Any, str], tf.keras.Model]:
    dense = functools.partial(tf.keras.layers.Dense, 8, 'relu')
    chosen = (functools.partial(tf.keras.layers.Lambda, _joined), dense, *layers, dense)
    return lambda spec, name: tf.keras.Sequential([make() for make in chosen], name=name)


def _functional(spec: Any, name: str) -> tf.keras.Model:
    inputs = tf.nest.map_structure(lambda leaf: tf.keras.Input(leaf.shape, dtype=leaf.dtype), spec)
    features = tf.keras.layers.Lambda(_joined)(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(8, 'relu')(features), name=name)


class _Subclassed(tf.keras.Model):
    """Calls its layers by its own code, another one in training."""

    def __init__(self, name: str):
        super().__init__(name=name)
        self.body = [tf.keras.layers.Dense(8, 'relu'), tf.keras.layers.Dense(8, 'tanh')]

    def call(self, parts: Any, training: bool = False) -> tf.Tensor:
        features = self.body[0](_joined(parts))
        return self.body[1](features + 0.01 if training else features)


_layers = tf.keras.layers
NO_FLOATS = ('image', 'categories')
# The space, and what makes the network of one's own, or a layer for the part 'size'; or neither.
OBSERVATIONS: dict[str, tuple[spaces.Space[Any], Any]] = {
    'vector': (structured.VECTOR, None),
    'image': (IMAGE, None),
    'dict of vectors': (VECTORS, None),
    'picture and vector': (PICTURE, None),
    'categories': (spaces.Dict(kind=CATEGORY, parts=structured.CATEGORIES, flags=spaces.MultiBinary(4)), None),
    'tuple': (spaces.Tuple((structured.VECTOR, CATEGORY)), None),
    'nested dict': (
        spaces.Dict(robot=spaces.Dict(arm=structured.VECTOR, tools=spaces.Tuple((CATEGORY, structured.IMAGE)))),
        None,
    ),
    'tuple of images': (spaces.Tuple((IMAGE, structured.FLOAT_IMAGE)), None),
    'set of nodes': (structured.TASKS['set of nodes'][0], 'set'),
    'LayerNormalization': (VECTORS, _sequential(_layers.LayerNormalization)),
    'BatchNormalization': (VECTORS, _sequential(_layers.BatchNormalization)),
    'Dropout': (VECTORS, _sequential(functools.partial(_layers.Dropout, 0.1))),
    'functional model': (PICTURE, _functional),
    'subclassed model': (VECTORS, lambda spec, name: _Subclassed(name)),
    'preprocessing layers': (spaces.Dict(size=spaces.Box(0.0, 99.0, (1,), np.float32), camera=IMAGE), 'layers'),
}
Cell = tuple[str, str, str, str]  # agent, observation, action, path
FACTORS = (AGENTS, OBSERVATIONS, ACTIONS, PATHS)


def possible(agent: str, observation: str, action: str, path: str) -> bool:
    """Returns whether a cell is trained; else it is refused."""
    example = AGENTS[agent].example
    has_network = example.network is not None or OBSERVATIONS[observation][1] in (None, 'set')
    paths = [path for data in example.data for path in PATHS_OF[data]]
    return action.removeprefix('masked ') in example.actions and path in paths and has_network


def cover(size: int, chosen: Iterable[Cell] = ()) -> list[Cell]:
    """Returns possible cells that have every possible choice of `size` factors, beginning with `chosen`."""
    parts = {
        cell: set(itertools.combinations(enumerate(cell), size))
        for cell in itertools.product(*FACTORS)
        if possible(*cell)
    }
    cells = [*chosen]
    missing = set().union(*parts.values()).difference(*(parts[cell] for cell in cells))
    while missing:
        cells.append(max(parts, key=lambda cell: len(missing & parts[cell])))
        missing -= parts.pop(cells[-1])
    return cells


def first() -> tuple[list[Cell], list[Cell]]:
    """Returns cells that have every agent, observation, action and path.

    Returns:
      Those of which the action or the path is new; those of which the agent or the observation is.
    """
    whole: list[Cell] = []
    brief: list[Cell] = []
    seen: set[str] = set()
    for cell in cover(1):
        (brief if seen.issuperset(cell[2:]) else whole).append(cell)
        seen.update(cell[2:])
    return whole, brief


def refused() -> list[Cell]:
    """Returns a cell for each action, path and kind of network that an agent refuses, which can work but for that."""
    cells = []
    for agent, algorithm in AGENTS.items():
        example = algorithm.example
        right = (agent, 'vector', example.actions[0], PATHS_OF[example.data[0]][0])
        wrong = [(agent, right[1], action, right[3]) for action in ACTIONS]
        wrong += [(agent, right[1], right[2], path) for path in PATHS]
        wrong += [(agent, observation, *right[2:]) for observation in OBSERVATIONS]
        cells += [cell for cell in wrong if not possible(*cell)]
    return cells


def _space(observation: str, action: str) -> spaces.Space[Any]:
    space = OBSERVATIONS[observation][0]
    if not action.startswith('masked'):
        return space
    size = 3 if action == 'masked discrete' else 5
    return spaces.Dict(mask=spaces.MultiBinary(size), rest=space)


def _make_agent(agent: str, observation: str, action: str) -> Callable[..., Any]:
    """Returns the agent's factory with all of its arguments."""
    algorithm, network = AGENTS[agent], OBSERVATIONS[observation][1]
    arguments, prefix = algorithm.arguments, ''
    if action.startswith('masked'):
        prefix = 'rest.'
        if algorithm.takes('action_mask'):
            arguments['action_mask'] = 'mask'
    own: dict[str, Any] = {}
    if network == 'layers':
        layers = [tf.keras.layers.Discretization([1.0, 8.0, 64.0]), tf.keras.layers.Embedding(4, 3)]
        own = {'preprocessing_layers': {prefix + 'size': tf.keras.Sequential(layers)}}
    elif network == 'set' and algorithm.example.network is not None:
        names = {'nodes': prefix + 'graph.nodes', 'mask': prefix + 'graph.present'}
        own = {'make_network': functools.partial(sets.make_network, **names, units=8, num_heads=2, num_blocks=1)}
    elif callable(network):
        own = {'make_network': network}
    if own:
        arguments['network'] = dataclasses.replace(arguments.get('network', NetworkOptions()), **own)
    if observation == 'image' and algorithm.default('normalize_observations'):
        arguments['normalize_observations'] = False  # as for Atari: one image has no floats
    made = functools.partial(algorithm.module.make_agent, **arguments)
    if agent in TRANSFORMS and observation not in NO_FLOATS:
        made = functools.partial(transformed.make_agent, make_agent=made, transforms=TRANSFORMS[agent]())
    return made


def _experience(algorithm: Algorithm, path: str) -> Experience:
    """Returns the algorithm's own, with small sizes, and the replay of the path."""
    slicing, own = algorithm.experience.slicing, algorithm.experience.replay
    if path == 'recorded':  # which has no states of a policy's memory
        slicing = dataclasses.replace(slicing, store_policy_state=False)
    training = Iteration(2, 8) if isinstance(getattr(own, 'training', None), Iteration) else None
    replay: Any = Uniform(**STORED)
    if path in ('mirror', 'server'):
        replay = Uniform(**STORED, sampling='learner' if path == 'mirror' else 'server')
    elif path == 'prioritized':
        replay = Prioritized(**STORED)
    elif path == 'queue' or (path in IN_PROCESS and isinstance(own, Queue)):
        replay = Queue(max_size=8, training=training)
    return Experience(slicing, replay, BatchItems(2))


class Run:
    """A cell's run, in a directory of its own."""

    def __init__(self, cell: Cell, folder: pathlib.Path):
        """Takes an empty folder."""
        self.agent, self.observation, self.action, self.path = cell
        self.folder, self.made = folder, []
        self._space = _space(self.observation, self.action)
        self._parts = {
            'make_environment': self._make_environments,
            'make_agent': _make_agent(self.agent, self.observation, self.action),
            'experience': _experience(AGENTS[self.agent], self.path),
        }

    def make_one(self) -> structured.Random:
        """Makes one environment."""
        return structured.Random(self._space, ACTIONS[self.action])

    def _make_environments(self, num_environments: int, seed: int) -> vector_env.VectorEnvironment:
        make = vector_env.in_worker_processes if self.path == 'worker processes' else vector_env.in_process
        one = functools.partial(structured.Random, self._space, ACTIONS[self.action])
        self.made.append(make(one, num_environments, seed))
        return self.made[-1]

    def _make_paced(self, num_environments: int, seed: int) -> Any:
        """Makes the environments of a collector."""
        if self.path == 'queue':  # whose collector waits for the learner
            return self._make_environments(num_environments, seed)
        # While the learner compiles, one that is never blocked would take more of the processor than the learner.
        return pacing.make(num_environments, seed, self._make_environments, STEP_INTERVAL_SECS)

    def train(self) -> None:
        """Trains; a ValueError or TypeError refuses the cell."""
        root = self.folder / 'run'
        exports = ExportOptions(('greedy_policy',))
        if self.path == 'recorded':
            self._train_recorded(RunDir(root), exports)
        elif self.path not in IN_PROCESS:
            self._train_jobs(root, exports)
        else:
            tflearn.train(
                **self._parts,
                root_dir=root,
                num_train_steps=NUM_TRAIN_STEPS,
                num_episodes=1,
                num_environments=2,
                export_interval_steps=NUM_TRAIN_STEPS,
                exports=exports,
                seed=1,
            )
        assert not sum(environment.num_rebuilt for environment in self.made), 'one was given an illegal action'

    def train_briefly(self) -> None:
        """Takes train steps on random items, and exports the policy; without a run, its replay and its collection."""
        with contextlib.closing(self._make_environments(1, 1)) as environment:
            specs = environment.specs
        agent = self._parts['make_agent'](specs, create_train_step(), self._parts['experience'])
        agent.initialize()
        slicing = self._parts['experience'].slicing
        items = example_data.sequences(agent, 4, slicing.sequence_length)
        if slicing.store_policy_state:
            items = example_data.with_stored_states(items, agent)
        items, train = example_data.complete_episodes(items), tf.function(agent.train, autograph=False)
        before = [variable.numpy() for variable in agent.policy.variables()]
        assert np.isfinite([train(items).loss for _ in range(BRIEF_TRAIN_STEPS)]).all()
        assert int(agent.train_step_counter) == BRIEF_TRAIN_STEPS
        after = agent.policy.variables()
        assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True)), 'the policy has learned'
        exports = PolicyExports(agent, RunDir(self.folder / 'run'), ExportOptions(('greedy_policy',)), dict)
        exports.export(BRIEF_TRAIN_STEPS)
        exports.wait()

    def _train_recorded(self, run_dir: RunDir, exports: ExportOptions) -> None:
        data, once = self.folder / 'data', {}
        if self.agent.startswith('linear_bandit'):
            once = {'reading': Reading(order='epochs'), 'data_stop_conditions': DataStopConditions(max_epochs=1)}
        record(
            run=job_run.Run(run_dir),
            make_environment=self._make_environments,
            output=str(data),
            quota=Quota(num_steps=100) if once else Quota(8),
            num_environments=2,
            policy='random' if not self.action.startswith('masked') else _legal,
        )
        train_offline(
            run=job_run.Run(run_dir),
            dataset=Dataset([str(data)]),
            make_agent=self._parts['make_agent'],
            experience=self._parts['experience'],
            stop_conditions=StopConditions(num_train_steps=NUM_TRAIN_STEPS),
            exports=exports,
            initial=Initial(seed=1),
            **once,
        )

    def _train_jobs(self, root: pathlib.Path, exports: ExportOptions) -> None:
        run = jobs.SmallRun(root)
        run.factories = lambda: self._parts  # type: ignore[method-assign]
        soon = mock.patch.object(reader, '_CHECK_CLOSED_MS', 300)  # so that streams end soon after they are closed
        with soon, contextlib.closing(run):
            run.start_replay()
            collector = run.start(collect, num_environments=2, make_environment=self._make_paced)
            run.start(train, num_train_steps=NUM_TRAIN_STEPS, exports=exports).join(TIMEOUT_SECS)
            collector.join(TIMEOUT_SECS)

    def check(self, plain: PlainLoader, num_train_steps: int = NUM_TRAIN_STEPS) -> None:
        """Loads the policy without tflearn, compares actions, and acts for an episode.

        Args:
          plain: loads it.
          num_train_steps: that it has trained at least.
        """
        folder = RunDir(self.folder / 'run').policy('greedy_policy')
        policy = tflearn.load_policy(folder / str(versions.newest_version(folder)))
        assert policy.train_step >= num_train_steps
        plain.load(policy.path)
        environment = self.make_one()
        observation, _ = environment.reset(seed=1)
        ended, reward, rewards = False, 0.0, 0.0
        while not ended:
            action = policy(observation, reward)
            inputs = dict(signatures.flat(signatures.to_plain(observation), 'observation'))
            if policy.loaded.takes_reward:
                inputs['reward'] = np.float32(reward)
            found = plain.act({name: np.asarray(value)[np.newaxis] for name, value in inputs.items()})
            for name, value in signatures.flat(signatures.to_plain(action), 'action'):
                np.testing.assert_allclose(found[name][0], value, rtol=1e-5, atol=1e-6)
            observation, reward, ended, _, _ = environment.step(action)
            rewards += reward
        assert rewards == structured.EPISODE_STEPS


def _legal(observation: Any) -> Any:
    """Returns legal actions [B, ...] of masked observations, as data of another system would have them."""
    mask = np.asarray(observation['mask'], bool)
    if mask.shape[1] == 3:
        return mask.argmax(axis=1)
    return np.stack([mask[:, :2].argmax(axis=1), mask[:, 2:].argmax(axis=1)], axis=1)


def refusal(cell: Cell, folder: pathlib.Path) -> str:
    """Starts a run that cannot work; returns the error."""
    try:
        Run(cell, folder).train()
    except (ValueError, TypeError) as error:
        return str(error)
    raise AssertionError(f'{cell} was trained')
