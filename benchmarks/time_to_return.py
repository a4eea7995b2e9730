"""How long does a run take to a mean return, from when all of it runs, and from the shell? Beside others, interleaved.

    python benchmarks/time_to_return.py --peers_python=peers_environment/bin/python --picture=returns.png
    python benchmarks/time_to_return.py --task=pendulum --peers_python=peers_environment/bin/python

A run is over when the last 20 training episodes have the task's mean return (PPO and IMPALA on CartPole-v1: 450, DQN:
475; SAC on Pendulum-v1: -200), wherever they were played; environment steps are all that were taken until then, also in
episodes that had not ended. Task halfcheetah has no goal: it measures environment steps/s of SAC on HalfCheetah-v5, at
one train step per environment step on each side, after the random steps.

Ours are the gin files as they are, with three processes (replay server, collect, train), each started by its program;
seconds count from the first environment step, which is taken when the learner has published its first weights, so all
three run. Sides with "launch" are started by `tflearn-launch`, which also evaluates; "synchronous" is one process.
RLlib's count from its algorithm's first `train()`, when it is built; those of Stable-Baselines3 and SBX (JAX) from the
first environment step. "Compiled" had its programs compiled before: the collector of ours starts when the learner has,
the others call `learn` first. These have environments of their own:
benchmarks/requirements_rllib.txt and requirements_peers.txt say how to make them.

With --root_dir the runs are kept, and those that are there already are not made again.
"""

import argparse
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, recorded_environment, recorded_runs, return_curves  # noqa: E402

_XLA = (
    'from tflearn.jobs import train',
    'from tflearn.learner import train_loop',
    'train.LearnerOptions.loop=@train_loop.LoopOptions()',
    'train_loop.LoopOptions.jit_compile=True',
)


@dataclasses.dataclass(frozen=True)
class Side:
    """One side: a gin file of ours, or a program of another library.

    Attributes:
      gin_file: of ours; '' for others.
      bindings: gin statements.
      programs: ours.
      compiled: whether the collector of ours starts when the learner has compiled its programs.
      replay_backend: of ours; '' is the default.
      peer: flags of time_to_return_peers.py.
      rllib: the algorithm of time_to_return_rllib.py.
    """

    gin_file: str = ''
    bindings: Sequence[str] = ()
    programs: Sequence[str] = recorded_runs.JOBS
    compiled: bool = False
    replay_backend: str = ''
    peer: Sequence[str] = ()
    rllib: str = ''


def _peers(algorithm: str, environment: str) -> dict[str, Side]:
    flags = (f'--algorithm={algorithm}', f'--environment={environment}')
    name = algorithm.upper()
    return {
        f'SBX {name}': Side(peer=('--library=sbx', *flags)),
        f'SBX {name}, compiled': Side(peer=('--library=sbx', *flags, '--warm')),
        f'SB3 {name}': Side(peer=('--library=sb3', *flags)),
    }


@dataclasses.dataclass(frozen=True)
class Task:
    """What is compared.

    Attributes:
      goal: the mean return; None measures environment steps/s after `first_step`.
      sides: by name.
      wanted: (ours, the other, column, at most this share of the other's median; at least, for steps/s).
      first_step: see `goal`.
    """

    goal: float | None
    sides: Mapping[str, Side]
    wanted: Sequence[tuple[str, str, str, float]] = ()
    first_step: int = 0


