"""How many environment steps does PPO take to a mean return of 475 on CartPole-v1, alone and from a cloned policy?

    python benchmarks/pretraining.py --seeds=5 --picture=docs/images/pretraining.png

Both sides are gin/ppo_cartpole.gin, in processes of their own, interleaved. One begins with the policy that behavioural
cloning makes of recorded episodes (`train.Cloning`), in the same run; it trains the value first, at a larger rate, and
then the policy at half of the other's. A run is over when the last 20 training episodes have a mean return of 475;
environment steps are all that were taken until then, also in episodes that had not ended. (Even a policy that is
perfect from the beginning takes about 10,000.)

The episodes are those in --data; without it, of the policy that a PPO run ends with when it has solved the task, of
which --epsilon of the actions are random. What that run and its recording took is not counted: where one would clone,
such data are there already. The return of the recorded episodes is printed.

With --root_dir the runs are kept, and those that are there already are not made again.
"""

import argparse
import dataclasses
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, recorded_runs, return_curves  # noqa: E402
from tflearn.data.reader import Dataset  # noqa: E402
from tflearn.data.statistics import Statistics  # noqa: E402

GIN_FILE = 'ppo_cartpole'
SCRATCH, CLONED = 'PPO', 'BC, then PPO'
_LAST = (8_000, 1e-5)  # of the learning rate: train step, value
_EXPERT_SECS, _RECORD_SECS = 1_200.0, 300.0


def main() -> int:
    """Makes the runs, prints the table; returns 1 if the clone does not take fewer environment steps."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--seeds', type=int, default=5, help='runs of each side, with the seeds 1, 2, ...')
    parser.add_argument('--goal', type=float, default=475.0)
    parser.add_argument('--limit_secs', type=float, default=300.0, help='of collection, after which a run is given up')
    parser.add_argument('--data', type=pathlib.Path, default=None, help='recorded episodes; default: makes them')
    parser.add_argument('--episodes', type=int, default=50, help='that are recorded')
    parser.add_argument('--epsilon', type=float, default=0.6, help='the share of random actions in recorded episodes')
    parser.add_argument('--cloning_steps', type=int, default=1_000, help='train steps of the cloning')
    parser.add_argument('--value_warmup_steps', type=int, default=200, help='train steps of PPO on the value alone')
    parser.add_argument('--gin_bindings', action='append', default=[], help='for the side that begins with a clone')
    parser.add_argument('--root_dir', type=pathlib.Path, default=None, help='keeps the runs')
    parser.add_argument('--picture', type=pathlib.Path, default=None, help='PNG of the returns')
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.root_dir or pathlib.Path(temporary)
        data = options.data or _record(root, options.episodes, options.epsilon)
        returns = Statistics(Dataset([str(data)])).returns
        print(f'{len(returns)} recorded episodes, mean return {np.mean(returns):.1f}', flush=True)
        cloning = _cloning(data, options.cloning_steps, options.value_warmup_steps)
        sides = {SCRATCH: [], CLONED: [*cloning, *options.gin_bindings]}
        outcomes: dict[str, list[recorded_runs.Outcome]] = {side: [] for side in sides}
        for seed in range(1, options.seeds + 1):
            for side, bindings in sides.items():
                outcomes[side].append(_outcome(_path(root, side, seed), seed, bindings, options))
                print(f'seed {seed}, {side}: {outcomes[side][-1]}', file=sys.stderr, flush=True)
        if options.picture:
            seeds = range(1, options.seeds + 1)
            paths = {side: [_path(root, side, seed) for seed in seeds] for side in sides}
            return_curves.draw(options.picture, paths, options.goal, recorded_runs.WINDOW, least=4)
    print(recorded_runs.table(outcomes))
    dicts = {side: [dataclasses.asdict(outcome) for outcome in found] for side, found in outcomes.items()}
    command_line.write(options.json, dicts)
    scratch, cloned = (recorded_runs.middle(found, 'env_steps') for found in outcomes.values())
    if scratch is not None and cloned is not None:
        print(f'"{CLONED}" takes {cloned / scratch:.2f} of the environment steps (medians)')
    return int(cloned is None or (scratch is not None and cloned >= scratch))


def _path(root: pathlib.Path, side: str, seed: int) -> pathlib.Path:
    return root / side.replace(', ', '_').replace(' ', '_') / f'seed_{seed}' / 'episodes.jsonl'


def _outcome(
    path: pathlib.Path, seed: int, bindings: Sequence[str], options: argparse.Namespace
) -> recorded_runs.Outcome:
    """Returns how a run went, after making it if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        recorded_runs.run(GIN_FILE, path, seed, options.goal, options.limit_secs, bindings)
    return recorded_runs.read(path, options.goal, options.limit_secs)


def _cloning(data: pathlib.Path, num_steps: int, value_warmup_steps: int) -> list[str]:
    """Returns the gin statements with which a PPO run begins with what it has cloned."""
    return [
        'from tflearn.agents import bc',
        'train.Initial.cloning=@train.Cloning()',
        'train.Cloning.dataset=@train.Dataset()',
        f'train.Dataset.paths=({str(data.resolve())!r},)',
        'train.Cloning.make_agent=@bc.make_agent',
        'bc.make_agent.network=@networks.NetworkOptions()',
        f'train.Cloning.num_train_steps={num_steps}',
        f'ppo.PPOLoss.value_warmup_steps={value_warmup_steps}',
        'optimizers.OptimizerOptions.learning_rate=@schedules.piecewise()',
        f'schedules.piecewise.points={((0, 5e-3), (value_warmup_steps, 5e-3), (value_warmup_steps + 1, 5e-4), _LAST)}',
    ]


def _record(root: pathlib.Path, num_episodes: int, epsilon: float) -> pathlib.Path:
    """Solves the task once, and records episodes of that policy; returns their directory."""
    expert, data = root / 'expert', root / 'data'
    run = [f'--root_dir={expert}', f'--gin_file={GIN_FILE}']
    _program('scripts.launch', *run, '--gin_bindings=train.Initial.seed=0', timeout_secs=_EXPERT_SECS)
    record = [f'--output={data}', f'--episodes={num_episodes}', f'--epsilon={epsilon}']
    _program('scripts', 'data', 'record', *run, *record, timeout_secs=_RECORD_SECS)
    return data


def _program(*words: str, timeout_secs: float) -> None:
    command = [sys.executable, '-m', *words]
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr, timeout=timeout_secs)


if __name__ == '__main__':
    sys.exit(main())
