"""Whether each agent for continuous actions learns the best action, whatever the unit of actions is.

    python -m benchmarks.action_units --json=action_units.json

Episodes have one step and the reward -(u - 0.5)^2, where u is the action's place within its bounds, from -1 to 1: the
best action is b / 2 for the bounds -b and b, and 750 for 0 and 1000. A run ends well if its greedy u is within 0.05 of
0.5: within 25 of the best action for 0 and 1000. What is in the file is not run again.
"""

import dataclasses
import functools
import time
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from benchmarks import command_line
from tests.testing.algorithms import ALGORITHMS
from tflearn.agents import awac, iql, sac, td3
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.optimization.conservative import Conservative
from tflearn.optimization.ensemble import Truncated
from tflearn.optimization.optimizers import OptimizerOptions

BATCH, STEPS, TOLERANCE = 64, 1_500, 0.05
BOUNDS = {'0.01': (-0.01, 0.01), '0.1': (-0.1, 0.1), '1': (-1, 1), '100': (-100, 100), '1000': (0, 1000)}
OBSERVATION = tf.TensorSpec((1,), tf.float32, 'observation')

_RATE, _SLOW = (OptimizerOptions(schedules.linear(rate, 1e-4, STEPS)) for rate in (1e-2, 3e-3))
_FREE = {'normalize_observations': False, 'normalize_rewards': False}
# What an algorithm needs besides to learn this task from actions of this spread.
SETTINGS: dict[str, dict[str, Any]] = {
    'recurrent_sac': {
        'network': NetworkOptions((16,), (16, 16), lstm_size=(8,)),
        'loss': sac.SACLoss(burn_in_steps=0),
    },
    'cql': {'optimizer': _SLOW, 'conservative': Conservative(0.01)},
    'cal_ql': {'optimizer': _SLOW, 'conservative': Conservative(0.01, calibrated=True)},
    'ddpg': {'optimizer': _SLOW},
    'tqc': {'truncated': Truncated(5, 1)},
    'td3_bc': {
        'network': NetworkOptions((16,), (16, 16, 16), activation='tanh'),
        'optimizer': OptimizerOptions({'critic': _RATE.learning_rate, 'actor': _SLOW.learning_rate}),
        'loss': td3.TD3Loss(behavior_cloning_alpha=1000.0),
    },
    'rebrac': {
        'network': NetworkOptions((16,), (16, 16, 16), activation='tanh'),
        'optimizer': OptimizerOptions({'critic': _RATE.learning_rate, 'actor': _SLOW.learning_rate}),
        'loss': td3.TD3Loss(behavior_cloning_alpha=1000.0, target_cloning_beta=0.001),
    },
    'ppo': _FREE,
    'a2c': _FREE,
    'v_mpo': _FREE,
    'bc': {'network': NetworkOptions((16,)), 'normalize_observations': False},
    'reinforce': {'network': NetworkOptions((16,), (16,))},
    'iql': {'loss': iql.IQLLoss(inverse_temperature=30.0)},
    'awac': {'loss': awac.AWACLoss(temperature=0.01)},
}
# Those that learn from actions of another policy; the others act themselves.
RECORDED, EXPERT = ('cql', 'cal_ql', 'td3_bc', 'rebrac', 'iql', 'awac'), ('bc',)
AGENTS = {name: each for name, each in ALGORITHMS.items() if 'continuous' in each.example.actions}


def main() -> None:
    """Runs what the file does not have, and prints the table."""
    parser = command_line.parser(__doc__, 'the results, which a further call continues')
    parser.add_argument('--agents', nargs='*', default=list(AGENTS), choices=list(AGENTS), help='which agents')
    parser.add_argument('--bounds', nargs='*', default=list(BOUNDS), choices=list(BOUNDS), help='which bounds')
    parser.add_argument('--seeds', type=int, default=5, help='runs of each')
    parser.add_argument('--first_seed', type=int, default=31, help='settings were chosen with those below')
    parser.add_argument('--quick', action='store_true', help='one short run each, to see whether this program works')
    options = parser.parse_args()
    steps, seeds = (2, 1) if options.quick else (STEPS, options.seeds)
    tf.get_logger().setLevel('ERROR')
    found = command_line.kept(options.json)
    print('| agent | bounds | greedy u of each seed | within 0.05 of 0.5 | slowest [CPU s] |\n|---|---|---|---|---|')
    for name in options.agents:
        for bounds in options.bounds:
            runs = []
            for seed in range(options.first_seed, options.first_seed + seeds):
                key = f'{name}/{bounds}/{seed}'
                if key not in found:
                    found[key] = _run(name, BOUNDS[bounds], seed, steps)
                    command_line.write(options.json, found)
                runs.append(found[key])
            good = sum(abs(run['greedy'] - 0.5) <= TOLERANCE for run in runs)
            low, high = BOUNDS[bounds]
            values = ', '.join(f'{run["greedy"]:.3f}' for run in runs)
            slowest = max(run['secs'] for run in runs)
            print(f'| {name} | [{low}, {high}] | {values} | {good} of {len(runs)} | {slowest:.0f} |', flush=True)


