"""How far off-policy evaluation is from values that are known, and how often its interval holds them.

    python -m benchmarks.off_policy --tasks bandit nim pendulum cartpole --data_sets=100 --json=FILE

Of each task one run trains a policy. The behaviour policy, which takes more random actions, records data sets with
seeds of their own; each is evaluated as `tflearn-evaluate --data` does. The value is the mean over many episodes that
the evaluated policy plays itself. The table has, of each estimator: the mean error, the root of the mean square error,
and of the 95% interval how often it holds the value, and its median width.
"""

import argparse
import collections
import dataclasses
import functools
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import command_line, learning
from tflearn.core.types import EnvironmentFactory
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.environments import gymnasium_env
from tflearn.extensions.product.data_evaluation import evaluate_on_data
from tflearn.extensions.tasks import contextual_bandit, nim
from tflearn.files.run_dir import RunDir
from tflearn.jobs.record import Quota, record
from tflearn.jobs.run import Run

_OWN_SEED, _FIRST_SEED = 1_000_000, 1_000  # of the evaluated policy's own episodes; of the data sets'


@dataclasses.dataclass(frozen=True)
class Task:
    """What is evaluated.

    Attributes:
      gin_file: of the run that trains the policy.
      make_environment: makes its environment.
      epsilon: the share of random actions of the evaluated policy.
      behaviour_epsilon: that of the behaviour policy.
      episodes: of a data set.
      policy: the name of the policy.
      num_train_steps: of the run; None takes those of the gin file.
      options: of `OpeOptions`.
    """

    gin_file: str
    make_environment: EnvironmentFactory
    epsilon: float
    behaviour_epsilon: float
    episodes: int
    policy: str = 'greedy_policy'
    num_train_steps: int | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


TASKS = {
    'bandit': Task(
        'neural_bandit_contextual_bandit',
        contextual_bandit.make,
        0.1,
        0.5,
        300,
        options={'low': -2.0, 'high': 2.0},
    ),
    'nim': Task(
        'dqn_nim',
        functools.partial(nim.make, heaps=(3, 4, 5), skill=0.5),
        0.1,
        0.4,
        300,
        num_train_steps=3_000,
        options={'low': -1.0, 'high': 1.0, 'whole': True},
    ),
    'pendulum': Task(
        'ppo_pendulum',
        functools.partial(gymnasium_env.make, 'Pendulum-v1', max_episode_steps=20),
        0.1,
        0.3,
        300,
        policy='raw_policy',
        num_train_steps=2_000,
        options={'gamma': 0.95, 'low': -16.28, 'high': 0.0},
    ),
    # As in docs/your-data.md; the steps after 100 count less than 0.6% each.
    'cartpole': Task(
        'dqn_cartpole',
        functools.partial(gymnasium_env.make, 'CartPole-v1'),
        0.1,
        0.3,
        100,
        num_train_steps=1_500,
        options={'gamma': 0.95, 'horizon': 100, 'low': 0.0, 'high': 1.0},
    ),
}