TASKS = {
    'cartpole': Task(
        450.0,
        {
            'PPO': Side('ppo_cartpole'),
            'PPO Valkey': Side('ppo_cartpole', replay_backend='valkey'),
            'PPO XLA': Side('ppo_cartpole', _XLA),
            'PPO, compiled': Side('ppo_cartpole', compiled=True),
            'PPO XLA, compiled': Side('ppo_cartpole', _XLA, compiled=True),
            'PPO launch': Side('ppo_cartpole', programs=('launch',)),
            'IMPALA': Side('impala_reuse_cartpole'),
            **_peers('ppo', 'CartPole-v1'),
            'RLlib PPO': Side(rllib='ppo'),
            'RLlib IMPALA': Side(rllib='impala'),
        },
        (
            ('PPO', 'SBX PPO', 'secs', 0.5),
            ('PPO XLA', 'SBX PPO', 'secs', 0.5),
            ('PPO', 'SBX PPO, compiled', 'secs', 0.5),
            ('PPO, compiled', 'SBX PPO, compiled', 'secs', 0.5),
            ('PPO XLA, compiled', 'SBX PPO, compiled', 'secs', 0.5),
            ('PPO launch', 'SBX PPO', 'command_secs', 0.8),
            ('PPO', 'RLlib PPO', 'secs', 0.25),
            ('PPO', 'RLlib PPO', 'env_steps', 1.5),
            ('IMPALA', 'RLlib PPO', 'secs', 0.5),
            ('IMPALA', 'RLlib PPO', 'env_steps', 1.5),
        ),
    ),
    'pendulum': Task(
        -200.0,
        {
            'SAC': Side('sac_pendulum'),
            'SAC synchronous': Side('sac_pendulum', programs=('synchronous',)),
            **_peers('sac', 'Pendulum-v1'),
        },
        (('SAC', 'SBX SAC', 'secs', 0.7), ('SAC', 'SB3 SAC', 'secs', 0.4)),
    ),
    'dqn': Task(
        475.0,
        {
            'DQN': Side('dqn_cartpole'),
            'DQN Valkey': Side('dqn_cartpole', replay_backend='valkey'),
            'DQN XLA': Side('dqn_cartpole', _XLA),
            'DQN launch': Side('dqn_cartpole', programs=('launch',)),
            **_peers('dqn', 'CartPole-v1'),
        },
    ),
    'halfcheetah': Task(
        None,
        {
            'SAC': Side('sac_halfcheetah'),
            'SAC synchronous': Side('sac_halfcheetah', programs=('synchronous',)),
            **_peers('sac', 'HalfCheetah-v5'),
        },
        (('SAC', 'SBX SAC, compiled', 'steps_per_sec', 1 / 0.7), ('SAC', 'SB3 SAC', 'steps_per_sec', 1 / 0.4)),
        first_step=11_000,
    ),
}


def main() -> int:
    """Makes the runs interleaved, prints the tables; returns 1 if a run of ours did not get there."""
    options = _options()
    task = TASKS[options.task]
    missing = {name for name in options.sides or () if name not in task.sides}
    if missing:
        sys.exit(f'got --sides={sorted(missing)}; need some of {list(task.sides)}')
    sides = {name: side for name, side in task.sides.items() if name in (options.sides or task.sides)}
    sides = {name: side for name, side in sides.items() if side.gin_file or _python(side, options).exists()}
    with tempfile.TemporaryDirectory() as temporary:
        root = options.root_dir or pathlib.Path(temporary)
        paths: dict[str, list[pathlib.Path]] = {name: [] for name in sides}
        begun = time.monotonic()
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for name, side in sides.items():
                path = root / name.replace(' ', '_').replace(',', '') / f'seed_{seed}' / 'episodes.jsonl'
                if not path.exists() and options.max_secs and time.monotonic() - begun > options.max_secs:
                    continue
                _run(side, path, seed, task, options)
                paths[name].append(path)
                print(f'seed {seed}, {name}: {_result(path, task, options)}', file=sys.stderr, flush=True)
        if options.picture and task.goal is not None:
            return_curves.draw(options.picture, paths, task.goal, recorded_runs.WINDOW)
        return _report(task, sides, paths, options)