def _run(name: str, bounds: tuple[float, float], seed: int, steps: int) -> dict[str, float]:
    """Returns the greedy action's place within its bounds after training, and the CPU seconds that it took."""
    began, (low, high) = time.process_time(), bounds
    tf.keras.utils.set_random_seed(seed)
    spec = tensor_spec.BoundedTensorSpec((1,), tf.float32, low, high, 'action')
    agent, length = _make_agent(name, EnvironmentSpecs(OBSERVATION, spec))
    middle, half = (high + low) / 2, (high - low) / 2
    act = tf.function(lambda: _act(agent, BATCH), autograph=False)
    rows = functools.partial(_rows, agent, length, spec, name == 'reinforce')
    train = tf.function(lambda action, info: agent.train(rows(action, info)), autograph=False)
    random, recorded = np.random.default_rng(seed), name in (*RECORDED, *EXPERT)
    if name in EXPERT:
        actions = middle + half * (0.5 + random.normal(0, 0.1, (2_000, 1)))
    else:
        actions = random.uniform(low, high, (2_000 if recorded else BATCH, 1))
    for _ in range(steps):
        if 'queue' in AGENTS[name].example.data:
            step = act()
            train(step.action, step.info)
            continue
        if not recorded:
            actions = np.concatenate([actions, act().action.numpy()])
        train(tf.constant(random.choice(actions, BATCH), tf.float32), ())
    policy = agent.policy
    greedy = policy.action(ts.restart(tf.zeros((1, 1)), 1), policy.get_initial_state(1)).action.numpy()[0, 0]
    return {'greedy': float((greedy - middle) / half), 'secs': time.process_time() - began}


def _make_agent(name: str, specs: EnvironmentSpecs) -> tuple[Agent, int]:
    """Returns an agent, and the length of its sequences."""
    algorithm = AGENTS[name]
    length = 3 if name == 'recurrent_sac' else 2
    slicing = dataclasses.replace(algorithm.experience.slicing, sequence_length=length, stride=1)
    slicing = dataclasses.replace(slicing, store_policy_state=False)
    experience = dataclasses.replace(algorithm.experience, slicing=slicing)
    network = NetworkOptions((16,), None if 'queue' in algorithm.example.data else (16, 16))
    settings = {'network': network, 'optimizer': _RATE, **SETTINGS.get(name, {})}
    return algorithm.make(specs, experience, **settings), length


def _act(agent: Agent, size: int) -> Any:
    policy = agent.collect_policy
    return policy.action(ts.restart(tf.zeros((size, 1)), size), policy.get_initial_state(size))


def _rows(
    agent: Agent, length: int, spec: tensor_spec.BoundedTensorSpec, complete: bool, action: tf.Tensor, info: Any
) -> Any:
    """Returns sequences [B, length] of equal rows: the discount ends each episode after its step."""
    low, high = float(spec.minimum), float(spec.maximum)
    reward = -tf.square((action[:, 0] - (high + low) / 2) / ((high - low) / 2) - 0.5)
    zeros = tf.zeros_like(reward)
    if 'episode_return' in (agent.collect_data_spec.policy_info or ()):
        info = {'episode_return': reward}
    # Where the return of a complete episode is learnt from, the row is one.
    ends = (ts.StepType.FIRST, ts.StepType.LAST) if complete else (ts.StepType.MID, ts.StepType.MID)
    begins, ends = (tf.fill(tf.shape(reward), tf.constant(end)) for end in ends)
    rows = trajectory.Trajectory(begins, zeros[:, tf.newaxis], action, info, ends, reward, zeros)
    return tf.nest.map_structure(lambda leaf: tf.repeat(leaf[:, tf.newaxis], length, axis=1), rows)


if __name__ == '__main__':
    main()
