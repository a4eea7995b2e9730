"""How long does a run take to a mean return of 450 on CartPole-v1, from when all of it runs? Beside RLlib, interleaved.

    python benchmarks/time_to_return.py --rllib_python=rllib_environment/bin/python --picture=returns.png

A run is over when the last 20 training episodes have a mean return of 450, wherever they were played; environment steps
are all that were taken until then, also in episodes that had not ended. Ours are the gin files as they are, with three
processes (replay server, collect, train), each started by its program; seconds count from the first environment step,
which is taken when the learner has published its first weights, so all three run. RLlib's count from its algorithm's
first `train()`, when it is built. RLlib has an environment of its own: benchmarks/requirements_rllib.txt says how to
make it.

With --root_dir the runs are kept, and those that are there already are not made again.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import recorded_runs, return_curves  # noqa: E402

OURS = {'PPO': 'ppo_cartpole', 'IMPALA': 'impala_reuse_cartpole'}
PEERS = {'RLlib PPO': 'ppo', 'RLlib IMPALA': 'impala'}
# Of RLlib PPO's medians, at most: seconds, environment steps.
WANTED = {'PPO': (0.25, 1.5), 'IMPALA': (0.5, 1.5)}


def main() -> int:
    """Makes the runs interleaved, prints the tables; returns 1 if a run of ours did not get there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, default=5)
    parser.add_argument('--goal', type=float, default=450.0)
    parser.add_argument('--limit_secs', type=float, default=100.0, help='after which a run is given up')
    parser.add_argument('--sides', nargs='+', choices=[*OURS, *PEERS], default=[*OURS, *PEERS])
    parser.add_argument('--gin_bindings', action='append', default=[], help='for our sides')
    parser.add_argument('--rllib_python', type=pathlib.Path, default=ROOT / 'rllib_environment' / 'bin' / 'python')
    parser.add_argument('--root_dir', type=pathlib.Path, default=None, help='keeps the runs')
    parser.add_argument('--picture', type=pathlib.Path, default=None, help='PNG of the returns')
    parser.add_argument('--json', type=pathlib.Path, default=None, help='writes the results there')
    parser.add_argument('--max_secs', type=float, default=None, help='begins no run after so long')
    options = parser.parse_args()
    sides = [side for side in options.sides if side in OURS or options.rllib_python.exists()]
    with tempfile.TemporaryDirectory() as temporary:
        root = options.root_dir or pathlib.Path(temporary)
        outcomes: dict[str, list[recorded_runs.Outcome]] = {side: [] for side in sides}
        begun = time.monotonic()
        for seed in range(1, options.seeds + 1):
            for side in sides:
                path = root / side.replace(' ', '_') / f'seed_{seed}' / 'episodes.jsonl'
                if not path.exists() and options.max_secs and time.monotonic() - begun > options.max_secs:
                    continue
                outcomes[side].append(_outcome(side, path, seed, options))
                print(f'seed {seed}, {side}: {outcomes[side][-1]}', file=sys.stderr, flush=True)
        if options.picture:
            paths = {side: (root / side.replace(' ', '_')).glob('*/episodes.jsonl') for side in sides}
            return_curves.draw(options.picture, paths, options.goal, recorded_runs.WINDOW)
    print(recorded_runs.table(outcomes))
    print(_verdict(outcomes))
    if options.json:
        dicts = {side: [dataclasses.asdict(outcome) for outcome in found] for side, found in outcomes.items()}
        options.json.write_text(json.dumps(dicts, indent=2) + '\n')
    return int(any(outcome.secs is None for side in OURS for outcome in outcomes.get(side, [])))


def _outcome(side: str, path: pathlib.Path, seed: int, options: argparse.Namespace) -> recorded_runs.Outcome:
    """Returns how a run went, after making it if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        if side in OURS:
            recorded_runs.run(OURS[side], path, seed, options.goal, options.limit_secs, options.gin_bindings)
        else:
            _run_rllib(side, path, seed, options)
    return recorded_runs.read(path, options.goal, options.limit_secs)


def _run_rllib(side: str, path: pathlib.Path, seed: int, options: argparse.Namespace) -> None:
    program = pathlib.Path(__file__).with_name('time_to_return_rllib.py')
    flags = [f'--path={path}', f'--seed={seed}', f'--limit_secs={options.limit_secs}']
    command = [str(options.rllib_python), str(program), f'--algorithm={PEERS[side]}', *flags]
    with recorded_runs.process(command, path.with_name('rllib.log')) as process:
        there = lambda: path.exists() and recorded_runs.read(path, options.goal, options.limit_secs).secs is not None  # noqa: E731
        recorded_runs.wait(lambda: process.poll() is not None or there(), recorded_runs.START_SECS + options.limit_secs)


def _verdict(outcomes: Mapping[str, Sequence[recorded_runs.Outcome]]) -> str:
    lines = []
    for side, wanted in WANTED.items():
        for name, most in zip(('secs', 'env_steps'), wanted, strict=True):
            ours, theirs = (recorded_runs.middle(outcomes.get(key, []), name) for key in (side, 'RLlib PPO'))
            if ours is not None and theirs is not None:
                lines.append(f"our {side}: {ours / theirs:.2f} of RLlib PPO's {name} (wanted: at most {most})")
    return '\n'.join(lines)


if __name__ == '__main__':
    sys.exit(main())