def main() -> None:
    """Evaluates the tasks and prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--tasks', nargs='+', choices=TASKS, default=list(TASKS))
    parser.add_argument('--data_sets', type=int, default=100)
    parser.add_argument('--own_episodes', type=int, default=5_000, help='that the evaluated policy plays itself')
    parser.add_argument('--estimate_behaviour', action='store_true', help='as if its probabilities were not recorded')
    parser.add_argument('--num_features', type=int, default=256, help='of the fitted values')
    parser.add_argument('--root_dir', type=pathlib.Path, help='keeps runs and data, and goes on with those that it has')
    parser.add_argument('--quick', action='store_true', help='few short data sets, to see whether this program works')
    options = parser.parse_args()
    if options.quick:
        options.data_sets, options.own_episodes = 2, 50
    tf.get_logger().setLevel('ERROR')
    found = {}
    print('| task, its value | estimator | mean error | RMSE | width of the interval | that hold the value |')
    print('|---|---|---|---|---|---|')
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.tasks:
            found[name] = _evaluate(TASKS[name], (options.root_dir or pathlib.Path(temporary)) / name, options)
            print(_rows(name, found[name]), flush=True)
    command_line.write(options.json, found)


def _evaluate(task: Task, root: pathlib.Path, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the policy's value, its standard error, and the estimates of all data sets."""
    steps = 200 if options.quick else task.num_train_steps
    bindings = [f'train.StopConditions.num_train_steps={steps}'] if steps else []
    learning.run(root / 'run', task.gin_file, bindings, seed=1, mode='synchronous')
    write = functools.partial(_record, task, root)
    own = _values(
        write('own', task.epsilon, options.own_episodes, _OWN_SEED),
        task.options.get('gamma', 1.0),
        task.options.get('horizon'),
    )
    estimates, intervals, sizes, warned = collections.defaultdict(list), [], [], 0
    for i in range(options.data_sets):
        path = write(f'data_{i}', task.behaviour_epsilon, task.episodes, _FIRST_SEED * (i + 1), log_probabilities=True)
        fitted = {'estimate_behaviour': options.estimate_behaviour, 'num_features': options.num_features}
        settings = {**task.options, **fitted, 'seed': i}
        result, _ = evaluate_on_data(
            RunDir(root / 'run'), [str(path)], {}, task.policy, epsilon=task.epsilon, **settings
        )
        warned += any('mean weight' in warning for warning in result.warnings)
        sizes.append(result.effective_sample_size or 0.0)
        intervals.append(result.intervals.get('the policy'))
        for name, estimate in result.estimates.items():
            estimates[name].append(estimate)
        print(f'{root.name}: data set {i + 1} of {options.data_sets}', file=sys.stderr, flush=True)
    return {
        'value': float(own.mean()),
        'standard_error': float(own.std(ddof=1) / np.sqrt(len(own))),
        'effective_sample_size': float(np.median(sizes)),
        'episodes': task.episodes,
        'warned': warned,
        'estimates': estimates,
        'intervals': intervals,
    }


def _record(task: Task, root: pathlib.Path, name: str, epsilon: float, episodes: int, seed: int, **given: Any) -> str:
    """Writes a data set if it is not there, and returns its path."""
    record(
        run=Run(RunDir(root / 'run')),
        make_environment=task.make_environment,
        output=str(root / name),
        policy=task.policy,
        quota=Quota(episodes),
        num_environments=16,
        epsilon=epsilon,
        seed=seed,
        **given,
    )
    return str(root / name)


def _values(path: str, gamma: float = 1.0, horizon: int | None = None) -> np.ndarray:
    """Returns the discounted sum of the first rewards of each episode, [E]."""
    rewards = [
        episode['reward'][:-1][:horizon].astype(np.float64) for episode in EpisodeReader(Dataset([path])).episodes()
    ]
    return np.array([each @ gamma ** np.arange(len(each)) for each in rewards])


def _rows(name: str, found: dict[str, Any]) -> str:
    lines = []
    for estimator, made in found['estimates'].items():
        error = np.array(made, np.float64) - found['value']
        lines.append(f'| | {estimator} | {error.mean():.3g} | {np.sqrt((error**2).mean()):.3g} | | |')
    intervals = np.array([each for each in found['intervals'] if each])
    if len(intervals):
        held = np.count_nonzero((intervals[:, 0] <= found['value']) & (found['value'] <= intervals[:, 1]))
        width = float(np.median(intervals[:, 1] - intervals[:, 0]))
        lines.append(f'| | the interval | | | {width:.3g} | {held} of {len(found["intervals"])} |')
    head = f'{name}, {found["episodes"]} episodes: {found["value"]:.4g} (standard error {found["standard_error"]:.2g})'
    size = f'effective sample size {found["effective_sample_size"]:.1f}, its mean weight warned of in {found["warned"]}'
    return '\n'.join([f'| {head}, {size} {lines[0][2:]}', *lines[1:]])


if __name__ == '__main__':
    main()
