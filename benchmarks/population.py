"""Population-based training beside the fixed settings that it starts from, with the same environment steps.

PPO on CartPole-v1 begins with four learning rates that are too small, drawn from [1e-6, 2e-5]. In the population the
worse two copy the better two after each quarter of the budget, and go on with a rate five times as large or small, or
with one drawn from [1e-6, 1e-2]. The fixed side trains the same four rates with the same seeds to the end. Each side is
tflearn population, the fixed one with one generation. A side's result is the score of its best run: the mean of the
last three evaluations, of 20 episodes each; and the mean of all four.

.venv/bin/python -m benchmarks.population [--root_dir=runs/population_benchmark] [--seeds=5] [--json=FILE]

It goes on where it was stopped or killed, and runs one process at a time.
"""

import pathlib
import sys

import numpy as np

from benchmarks import command_line
from tflearn.extensions.experiments import verdicts
from tflearn.extensions.experiments.population import Population
from tflearn.extensions.experiments.tuning import Tuning

SIZE, GENERATIONS, ENV_STEPS = 4, 4, 40_000
SPACE = f"""
def suggest(trial):
    low, high = (1e-6, 2e-5) if trial.number < {SIZE} else (1e-6, 1e-2)
    rate = trial.suggest_float('learning rate', low, high, log=True)
    return [f'optimizers.OptimizerOptions.learning_rate = {{rate}}']
"""
BINDINGS = (
    f'train.StopConditions.max_env_steps = {ENV_STEPS}',
    'train.StopConditions.num_train_steps = None',
    'evaluate.evaluate.target_return = None',
    'train.Intervals.export_interval_steps = 240',
    "train.ExportOptions.policies = ('greedy_policy',)",
)
SIDES = {'population': (GENERATIONS, 0.5), 'fixed settings': (1, 0.0)}


def scores(root: pathlib.Path, side: str, seed: int) -> list[float]:
    """Runs what is missing of one side and seed; returns the scores of its last generation, the best one first."""
    root.mkdir(parents=True, exist_ok=True)
    space = root / 'space.py'
    space.write_text(SPACE)
    folder = root / f'{side.replace(" ", "_")}_{seed}'
    search = Tuning(folder, 'ppo_cartpole', str(space), 0, gin_bindings=BINDINGS, mode='synchronous')
    generations, quantile = SIDES[side]
    found = Population(search, SIZE, generations, quantile, factor=5.0, seed=seed).run(sys.stdout)
    if found is None:
        sys.exit(130)
    return [trial.values[0] for trial in found if trial.values]


def table(found: dict[str, list[list[float]]]) -> str:
    """Returns the results of both sides, and the verdicts."""
    lines = ['| of each seed | side | scores | median | verdict | p |', '|---|---|---|---|---|---|']
    for what, reduce in (('best run', max), ('mean of all runs', np.mean)):
        results = {side: np.array([reduce(each) for each in seeds]) for side, seeds in found.items()}
        ours, others = results.values()
        verdict = verdicts.judge(ours, others)
        told = (str(verdict), verdict.significance) if verdict else ('too few seeds to tell', '')
        for side, values in results.items():
            cells = what, side, ', '.join(f'{value:.1f}' for value in values), f'{np.median(values):.1f}'
            lines.append(f'| {" | ".join([*cells, *(told if side == "population" else ("", ""))])} |')
    return '\n'.join(lines)


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument('--root_dir', type=pathlib.Path, default='runs/population_benchmark')
    parser.add_argument('--seeds', type=int, default=5)
    given = parser.parse_args()
    found: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for seed in range(1, given.seeds + 1):
        for side, seeds in found.items():
            seeds.append(scores(given.root_dir, side, seed))
        print(table(found), flush=True)
    command_line.write(given.json, found)


if __name__ == '__main__':
    main()
