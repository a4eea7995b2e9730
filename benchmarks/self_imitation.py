"""Does PPO find deep sea's treasure with recorded episodes, of which few found it?

    python benchmarks/self_imitation.py --seeds 11 12 13 14 15

Both sides are PPO in one process; one has `Demonstrations`: 200 episodes of the way to the treasure with --random of
the actions drawn. A run ends at a mean return of 0.9 (the best is 0.99), confirmed by a second evaluation, or after
--num_train_steps. Prints the environment steps that each took, and the last mean return.
"""

import argparse
import functools
import pathlib
import sys
import tempfile

import numpy as np

import tflearn
from tflearn.agents import ppo
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing
from tflearn.core.types import specs_of
from tflearn.data import arrays
from tflearn.data.demonstrations import Demonstrations
from tflearn.data.reader import Dataset
from tflearn.extensions.tasks import deep_sea
from tflearn.optimization.optimizers import OptimizerOptions

SIZE, EPISODES, GOAL = 15, 200, 0.9


def main() -> int:
    """Makes the runs, and prints the table; returns 1 if a run with episodes does not reach the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, nargs='+', default=[11, 12, 13, 14, 15])
    parser.add_argument('--random', type=float, default=0.2, help='the share of random actions in recorded episodes')
    parser.add_argument('--num_train_steps', type=int, default=3_000)
    options = parser.parse_args()
    reached = []
    print('| seed | side | environment steps | mean return |\n|---|---|---|---|')
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(temporary)
        returns = _record(root / 'data', options.random)
        sides = {'PPO': {}, 'PPO, imitating': {'demonstrations': Demonstrations(Dataset([str(root / 'data')]))}}
        for seed in options.seeds:
            for side, given in sides.items():
                run = _run(root / f'{side}_{seed}', seed, options.num_train_steps, **given)
                last = run.evaluations[-1]['mean_return']
                if given:
                    reached.append(last >= GOAL)
                print(f'| {seed} | {side} | {run.env_steps:,} | {last:.2f} |', flush=True)
    print(f'recorded: mean return {np.mean(returns):.2f}, {np.mean(np.array(returns) > 0.5):.0%} found the treasure')
    return int(not all(reached))


def _record(directory: pathlib.Path, random_share: float) -> list[float]:
    """Writes the recorded episodes, and returns their returns."""
    sea, random = deep_sea.DeepSea(SIZE), np.random.default_rng(0)
    rows, returns = [], []
    for episode in range(EPISODES):
        observation, ended, total = sea.reset()[0], False, 0.0
        while not ended:
            way = sea.right[divmod(int(np.argmax(observation)), SIZE)]
            action = int(random.integers(2) if random.random() < random_share else way)
            following, reward, ended, *_ = sea.step(action)
            rows.append((observation, action, reward, episode))
            observation, total = following, total + reward
        returns.append(total)
    observations, actions, rewards, episodes = map(np.array, zip(*rows, strict=True))
    specs = specs_of(functools.partial(deep_sea.make, size=SIZE))
    arrays.from_arrays(directory, observations, actions, np.float32(rewards), episode=episodes, specs=specs)
    return returns


def _run(root: pathlib.Path, seed: int, num_train_steps: int, **settings: object) -> tflearn.TrainedRun:
    experience = Experience(
        Slicing(sequence_length=17, stride=16, cross_episodes=True),
        Queue(max_size=64, training=Iteration(num_epochs=10, minibatch_steps=64)),
        BatchItems(32),
    )
    make_agent = functools.partial(
        ppo.make_agent, loss=ppo.PPOLoss(entropy_coefficient=0.01), optimizer=OptimizerOptions(1e-3)
    )
    return tflearn.train(
        root_dir=root,
        mode='synchronous',
        make_environment=functools.partial(deep_sea.make, size=SIZE),
        make_agent=make_agent,
        experience=experience,
        num_train_steps=num_train_steps,
        target_return=GOAL,
        export_interval_steps=240,
        num_environments=32,
        seed=seed,
        **settings,
    )


if __name__ == '__main__':
    sys.exit(main())