def _options() -> argparse.Namespace:
    parser = command_line.parser(__doc__)
    parser.add_argument('--task', choices=[*TASKS], default='cartpole')
    parser.add_argument('--seeds', type=int, default=5)
    parser.add_argument('--first_seed', type=int, default=1)
    parser.add_argument('--limit_secs', type=float, default=100.0, help='after which a run is given up')
    parser.add_argument('--sides', nargs='+', default=None, help='default: all of the task')
    parser.add_argument('--gin_bindings', action='append', default=[], help='for our sides')
    parser.add_argument('--rllib_python', type=pathlib.Path, default=ROOT / 'rllib_environment' / 'bin' / 'python')
    parser.add_argument('--peers_python', type=pathlib.Path, default=ROOT / 'peers_environment' / 'bin' / 'python')
    parser.add_argument('--root_dir', type=pathlib.Path, default=None, help='keeps the runs')
    parser.add_argument('--picture', type=pathlib.Path, default=None, help='PNG of the returns')
    parser.add_argument('--max_secs', type=float, default=None, help='begins no run after so long')
    return parser.parse_args()


def _python(side: Side, options: argparse.Namespace) -> pathlib.Path:
    return options.rllib_python if side.rllib else options.peers_python


def _run(side: Side, path: pathlib.Path, seed: int, task: Task, options: argparse.Namespace) -> None:
    """Makes a run, if it is not there."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    goal = float('inf') if task.goal is None else task.goal
    if side.gin_file:
        bindings = [*side.bindings, *options.gin_bindings]
        ours = side.programs, side.compiled, side.replay_backend
        recorded_runs.run(side.gin_file, path, seed, goal, options.limit_secs, bindings, *ours)
        return
    program = pathlib.Path(__file__).with_name(f'time_to_return_{"rllib" if side.rllib else "peers"}.py')
    flags = [f'--path={path}', f'--seed={seed}', f'--limit_secs={options.limit_secs}']
    more = [f'--algorithm={side.rllib}'] if side.rllib else [*side.peer]
    recorded_runs.give(path)
    with recorded_runs.process(
        [str(_python(side, options)), str(program), *more, *flags], path.with_name('log')
    ) as run:
        secs = recorded_runs.START_SECS + options.limit_secs
        recorded_runs.wait(lambda: run.poll() is not None or _is_there(path, goal, options), secs)


def _is_there(path: pathlib.Path, goal: float, options: argparse.Namespace) -> bool:
    started = recorded_environment.read(path)[0] is not None
    return started and recorded_runs.read(path, goal, options.limit_secs).secs is not None


def _result(path: pathlib.Path, task: Task, options: argparse.Namespace) -> recorded_runs.Outcome | float | None:
    if task.goal is None:
        return recorded_runs.steps_per_sec(path, task.first_step)
    return recorded_runs.read(path, task.goal, options.limit_secs)


def _report(
    task: Task, sides: Mapping[str, Side], paths: Mapping[str, Sequence[pathlib.Path]], options: argparse.Namespace
) -> int:
    """Prints and writes the results. Returns the program's exit status."""
    results = {name: [_result(path, task, options) for path in found] for name, found in paths.items()}
    if task.goal is None:
        print('| side | environment steps/s of each seed | median |\n|---|---|---|')
        for name, found in results.items():
            print(f'| {name} | {", ".join(f"{rate or 0:.0f}" for rate in found)} | {_median(found, ""):.0f} |')
    else:
        print(recorded_runs.table(results))
    for ours, other, column, share in task.wanted:
        medians = [_median(results.get(name, []), column) for name in (ours, other)]
        if all(medians) and float('inf') not in medians:
            bound = 'most' if share < 1 or task.goal is not None else 'least'
            print(f"{ours}: {medians[0] / medians[1]:.2f} of {other}'s {column} (wanted: at {bound} {share:.2f})")
    dicts = results
    if task.goal is not None:
        dicts = {name: list(map(dataclasses.asdict, found)) for name, found in results.items()}
    command_line.write(options.json, dicts)
    ours = [each for name, side in sides.items() if side.gin_file for each in results[name]]
    return int(any((each if task.goal is None else each.secs) is None for each in ours))


def _median(found: Sequence[recorded_runs.Outcome | float | None], column: str) -> float:
    """Returns the median of a column, where a run that did not get there took longer than any other."""
    if any(isinstance(each, recorded_runs.Outcome) for each in found):
        return recorded_runs.middle(found, column) or 0.0
    return statistics.median([each or 0.0 for each in found] or [0.0])


if __name__ == '__main__':
    sys.exit(main())
