"""The regret of contextual bandits on a task whose best arm is known, in one process.

    python benchmarks/bandits.py --seeds=5

Each of 16 environments takes a step, then the linear bandits add these 16 steps to their posterior once, and the neural
ones (DQN with gamma 0) take 8 train steps on batches of 64 of all steps so far. The regret is the mean of the best arm
less that of the chosen one, summed over all steps. SquareCB's gamma is a factor times the root of the steps so far.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import epsilon_greedy_policy

from tflearn.actors.actor import Actor
from tflearn.agents import dqn, linear_bandit, value_exploration
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.extensions.tasks import contextual_bandit
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.optimization.optimizers import OptimizerOptions

NUM_ENVIRONMENTS, NEURAL_STEPS, NEURAL_BATCH = 16, 8, 64


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """What is compared.

    Attributes:
      linear: the settings of a linear bandit; None is a neural one.
      gamma: of SquareCB, the factor of the root of the steps.
      in_epochs: whether that stays the same in epochs that double.
      epsilon: the share of random arms, a number, or a schedule of train steps.
    """

    linear: dict[str, Any] | None = None
    gamma: float | None = None
    in_epochs: bool = False
    epsilon: Any = 0.0


_FALLING = schedules.linear(1.0, 0.05, 2_000)
ALGORITHMS = {
    'LinUCB, alpha 1': Algorithm({'exploration': 'ucb', 'alpha': 1.0}),
    'LinUCB, alpha 0.3': Algorithm({'exploration': 'ucb', 'alpha': 0.3}),
    'Thompson, v 0.3': Algorithm({'exploration': 'thompson', 'alpha': 0.3}),
    'linear SquareCB, gamma 3': Algorithm({}, 3.0),
    'linear SquareCB, gamma 10': Algorithm({}, 10.0),
    'linear SquareCB, gamma 30': Algorithm({}, 30.0),
    'linear SquareCB, gamma 10, in epochs': Algorithm({}, 10.0, in_epochs=True),
    'linear epsilon-greedy, 0.1': Algorithm({'alpha': 0.0}, epsilon=0.1),
    'linear epsilon-greedy, 0.02': Algorithm({'alpha': 0.0}, epsilon=0.02),
    'greedy linear (alpha 0)': Algorithm({'alpha': 0.0}),
    'neural SquareCB, gamma 10': Algorithm(gamma=10.0),
    'neural epsilon-greedy': Algorithm(epsilon=_FALLING),
    'random': Algorithm(epsilon=1.0),
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, default=5, help='runs of each algorithm, with the seeds 1, 2, ...')
    parser.add_argument('--steps', type=int, default=8_000, help='environment steps of a run')
    parser.add_argument('--json', type=pathlib.Path, default=None, help='writes the results there')
    parser.add_argument('--quick', action='store_true', help='one short run each, to see whether this program works')
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.steps = 1, 64
    tf.get_logger().setLevel('ERROR')
    rows, results = [], {}
    for name in ALGORITHMS:
        curves = [_regrets(name, seed, options.steps) for seed in range(1, options.seeds + 1)]
        results[name] = [curve.tolist() for curve in curves]
        parts = [1, 8]  # after an eighth of the steps, and after all
        totals = [[curve[len(curve) * part // 8 - 1] for curve in curves] for part in parts]
        last = [(curve[-1] - curve[len(curve) * 7 // 8 - 1]) / (options.steps / 8) for curve in curves]
        cells = [f'{statistics.median(each):.0f} ({min(each):.0f}-{max(each):.0f})' for each in totals]
        rows.append([name, *cells, f'{statistics.median(last):.4f}'])
    header = ['algorithm', f'regret after {options.steps // 8:,} steps', f'after {options.steps:,}']
    lines = [[*header, 'per step in the last eighth'], ['---'] * 4, *rows]
    print('\n'.join(f'| {" | ".join(line)} |' for line in lines))
    if options.json:
        options.json.write_text(json.dumps(results))


def _agent(algorithm: Algorithm, seed: int, specs: EnvironmentSpecs, train_step: tf.Variable) -> Agent:
    tf.keras.utils.set_random_seed(seed)
    exploration = None
    if algorithm.gamma is not None:
        steps = NUM_ENVIRONMENTS if algorithm.linear is not None else NUM_ENVIRONMENTS / NEURAL_STEPS
        gamma = schedules.power(algorithm.gamma * steps**0.5, 0.5)  # of train steps
        exploration = value_exploration.SquareCB(schedules.in_epochs(gamma) if algorithm.in_epochs else gamma)
    if algorithm.linear is not None:
        made = linear_bandit.LinearOptions(**{'exploration': exploration or 'ucb', **algorithm.linear})
        return linear_bandit.make_agent(specs, train_step, linear_bandit.EXPERIENCE, options=made)
    experience = Experience(replay=Uniform(), batch=BatchItems(NEURAL_BATCH))
    rate = schedules.linear(1e-3, 1e-4, 4_000)
    return dqn.make_agent(
        *(specs, train_step, experience),
        network=NetworkOptions(fc_layer_params=(100, 100)),
        optimizer=OptimizerOptions(rate),
        gamma=0.0,
        double=False,
        huber=False,
        epsilon=algorithm.epsilon,
        exploration=exploration,
    )


def _regrets(name: str, seed: int, num_steps: int) -> np.ndarray:
    """Returns the sum of the regrets so far, after each step of all environments."""
    environments, rows, regrets = contextual_bandit.make(NUM_ENVIRONMENTS, seed=1_000 * seed), [], []
    algorithm = ALGORITHMS[name]
    agent = _agent(algorithm, seed, environments.specs, create_train_step())
    agent.initialize()
    policy = agent.collect_policy
    if algorithm.linear is not None and algorithm.epsilon:
        policy = epsilon_greedy_policy.EpsilonGreedyPolicy(policy, algorithm.epsilon)
    actor, seen = Actor(environments, policy, [rows.append]), None
    random, train = np.random.default_rng(seed), tf.function(agent.train)
    for _ in range(num_steps // NUM_ENVIRONMENTS):
        rows.clear()
        actor.run(1)
        regrets.append(environments.info['regret'].sum())
        actor.run(1)  # the boundary row: the next episode's reset
        batch = tf.nest.map_structure(lambda *leaves: np.stack(leaves, 1), *rows)
        if algorithm.linear is not None:
            train(tf.nest.map_structure(tf.constant, batch))
        elif name != 'random':
            seen = batch if seen is None else tf.nest.map_structure(lambda *both: np.concatenate(both), seen, batch)
            for _ in range(NEURAL_STEPS):
                train(_draw(seen, random))
    environments.close()
    return np.cumsum(regrets)


def _draw(seen: Any, random: np.random.Generator) -> Any:
    """Returns a batch of items drawn from all."""
    chosen = random.integers(0, len(seen.reward), NEURAL_BATCH)
    return tf.nest.map_structure(lambda leaf: tf.constant(leaf[chosen]), seen)


if __name__ == '__main__':
    main()
