"""What the learner's benchmarks train: agents of three sizes, and steps that fit them."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from tflearn.agents import dqn, sac
from tflearn.core.experience import BatchItems, Experience, Prioritized, Uniform
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

EPISODE_STEPS = 200
_NUM_FRAMES = 512


@dataclasses.dataclass(frozen=True)
class Case:
    """An agent and its data.

    Attributes:
      name: of the case.
      specs: of the environment.
      batch_size: sequences of a train step.
      make_agent: as the train job calls it.
      num_steps: train steps of one measurement.
      pixels: whether observations are images.
      make_peer_agent: makes TF-Agents' own agent of this kind; None where the benchmarks have none.
    """

    name: str
    specs: EnvironmentSpecs
    batch_size: int
    make_agent: Callable[[EnvironmentSpecs, tf.Variable, Experience], Agent]
    num_steps: int
    pixels: bool = False
    make_peer_agent: Callable[[EnvironmentSpecs, tf.Variable, Experience], Agent] | None = None

    def experience(self, prioritized: bool = False, **settings: Any) -> Experience:
        """Returns an experience whose both sides run free; `settings` are those of its replay."""
        replay = Prioritized(**settings) if prioritized else Uniform(**settings)
        return Experience(replay=replay, batch=BatchItems(self.batch_size))


def _dqn(specs: EnvironmentSpecs, train_step: tf.Variable, experience: Experience) -> Agent:
    return dqn.make_agent(specs, train_step, experience, network=NetworkOptions(fc_layer_params=(100, 50)))


def _dqn_of_tf_agents(specs: EnvironmentSpecs, train_step: tf.Variable, experience: Experience) -> Agent:
    del experience
    network = q_network.QNetwork(specs.observation, specs.action, fc_layer_params=(100, 50))
    optimizer = tf.compat.v1.train.AdamOptimizer(1e-3)
    return dqn_agent.DqnAgent(specs.time_step, specs.action, network, optimizer, train_step_counter=train_step)


def _pixel_dqn(specs: EnvironmentSpecs, train_step: tf.Variable, experience: Experience) -> Agent:
    """The network of Mnih et al. 2015."""
    convolutions = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    return dqn.make_agent(
        specs,
        train_step,
        experience,
        network=NetworkOptions(conv_layer_params=convolutions, fc_layer_params=(512,)),
        optimizer=OptimizerOptions(1e-4),
    )


def _specs(observation: tf.TensorSpec, action: tf.TensorSpec) -> EnvironmentSpecs:
    return EnvironmentSpecs(observation, action)


def _discrete(count: int) -> tf.TensorSpec:
    return tensor_spec.BoundedTensorSpec((), tf.int64, 0, count - 1, 'action')


CASES = {
    'dqn': Case(
        'DQN 4 -> 100-50 -> 2, batch 64',
        _specs(tensor_spec.BoundedTensorSpec((4,), tf.float32, -5.0, 5.0, 'observation'), _discrete(2)),
        64,
        _dqn,
        2000,
        make_peer_agent=_dqn_of_tf_agents,
    ),
    'sac': Case(
        'SAC 17/6, 256-256, batch 256',
        _specs(
            tensor_spec.BoundedTensorSpec((17,), tf.float32, -10.0, 10.0, 'observation'),
            tensor_spec.BoundedTensorSpec((6,), tf.float32, -1.0, 1.0, 'action'),
        ),
        256,
        lambda specs, train_step, experience: sac.make_agent(specs, train_step, experience),
        200,
    ),
    'pixels': Case(
        'DQN 84x84x4 uint8, batch 32',
        _specs(tensor_spec.BoundedTensorSpec((84, 84, 4), tf.uint8, 0, 255, 'observation'), _discrete(6)),
        32,
        _pixel_dqn,
        40,
        pixels=True,
    ),
}


def steps(case: Case, num_environments: int, seed: int = 0) -> Iterator[trajectory.Trajectory]:
    """Yields trajectories of numpy arrays [num_environments, ...] forever: episodes of 200 steps, then truncated."""
    random = np.random.default_rng(seed)
    age = np.arange(num_environments) * EPISODE_STEPS // num_environments
    first = np.zeros(num_environments, bool)
    started = np.zeros(num_environments, bool)
    while True:
        age = (age + 1) % EPISODE_STEPS
        last, first = age == EPISODE_STEPS - 1, (age == 0) | ~started
        started[:] = True
        yield trajectory.Trajectory(
            step_type=np.select([first, last], [0, 2], 1).astype(np.int32),
            observation=_observations(case, num_environments, random),
            action=_actions(case, num_environments, random),
            policy_info=(),
            next_step_type=np.select([last, age == EPISODE_STEPS - 2], [0, 2], 1).astype(np.int32),
            reward=random.normal(size=num_environments).astype(np.float32),
            discount=np.ones(num_environments, np.float32),
        )


def _observations(case: Case, count: int, random: np.random.Generator) -> np.ndarray:
    spec = case.specs.observation
    if not case.pixels:
        return random.normal(size=(count, *spec.shape)).astype(np.float32)
    return _frames(spec)[random.integers(0, _NUM_FRAMES, count)]


@functools.cache
def _frames(spec: tf.TensorSpec) -> np.ndarray:
    """A few squares on black, as in a game; noise would be nothing that a server could compress.

    They are made once, so that the time to draw them does not count.
    """
    random = np.random.default_rng(0)
    frames = np.zeros((_NUM_FRAMES, *spec.shape), np.uint8)
    for frame in frames:
        for row, column in random.integers(0, 76, (4, 2)):
            frame[row : row + 8, column : column + 8] = random.integers(50, 250)
    return frames


def _actions(case: Case, count: int, random: np.random.Generator) -> np.ndarray:
    spec = case.specs.action
    if spec.dtype.is_integer:
        return random.integers(0, int(spec.maximum) + 1, count)
    return random.uniform(-1, 1, (count, *spec.shape)).astype(np.float32)


def batch(case: Case, length: int = 2) -> trajectory.Trajectory:
    """Returns one batch of sequences [batch_size, length, ...] as tensors."""
    generator = steps(case, case.batch_size, seed=1)
    rows = [next(generator) for _ in range(length)]
    return tf.nest.map_structure(lambda *columns: tf.constant(np.stack(columns, axis=1)), *rows)
