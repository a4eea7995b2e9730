"""What do algorithms learn from recorded data? Data sets, runs on them, and a table; one resumable command.

    python -m benchmarks.offline --root_dir=runs/offline --tasks cartpole pendulum

For each task it trains a behaviour policy online (an own run of `tflearn-launch`), and records episodes with
`tflearn data`: `random` actions, the `medium` policy (the exported one whose evaluation was nearest to halfway between
random actions and the run's last policy, with a share of random actions), the `expert` (the run's last policy), and
`mixed`, which is all three. On each of them `tflearn train-offline` trains each algorithm, once for each seed, without
an environment; `tflearn-evaluate` then lets the last policy alone act: there is no choice of the best of several.

Whatever is there already in --root_dir is not made again: runs, episodes, and each result, a line of results.jsonl.
(After a change of the code, take another directory.) With --max_secs no cell begins after that time, so the command can
be run in parts. The score is 0 for random actions and 100 for the expert.
"""

import argparse
import dataclasses
import hashlib
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import offline_report  # noqa: E402
from tests.testing import console_programs  # noqa: E402
from tflearn.actors.evaluation_record import EvaluationRecord  # noqa: E402
from tflearn.core.errors import UserError  # noqa: E402
from tflearn.data.reader import Dataset, EpisodeReader  # noqa: E402
from tflearn.data.shards import find_shards  # noqa: E402
from tflearn.files.run_dir import RunDir, read_json  # noqa: E402

_MIXED = ('random', 'medium', 'expert')
_CHEETAH = ("gymnasium_env.make.name='HalfCheetah-v5'", 'train.StopConditions.num_train_steps=100_000')
_REACHER = ("gymnasium_env.make.name='Reacher-v5'",)
_TD3_RATES = ('optimizers.OptimizerOptions.learning_rate=3e-4',)


@dataclasses.dataclass(frozen=True)
class Task:
    """What is measured in one environment.

    Attributes:
      behaviour: the gin file, and bindings, of the run that the recorded policies come from.
      agents: label -> gin file and bindings of an algorithm. One line adds an algorithm.
      episodes: episodes in each recorded data set.
      eval_episodes: episodes of the evaluation of each run.
      medium_epsilon: the share of random actions of the medium policy.
    """

    behaviour: Sequence[str]
    agents: Mapping[str, Sequence[str]]
    episodes: int
    eval_episodes: int = 100
    medium_epsilon: float = 0.2

    @property
    def evaluation(self) -> tuple[str, ...]:
        """Bindings: the last policy alone is evaluated."""
        return (
            f'evaluate.evaluate.num_episodes={self.eval_episodes}',
            'evaluate.evaluate.target_return=None',
            'train.Intervals.export_interval_steps=1_000_000_000',
        )


