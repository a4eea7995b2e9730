"""How near is the cost to its limit, and the return to the best one under it? PPO, SAC and DQN with `costs.Limited`.

    python -m benchmarks.limits --root_dir=runs/limits

The task: a place on a line is to follow a goal, which jumps to another of five places in a tenth of the steps. The
reward of a step is 1 - 2 |place - goal|, about 0 for standing still; the cost is the square of the speed. DQN has five
speeds. The best return under the limit of the cost's mean is computed: min over m of max (E[return] - m (E[cost] -
limit)), by dynamic programming on a grid of places, with the speeds that lead from one to another: of DQN its five, of
the others 21. So these, which have all speeds, can pass it by a little.

Of the last policy the table has both ways to act: as collectors do, whose cost the limit is of, and greedily. Runs that
are there already are not made again.
"""

import functools
import itertools
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

import tflearn
from benchmarks import command_line
from tflearn.agents import dqn, ppo, sac
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing, Uniform
from tflearn.environments import info_costs, vector_env
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.transforms import costs, transformed

LIMIT, STEPS = 0.1, 50
GOALS, REACH, JUMPS = np.linspace(-0.8, 0.8, 5), 0.2, 0.1
SPEEDS = {'PPO': np.linspace(-1, 1, 21), 'SAC': np.linspace(-1, 1, 21), 'DQN': np.linspace(-1, 1, 5)}


class Following(gymnasium.Env):
    """The task; its observation is the place and the goal."""

    def __init__(self, speeds: Sequence[float] | None = None):
        """`speeds` are those of the actions 0, 1, ...; None: the action is the speed."""
        self._speeds = speeds
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        one = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = one if speeds is None else gymnasium.spaces.Discrete(len(speeds))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins in the middle."""
        super().reset(seed=seed)
        self._steps, self._place, self._goal = 0, 0.0, self.np_random.choice(GOALS)
        return np.float32([self._place, self._goal]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Moves; then the goal may jump."""
        speed = float(np.clip(action[0], -1, 1)) if self._speeds is None else float(self._speeds[action])
        self._place = float(np.clip(self._place + REACH * speed, -1, 1))
        reward = 1 - 2 * abs(self._place - self._goal)
        if self.np_random.random() < JUMPS:
            self._goal = self.np_random.choice(GOALS)
        self._steps += 1
        return np.float32([self._place, self._goal]), reward, False, self._steps == STEPS, {'cost': speed**2}


@functools.cache
def best_return(side: str) -> float:
    """Returns the most that an episode can return whose cost is within the limit on average."""
    places, cells = np.linspace(-1, 1, 101), np.round(SPEEDS[side] * REACH * 50).astype(int)
    after = np.clip(np.arange(101)[:, np.newaxis] + cells, 0, 100)
    rewards = 1 - 2 * np.abs(places - GOALS[:, np.newaxis])
    bounds = []
    for m in np.geomspace(0.01, 100, 400):
        values = np.zeros_like(rewards)
        for _ in range(STEPS):
            then = rewards + (1 - JUMPS) * values + JUMPS * values.mean(axis=0)
            values = (then[:, after] - m * SPEEDS[side] ** 2).max(axis=2)
        bounds.append(values[:, 50].mean() + m * LIMIT * STEPS)
    return float(min(bounds))


def _settings(side: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Returns an agent's factory, and the run's settings."""
    layers = (64, 64)
    network = NetworkOptions(layers, critic_fc_layer_params=layers if side == 'SAC' else None)
    num_train_steps = 10_000 if side == 'PPO' else 20_000
    optimizer = OptimizerOptions(schedules.linear(1e-3, 1e-4, num_train_steps))
    if side == 'PPO':  # an iteration of 1,000 environment steps has 50 train steps
        experience = Experience(
            slicing=Slicing(sequence_length=51, stride=50, cross_episodes=True),
            replay=Queue(max_size=16, max_policy_lag=2, versions_ahead=1, training=Iteration(10, 200)),
            batch=BatchItems(20),
        )
    else:  # a train step for two environment steps
        replay = Uniform(max_size=20_000, min_size=500, samples_per_insert=32.0)
        experience = Experience(replay=replay, batch=BatchItems(64))
    gamma = 1 - JUMPS / 2
    make = {
        'PPO': functools.partial(ppo.make_agent, loss=ppo.PPOLoss(gamma=gamma, lambda_=0.9)),
        'SAC': functools.partial(sac.make_agent, loss=sac.SACLoss(gamma=gamma)),
        'DQN': functools.partial(dqn.make_agent, gamma=gamma),
    }[side]
    settings = {'experience': experience, 'num_train_steps': num_train_steps}
    return functools.partial(make, network=network, optimizer=optimizer), settings


def _run(side: str, seed: int, root: pathlib.Path) -> dict[str, float]:
    """Trains; returns the last policy's return and cost of an episode, by how it acts, as parts of best and limit."""
    make_agent, settings = _settings(side)
    make_one = functools.partial(Following, SPEEDS['DQN'] if side == 'DQN' else None)
    make_environment = functools.partial(vector_env.in_process, functools.partial(info_costs.InfoCosts, make_one))
    tflearn.train(
        root_dir=root,
        make_environment=make_environment,
        make_agent=functools.partial(
            transformed.make_agent, make_agent=make_agent, transforms=[costs.Limited((None, LIMIT))]
        ),
        seed=seed,
        num_environments=20 if side == 'PPO' else 50,
        export_interval_steps=settings['num_train_steps'],
        num_episodes=1,
        learner_options=tflearn.LearnerOptions(summaries=tflearn.SummaryOptions(settings['num_train_steps'] // 20)),
        **settings,
    )
    found = {}
    for name in ('collect_policy', 'greedy_policy'):
        newest = max((root / 'policies' / name).iterdir())
        means = tflearn.evaluate(newest, make_environment, num_episodes=1_000, num_environments=100).means
        found[f'{name} return'] = means['return_0'] / best_return(side)
        found[f'{name} cost'] = means['return_1'] / (LIMIT * STEPS)
    return found


def main() -> None:
    """Prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--root_dir', type=pathlib.Path, required=True, help='keeps the runs')
    parser.add_argument('--sides', default='PPO,SAC,DQN')
    parser.add_argument('--seeds', type=int, default=5, help='runs of each side, with the seeds 1, 2, ...')
    options = parser.parse_args()
    sides, rows = options.sides.split(','), []
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for seed, side in itertools.product(range(1, options.seeds + 1), sides):
        root = options.root_dir / side / f'seed_{seed}'
        if not (parts := command_line.kept(root / 'limits.json')):
            parts = _run(side, seed, root)
            command_line.write(root / 'limits.json', parts)
        found[side].append(parts)
        print(f'{side}, seed {seed}: {parts}', file=sys.stderr, flush=True)
    for side, each in found.items():
        cells = [' '.join(f'{parts[name]:.3f}' for parts in each) for name in each[0]]
        rows.append([side, f'{best_return(side):.1f}', *cells])
    header = ['agent', 'best return', 'return / best', 'cost / limit', 'greedily: return / best', 'cost / limit']
    lines = [header, ['---'] * len(header), *rows]
    print('\n'.join(f'| {" | ".join(line)} |' for line in lines))


if __name__ == '__main__':
    main()
