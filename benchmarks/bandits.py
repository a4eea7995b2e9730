"""The regret of contextual bandits on a task whose best arm is known, in one process.

    python benchmarks/bandits.py --seeds=5

Each of 16 environments takes a step, then LinUCB and Thompson sampling add these 16 steps to their posterior once, and
neural epsilon-greedy (DQN with gamma 0) takes 8 train steps on batches of 64 of all steps so far. The regret is the
mean of the best arm less that of the chosen one, summed over all steps.
"""

import argparse
import json
import pathlib
import statistics
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.actors.actor import Actor
from tflearn.agents import dqn, linear_bandit
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.extensions.tasks import contextual_bandit
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.optimization.optimizers import OptimizerOptions

NUM_ENVIRONMENTS, NEURAL_STEPS, NEURAL_BATCH = 16, 8, 64
ALGORITHMS = {
    'LinUCB, alpha 1': {'exploration': 'ucb', 'alpha': 1.0},
    'LinUCB, alpha 0.3': {'exploration': 'ucb', 'alpha': 0.3},
    'Thompson, v 0.3': {'exploration': 'thompson', 'alpha': 0.3},
    'greedy linear (alpha 0)': {'exploration': 'ucb', 'alpha': 0.0},
    'neural epsilon-greedy': None,
    'random': None,
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


def _agent(name: str, seed: int, specs: EnvironmentSpecs, train_step: tf.Variable) -> Agent:
    tf.keras.utils.set_random_seed(seed)
    if ALGORITHMS[name]:
        made = linear_bandit.LinearOptions(**ALGORITHMS[name])
        return linear_bandit.make_agent(specs, train_step, linear_bandit.EXPERIENCE, options=made)
    experience = Experience(replay=Uniform(), batch=BatchItems(NEURAL_BATCH))
    epsilon = 1.0 if name == 'random' else schedules.linear(1.0, 0.05, 2_000)
    rate = schedules.linear(1e-3, 1e-4, 4_000)
    settings = {'network': NetworkOptions(fc_layer_params=(100, 100)), 'gamma': 0.0, 'double': False, 'huber': False}
    return dqn.make_agent(specs, train_step, experience, optimizer=OptimizerOptions(rate), epsilon=epsilon, **settings)


def _regrets(name: str, seed: int, num_steps: int) -> np.ndarray:
    """Returns the sum of the regrets so far, after each step of all environments."""
    environments, rows, regrets = contextual_bandit.make(NUM_ENVIRONMENTS, seed=1_000 * seed), [], []
    agent = _agent(name, seed, environments.specs, create_train_step())
    agent.initialize()
    actor, seen = Actor(environments, agent.collect_policy, [rows.append]), None
    random, train = np.random.default_rng(seed), tf.function(agent.train)
    for _ in range(num_steps // NUM_ENVIRONMENTS):
        rows.clear()
        actor.run(1)
        regrets.append(environments.info['regret'].sum())
        actor.run(1)  # the boundary row: the next episode's reset
        batch = tf.nest.map_structure(lambda *leaves: np.stack(leaves, 1), *rows)
        if ALGORITHMS[name]:
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