TASKS = {
    'cartpole': Task(
        ('dqn_cartpole', 'train.Intervals.export_interval_steps=250'),
        {'BC': ('bc_cartpole',), 'CQL': ('discrete_cql_cartpole',), 'IQL': ('iql_cartpole',)},
        episodes=300,
    ),
    'pendulum': Task(
        ('sac_pendulum', 'train.Intervals.export_interval_steps=250'),
        {
            'BC': ('bc_pendulum',),
            'IQL': ('iql_pendulum',),
            'CQL': ('cql_pendulum',),
            'Cal-QL': ('cal_ql_pendulum',),
            'TD3+BC': ('td3_bc_pendulum',),
            'ReBRAC': ('rebrac_pendulum',),
            'AWAC': ('awac_pendulum',),
        },
        episodes=300,
    ),
    'reacher': Task(
        (
            'sac_pendulum',
            *_REACHER,
            'train.StopConditions.num_train_steps=20_000',
            'train.Intervals.export_interval_steps=500',
            'evaluate.evaluate.target_return=None',
        ),
        {
            'BC': ('bc_pendulum', *_REACHER),
            'IQL': ('iql_pendulum', *_REACHER, 'iql.IQLLoss.reward_scale=1.0'),
            'CQL': ('cql_pendulum', *_REACHER),
        },
        episodes=500,
    ),
    'halfcheetah': Task(
        (
            'sac_halfcheetah',
            'train.StopConditions.num_train_steps=200_000',
            'train.Intervals.export_interval_steps=5_000',
            'evaluate.evaluate.target_return=None',
        ),
        {
            'BC': ('bc_halfcheetah',),
            'IQL': ('iql_halfcheetah',),
            'CQL': (
                'cql_pendulum',
                *_CHEETAH,
                "optimizers.OptimizerOptions.learning_rate={'actor': 1e-4, 'critic': 3e-4}",
            ),
            'TD3+BC': ('td3_bc_pendulum', *_CHEETAH, *_TD3_RATES),
        },
        episodes=100,
        eval_episodes=20,
    ),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run: an algorithm on one data set with one seed."""

    task: str
    level: str
    agent: str
    seed: int
    episodes: int  # in each recorded data set
    settings: tuple[str, ...]  # the gin file and all bindings but the seeds

    def folder(self, root: pathlib.Path) -> pathlib.Path:
        """Returns the run's directory, another one for other settings."""
        settings = hashlib.sha256(json.dumps([self.episodes, *self.settings]).encode()).hexdigest()[:8]
        return root / self.task / self.level / self.agent.replace('/', '_') / f'seed_{self.seed}_{settings}'


def main() -> int:
    """Makes what is missing, prints the tables; returns 1 if a cell failed or is missing."""
    options = _options()
    root, begun = options.root_dir, time.monotonic()
    tasks = {name: _changed(name, TASKS[name], options) for name in options.tasks}
    cells = [
        Cell(name, level, agent, seed, task.episodes, (*settings, *options.gin_bindings, *task.evaluation))
        for seed in range(1, options.seeds + 1)
        for name, task in tasks.items()
        for level in options.levels
        for agent, settings in task.agents.items()
        if not options.agents or agent in options.agents
    ]
    failed = []
    for cell in cells:
        if cell in _results(root):
            continue
        if options.max_secs is not None and time.monotonic() - begun > options.max_secs:
            break
        try:
            _make(root, cell, tasks[cell.task], options)
        except (subprocess.SubprocessError, RuntimeError, UserError) as error:
            failed.append(cell)
            print(f'FAILED {cell.task}, {cell.level}, {cell.agent}, seed {cell.seed}: {error}', flush=True)
    results = _results(root)
    found = [results[cell] for cell in cells if cell in results]
    print(offline_report.table(found, options.seeds))
    print(offline_report.verdicts(found))
    print(f'{len(found)} of {len(cells)} cells are done, {len(failed)} failed')
    return int(len(found) < len(cells))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--root_dir', type=pathlib.Path, required=True, help='holds runs, data and results')
    parser.add_argument('--tasks', nargs='+', choices=TASKS, default=list(TASKS))
    parser.add_argument('--levels', nargs='+', choices=offline_report.LEVELS, default=['medium', 'expert', 'mixed'])
    parser.add_argument('--agents', nargs='+', default=[], help='labels, such as BC IQL; default: all of the table')
    parser.add_argument(
        '--add', action='append', default=[], metavar='TASK:LABEL=GIN_FILE[;BINDING...]', help='one more algorithm'
    )
    parser.add_argument('--seeds', type=int, default=5, help='runs of each algorithm, with the seeds 1, 2, ...')
    parser.add_argument('--gin_bindings', action='append', default=[], help='for all algorithms')
    parser.add_argument('--episodes', type=int, default=None, help="episodes in each data set; default: the task's")
    parser.add_argument('--eval_episodes', type=int, default=None, help="default: the task's")
    parser.add_argument('--max_secs', type=float, default=None, help='begins no cell after so long')
    parser.add_argument('--cell_secs', type=float, default=7200.0, help='ends any of its programs that takes longer')
    parser.add_argument('--quick', action='store_true', help='one short cell, to see whether this program works')
    options = parser.parse_args()
    if options.quick:
        options.tasks, options.levels, options.agents, options.seeds = ['cartpole'], ['medium'], ['BC'], 1
        options.episodes, options.eval_episodes = 20, 10
        options.gin_bindings += ['train.StopConditions.num_train_steps=500']
        options.root_dir /= 'quick'
    options.root_dir = options.root_dir.resolve()
    return options


def _changed(name: str, task: Task, options: argparse.Namespace) -> Task:
    """Returns the task with what the flags change."""
    agents = dict(task.agents)
    for text in options.add:
        head, _, settings = text.partition('=')
        where, _, label = head.partition(':')
        if where not in TASKS or not label or not settings:
            raise SystemExit(f'got --add={text!r}; need TASK:LABEL=GIN_FILE, with one of {", ".join(TASKS)}')
        if where == name:
            agents[label] = tuple(settings.split(';'))
    return dataclasses.replace(
        task,
        agents=agents,
        episodes=options.episodes or task.episodes,
        eval_episodes=options.eval_episodes or task.eval_episodes,
    )


def _make(root: pathlib.Path, cell: Cell, task: Task, options: argparse.Namespace) -> None:
    """Makes one cell, and what it needs first; adds its result to the file."""
    data = [_data(root, cell.task, task, level, options) for level in _parts(cell.level)]
    folder = cell.folder(root)
    gin_file, *bindings = cell.settings
    seeded = [*bindings, f'train.Initial.seed={cell.seed}', f'evaluate.evaluate.seed={1000 + cell.seed}']
    flags = [f'--root_dir={folder}', f'--gin_file={gin_file}', *(f'--gin_bindings={each}' for each in seeded)]
    print(f'{cell.task}, {cell.level}, {cell.agent}, seed {cell.seed}', flush=True)
    start = time.monotonic()
    _run(folder, 'train_offline', [*flags, *(f'--data={each}' for each in data)], options.cell_secs)
    train_secs = time.monotonic() - start
    _run(folder, 'evaluate', flags, options.cell_secs)
    done = read_json(RunDir(folder).done)
    if done is None:
        raise RuntimeError(f'got no {RunDir(folder).done}; see the *.out files beside it')
    facts = [_facts(directory) for directory in data]
    ends = [_facts(_data(root, cell.task, task, level, options)) for level in ('random', 'expert')]
    row = {
        **dataclasses.asdict(cell),
        'mean_return': done['evaluation']['mean_return'],
        'eval_episodes': done['evaluation']['num_episodes'],
        'train_step': done['evaluation']['train_step'],
        'random_return': ends[0]['mean_return'],
        'expert_return': ends[1]['mean_return'],
        'data_return': _mean_of(facts),
        'data_steps': sum(each['steps'] for each in facts),
        'train_secs': round(train_secs, 1),
    }
    path = root / 'results.jsonl'
    torn = path.exists() and not path.read_bytes().endswith(b'\n')  # where an earlier call was killed
    with path.open('a', encoding='utf-8') as file:
        file.write('\n' * torn + json.dumps(row) + '\n')


def _parts(level: str) -> Sequence[str]:
    return _MIXED if level == 'mixed' else (level,)


def _mean_of(facts: Iterable[Mapping[str, float]]) -> float:
    """The mean return of the episodes of several data sets."""
    known = list(facts)
    return sum(each['mean_return'] * each['episodes'] for each in known) / sum(each['episodes'] for each in known)


def _data(root: pathlib.Path, name: str, task: Task, level: str, options: argparse.Namespace) -> pathlib.Path:
    """Records a data set, or what is missing of it; returns its directory."""
    directory = root / name / 'data' / level
    if sum(shard.episodes for shard in find_shards(directory)) >= task.episodes:
        return directory
    behaviour = _behaviour(root, name, task, options)
    which = {
        'random': lambda: ['--policy=random', '--seed=1'],
        'medium': lambda: [
            f'--train_step={_medium_step(root, name, task, options)}',
            f'--epsilon={task.medium_epsilon}',
            '--seed=2',
        ],
        'expert': lambda: ['--seed=3'],
    }[level]()
    gin_file, *bindings = task.behaviour
    flags = [
        f'--root_dir={behaviour}',
        f'--gin_file={gin_file}',
        *(f'--gin_bindings={binding}' for binding in bindings),
        f'--output={directory}',
        f'--episodes={task.episodes}',
        *which,
    ]
    print(f'{name}: records {task.episodes} episodes of {level}', flush=True)
    _run(root / name, 'data', ['record', *flags], options.cell_secs, f'record_{level}')
    return directory


def _behaviour(root: pathlib.Path, name: str, task: Task, options: argparse.Namespace) -> pathlib.Path:
    """Trains the policies to record, or goes on; returns the run's directory."""
    directory = root / name / 'behaviour'
    if RunDir(directory).done.exists():
        return directory
    gin_file, *bindings = task.behaviour
    bindings += ['train.ExportOptions.keep_last=10_000']
    bindings += [
        f'{seed}=1' for seed in ('train.Initial.seed', 'collect_settings.CollectOptions.seed', 'evaluate.evaluate.seed')
    ]
    if options.quick:
        bindings += ['train.StopConditions.num_train_steps=1500', 'evaluate.evaluate.num_episodes=5']
    flags = [f'--gin_bindings={binding}' for binding in bindings]
    print(f'{name}: trains the policies to record, {gin_file}', flush=True)
    command = [f'--root_dir={directory}', f'--gin_file={gin_file}', *flags]
    _run(root / name, 'launch', command, options.cell_secs, 'behaviour')
    return directory


def _medium_step(root: pathlib.Path, name: str, task: Task, options: argparse.Namespace) -> int:
    """Returns the train step of the evaluated policy nearest to halfway between random actions and the expert."""
    random = _facts(_data(root, name, task, 'random', options))['mean_return']
    run_dir = RunDir(root / name / 'behaviour')
    done = read_json(run_dir.done) or {}
    middle = (random + done['evaluation']['mean_return']) / 2
    there = [
        evaluation
        for evaluation in EvaluationRecord(run_dir.evaluations).evaluations
        if (run_dir.greedy_policy / str(evaluation['train_step'])).exists()
    ]
    return int(min(there, key=lambda each: abs(each['mean_return'] - middle))['train_step'])


def _facts(directory: pathlib.Path) -> dict[str, float]:
    """Returns a data set's episodes, steps and mean return, which it keeps beside the directory."""
    reader = EpisodeReader(Dataset([str(directory)]))
    kept = directory.with_name(f'{directory.name}.json')
    facts = read_json(kept)
    if facts is None or facts['episodes'] != reader.num_episodes:
        returns = [float(episode['reward'].sum()) for episode in reader.episodes()]
        facts = {'episodes': len(returns), 'steps': reader.num_steps, 'mean_return': float(np.mean(returns))}
        kept.write_text(json.dumps(facts))
    return facts


def _run(folder: pathlib.Path, program: str, flags: Sequence[str], secs: float, name: str = '') -> None:
    """Runs one of the programs; its output goes to a file, whose end is in the error if it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f'{name or program}.out'
    with log.open('w', encoding='utf-8') as output:
        command = [sys.executable, '-m', *console_programs.words(program), *flags]
        stdio: Any = {'stdin': subprocess.DEVNULL, 'stdout': output, 'stderr': subprocess.STDOUT}
        code = subprocess.run(command, cwd=ROOT, timeout=secs, check=False, **stdio).returncode
    if code:
        last = ' '.join(log.read_text(encoding='utf-8', errors='replace').splitlines()[-3:])
        raise RuntimeError(f'got exit status {code} of {program}, see {log}: {last}')


def _results(root: pathlib.Path) -> dict[Cell, dict[str, Any]]:
    """Returns the rows of the results' file by their cells; an incomplete last line does not count."""
    path = root / 'results.jsonl'
    rows = {}
    for line in path.read_text(encoding='utf-8').splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        fields = {field.name: row[field.name] for field in dataclasses.fields(Cell)}
        rows[Cell(**fields | {'settings': tuple(row['settings'])})] = row
    return rows


if __name__ == '__main__':
    sys.exit(main())
