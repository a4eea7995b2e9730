"""Does a run learn, and how long does it take? Complete runs, one after the other, one for each seed.

    python benchmarks/learning.py --gin_file=dqn_cartpole --seeds=5 --picture=curves.png

Each run is what `tflearn-launch` makes of its gin file, in processes of its own, or in this process with
`--mode=synchronous`; only the seeds differ. The table shows how each run ended; the plot shows all learning curves.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np

import tflearn
from tflearn.actors import learning_curve
from tflearn.actors.evaluation_record import EvaluationRecord
from tflearn.extensions.experiments import series
from tflearn.files.run_dir import RunDir, read_json

SEEDS = ('train.Initial.seed', 'collect_settings.CollectOptions.seed', 'evaluate.evaluate.seed')
QUICK_BINDINGS = ('train.StopConditions.num_train_steps=1000', 'Uniform.min_size=200', 'evaluate.num_episodes=5')


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the run of one seed ended.

    Attributes:
      seed: of the run.
      mean_return: of the policy that the run ends with, over the episodes of its last evaluation.
      env_steps: collected when that policy was exported, as in the learning curve's last point. (Collectors go on while
        it is evaluated.)
      train_secs: seconds of training.
      wall_secs: seconds from the start of the command to its end.
      summary: the mean of a summary's values over the run; None if none was asked for.
    """

    seed: int
    mean_return: float
    env_steps: int
    train_secs: float
    wall_secs: float
    summary: float | None = None


def main() -> int:
    """Runs the seeds; returns 1 when fewer than four fifths of them reach the return that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--gin_file', default='dqn_cartpole')
    parser.add_argument('--gin_bindings', action='append', default=[])
    parser.add_argument('--seeds', type=int, default=5, help='runs, with the seeds 1, 2, ...')
    parser.add_argument('--at_least', type=float, default=None, help='mean return that a run has to reach')
    parser.add_argument('--mode', default='processes', choices=['processes', 'synchronous'], help='see tflearn.train')
    parser.add_argument('--summary', default=None, help="a summary's tag, such as collect/mean_info/illegal; its mean")
    parser.add_argument('--root_dir', type=pathlib.Path, default=None, help='keeps the runs; default: a temporary one')
    parser.add_argument('--picture', type=pathlib.Path, default=None, help='PNG of the learning curves')
    parser.add_argument('--json', type=pathlib.Path, default=None, help='writes the results there')
    parser.add_argument('--quick', action='store_true', help='one short run, to see whether this program works')
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.gin_bindings = 1, [*options.gin_bindings, *QUICK_BINDINGS]
    with tempfile.TemporaryDirectory() as temporary:
        root = options.root_dir or pathlib.Path(temporary)
        seeds = range(1, options.seeds + 1)
        outcomes = [
            run(root / f'seed_{seed}', options.gin_file, options.gin_bindings, seed, options.mode, options.summary)
            for seed in seeds
        ]
        if options.picture:
            options.picture.parent.mkdir(parents=True, exist_ok=True)
            curves = {
                f'seed {seed}': EvaluationRecord(RunDir(root / f'seed_{seed}').evaluations).evaluations
                for seed in seeds
            }
            learning_curve.draw(options.picture, curves, options.gin_file, options.at_least)
    print(_table(outcomes))
    if options.json:
        options.json.write_text(json.dumps(_rows(options.gin_file, outcomes), indent=2) + '\n')
    if options.at_least is None:
        return 0
    reached = sum(outcome.mean_return >= options.at_least for outcome in outcomes)
    print(f'{reached} of {len(outcomes)} seeds reached a mean return of {options.at_least:g}')
    return 0 if reached >= 0.8 * len(outcomes) else 1


def run(
    root: pathlib.Path, gin_file: str, gin_bindings: Sequence[str], seed: int, mode: str, summary: str | None = None
) -> Outcome:
    """One complete run, or what is missing of it if `root` holds a part."""
    seeded = [
        *(f'{job}.seed={seed}' for job in ('train.Initial', 'collect_settings.CollectOptions', 'evaluate.evaluate')),
        *gin_bindings,
    ]
    start = time.monotonic()
    print(f'seed {seed}', flush=True)
    if mode == 'synchronous':
        tflearn.train(gin_file, root_dir=root, mode='synchronous', gin_bindings=seeded)
    else:
        flags = [f'--root_dir={root}', f'--gin_file={gin_file}', *(f'--gin_bindings={binding}' for binding in seeded)]
        command = [sys.executable, '-m', 'tflearn_scripts.launch', *flags]
        subprocess.run(command, check=True, stdout=sys.stderr, timeout=7_000)
    done = read_json(RunDir(root).done) or {}
    wall_secs = time.monotonic() - start
    evaluation = done['evaluation']
    mean = float(np.mean(series.read(RunDir(root))[summary].values)) if summary else None
    return Outcome(seed, evaluation['mean_return'], evaluation['env_steps'], done['seconds'], wall_secs, mean)


def _table(outcomes: Sequence[Outcome]) -> str:
    lines = [
        '| seed | greedy mean return | environment steps | training, s | command, s |',
        '|---|---|---|---|---|',
    ]
    digits = 1 if max(abs(outcome.mean_return) for outcome in outcomes) >= 10 else 3
    row = f'| {{}} | {{:.{digits}f}} | {{:,.0f}} | {{:.0f}} | {{:.0f}} |'
    names = ['mean_return', 'env_steps', 'train_secs', 'wall_secs']
    if outcomes[0].summary is not None:
        lines, row = [f'{lines[0]} summary |', f'{lines[1]}---|'], f'{row} {{:.3f}} |'
        names.append('summary')
    lines += [row.format(*dataclasses.astuple(outcome)[: len(names) + 1]) for outcome in outcomes]
    medians = [statistics.median(getattr(outcome, name) for outcome in outcomes) for name in names]
    return '\n'.join([*lines, row.format('median', *medians)])


def _rows(case: str, outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """The medians in the form that all benchmarks share."""
    units = {'mean_return': 'return', 'env_steps': 'steps', 'train_secs': 's', 'wall_secs': 's'}
    nothing = dict.fromkeys(('peer', 'limit', 'ratio_to_peer', 'ratio_to_limit'))
    return [
        {
            'case': case,
            'metric': metric,
            'ours': statistics.median(getattr(outcome, metric) for outcome in outcomes),
            **nothing,
            'unit': unit,
            'rounds': len(outcomes),
        }
        for metric, unit in units.items()
    ]


if __name__ == '__main__':
    sys.exit(main())
