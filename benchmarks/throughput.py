"""Environment steps/s of PPO-like training, end to end, beside the fastest libraries; seconds to a return, CPU, memory.

    python benchmarks/throughput.py --json=FILE --sample_factory_python=peers_sf/bin/python \\
        --peers_python=peers_environment/bin/python

PPO, IMPALA and APPO, each in one process (`tflearn synchronous`) and as separate jobs (replay server, collector,
learner), beside Sample Factory's APPO (2.1.1), SBX's PPO (JAX) and Stable-Baselines3's (torch). All have the same game,
number of environments, rollouts, networks, minibatches, epochs, discounts and constant learning rate, those of `TASKS`
(16 environments for 32 or 128 steps each, or 32 for 16): a side takes several epochs of minibatches, or trains "once"
on each step (IMPALA, APPO; PPO and Sample Factory with one epoch of one batch). What normalizes observations, rewards
and values is each library's own. Sample Factory steps the same batch of environments as ours in one call
(`batched_sampling`), which is its fastest way, in one process (`serial_mode`) or in several; "workers" is as its
examples start it.

A run lasts --secs from its first environment step. Steps/s are those between two ends of episodes in its part after
--warm_secs; seconds to the return count from the first step to the last of the first 20 episodes in a row with the
task's mean return, wherever they were played. CPU is that of all of the side's processes in the same part, memory the
sum of their proportional set sizes at its end. Rounds are interleaved; what is in --json is not run again. A ratio is
the median of the rounds' ratios to the fastest other library that trains as often on a step.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, recorded_environment, recorded_runs  # noqa: E402
from tests.testing import console_programs  # noqa: E402

_OFTEN = 10**9


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, and how on all sides.

    Attributes:
      environment: gymnasium's name, or 'minatar' for MinAtar's Breakout.
      goal: the mean return whose seconds are measured.
      learning_rate: of Adam, constant.
      discount: per environment step.
      lambda_: of the advantages.
      entropy: the coefficient.
      units: of the layers.
      filters: of the convolution of 3 x 3 before them; 0 has none, and separate networks for policy and values.
      num_environments: stepped together.
      rollout: environment steps.
      minibatch: environment steps, where there are several epochs.
      epochs: of PPO; a batch of IMPALA and APPO has all steps of the rollouts.
      deviation: the initial standard deviation of continuous actions, which are from -1 to 1; 0: they are discrete.
      normalizes_values: whether our PPO does, as Sample Factory always does.
    """

    environment: str
    goal: float
    learning_rate: float
    discount: float
    lambda_: float
    entropy: float = 0.0
    units: Sequence[int] = (64, 64)
    filters: int = 0
    num_environments: int = 16
    rollout: int = 32
    minibatch: int = 256
    epochs: int = 4
    deviation: float = 0.0
    normalizes_values: bool = False

    @property
    def batch(self) -> int:
        """Environment steps of an iteration."""
        return self.num_environments * self.rollout


TASKS = {
    'cartpole': Task('CartPole-v1', 475.0, 1e-3, 0.98, 0.8),
    # The packaged `ppo_cartpole`'s environments, rollouts and epochs.
    'cartpole_packaged': Task('CartPole-v1', 475.0, 1e-3, 0.98, 0.8, num_environments=32, rollout=16, epochs=20),
    'minatar': Task('minatar', 5.0, 1e-3, 0.99, 0.95, 0.01, (128,), 16, normalizes_values=True),
    # Not v5, which Sample Factory's gymnasium has not.
    'halfcheetah': Task('HalfCheetah-v4', 500.0, 1e-3, 0.99, 0.95, rollout=128, epochs=10, deviation=1.0),
}


@dataclasses.dataclass(frozen=True)
class Side:
    """One side.

    Attributes:
      algorithm: of ours, a file in gin/algorithms; '' for others.
      programs: ours.
      library: of throughput_peers.py.
      flags: of the library.
      is_once: whether each step is trained on once.
    """

    algorithm: str = ''
    programs: Sequence[str] = recorded_runs.JOBS
    library: str = ''
    flags: Sequence[str] = ()
    is_once: bool = False


_SERIAL = ('--serial_mode=True', '--async_rl=False')
_BATCHED = ('--batched_sampling=True', '--num_workers=1', '--num_envs_per_worker=1', '--worker_num_splits=1')
_WORKERS = ('--num_workers=2', '--num_envs_per_worker=8')


def _own(name: str, algorithm: str, is_once: bool) -> dict[str, Side]:
    return {
        f'{name}, one process': Side(algorithm, ('synchronous',), is_once=is_once),
        f'{name}, jobs': Side(algorithm, is_once=is_once),
    }


def _factory(name: str, *flags: str) -> dict[str, Side]:
    return {
        f'Sample Factory, {name}': Side(library='sample_factory', flags=flags),
        f'Sample Factory, once, {name}': Side(library='sample_factory', flags=flags, is_once=True),
    }


SIDES: dict[str, Side] = {
    **_own('PPO', 'ppo', is_once=False),
    **_own('PPO, once', 'ppo', is_once=True),
    **_own('IMPALA', 'impala', is_once=True),
    **_own('APPO', 'appo', is_once=True),
    **_factory('one process', *_SERIAL, *_BATCHED),
    **_factory('asynchronous', *_BATCHED),
    **_factory('workers', *_WORKERS),
    'SBX PPO': Side(library='sbx'),
    'SBX PPO, once': Side(library='sbx', is_once=True),
    'SB3 PPO': Side(library='sbx', flags=('--sb3',)),
}


def main() -> None:
    """Makes the runs that are missing, prints the tables."""
    parser = command_line.parser(__doc__, 'keeps the figures of each run')
    parser.add_argument('--tasks', nargs='+', choices=[*TASKS], default=[*TASKS])
    parser.add_argument('--sides', nargs='+', choices=[*SIDES], default=[*SIDES])
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--secs', type=float, default=30.0, help='of a run, from its first environment step')
    parser.add_argument('--warm_secs', type=float, default=8.0, help='of which the first do not count for steps/s')
    parser.add_argument('--gin_bindings', action='append', default=[], help='for our sides')
    parser.add_argument('--sample_factory_python', type=pathlib.Path, default=ROOT / 'peers_sf' / 'bin' / 'python')
    parser.add_argument('--peers_python', type=pathlib.Path, default=ROOT / 'peers_environment' / 'bin' / 'python')
    parser.add_argument('--max_secs', type=float, default=None, help='begins no run after so long')
    parser.add_argument('--logs', type=pathlib.Path, default=None, help='keeps the runs')
    options = parser.parse_args()
    found: dict[str, Any] = command_line.kept(options.json)
    begun = time.monotonic()
    for number in range(options.rounds):
        for task in options.tasks:
            for side in options.sides:
                key = f'{task}: {side}: {number}'
                if key in found or not _is_possible(TASKS[task], SIDES[side], options):
                    continue
                if options.max_secs and time.monotonic() - begun > options.max_secs:
                    continue
                found[key] = measure(TASKS[task], SIDES[side], number + 1, options)
                print(key, found[key], file=sys.stderr, flush=True)
                command_line.write(options.json, found)
    for task in options.tasks:
        print(f'\n{task}\n\n{table(task, options.sides, found)}')


def _python(side: Side, options: argparse.Namespace) -> pathlib.Path:
    return options.sample_factory_python if side.library == 'sample_factory' else options.peers_python


def _is_possible(task: Task, side: Side, options: argparse.Namespace) -> bool:
    # Networks of images of 10 x 10 are none of SBX's.
    return not side.library or (_python(side, options).exists() and not (task.filters and side.library == 'sbx'))


def measure(task: Task, side: Side, seed: int, options: argparse.Namespace) -> dict[str, float | None]:
    """Makes a run; returns its figures."""
    with contextlib.ExitStack() as stack:
        root = options.logs or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = pathlib.Path(tempfile.mkdtemp(dir=root))
        path = folder / 'episodes.jsonl'
        recorded_runs.give(path)
        run = _ours if side.algorithm else _theirs
        stack.enter_context(run(task, side, path, seed, options))
        recorded_runs.wait(lambda: recorded_environment.read(path)[0] is not None, recorded_runs.START_SECS)
        start, _ = recorded_environment.read(path)
        if start is None:
            raise RuntimeError(f'got no environment step in {folder}; see its log files')
        warm, end = start + options.warm_secs, start + options.secs
        before, after = (_cpu_secs(at) for at in (warm, end))
        memory = _memory_mb()
        _, episodes = recorded_environment.read(path)
        outcome = recorded_runs.read(path, task.goal, options.secs)
    return {
        'steps_per_sec': steps_per_sec(episodes, warm, end),
        'secs_to_return': outcome.secs,
        'command_secs_to_return': outcome.command_secs,
        'steps_to_return': outcome.env_steps,
        'cores': (after - before) / (end - warm),
        'memory_mb': memory,
    }


def steps_per_sec(episodes: Sequence[tuple[float, float, int]], begin: float, end: float) -> float | None:
    """Returns environment steps/s between the ends of the first and the last episode of a part of a run.

    Args:
      episodes: (time, return, environment steps) of each, in their order.
      begin: the time at which the part begins.
      end: the time at which it ends.

    Returns:
      None if fewer than two episodes ended at different times in it.
    """
    timed = [episode for episode in episodes if begin <= episode[0] <= end]
    if not timed or timed[0][0] == timed[-1][0]:
        return None
    return (timed[-1][2] - timed[0][2]) / (timed[-1][0] - timed[0][0])


def _cpu_secs(at: float) -> float:
    """Waits until a time, and returns the CPU time of the processes that come from this one, and run then [s]."""
    threading.Event().wait(max(0.0, at - time.time()))
    return sum(ticks for _, ticks in _descendants()) / os.sysconf('SC_CLK_TCK')


def _memory_mb() -> float:
    """Returns the sum of their proportional set sizes."""
    total = 0
    for pid, _ in _descendants():
        with contextlib.suppress(OSError), open(f'/proc/{pid}/smaps_rollup', encoding='utf-8') as lines:
            total += next(int(line.split()[1]) for line in lines if line.startswith('Pss:'))
    return total / 1e3


def _descendants() -> list[tuple[int, int]]:
    """Returns (process, CPU time [ticks]) of all processes that come from this one."""
    children: dict[int, list[tuple[int, int]]] = {}
    for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(')')[2].split()
            children.setdefault(int(fields[1]), []).append((int(path.parent.name), int(fields[11]) + int(fields[12])))
    found, todo = [], [os.getpid()]
    while todo:
        found += (its := children.get(todo.pop(), []))
        todo += [pid for pid, _ in its]
    return found


@contextlib.contextmanager
def _ours(task: Task, side: Side, path: pathlib.Path, seed: int, options: argparse.Namespace) -> Iterator[None]:
    bindings = [*_bindings(task, side), *options.gin_bindings]
    flags = recorded_runs.flags(f'algorithms/{side.algorithm}', path, seed, bindings, side.programs)
    with contextlib.ExitStack() as stack:
        for job in side.programs:
            command = [sys.executable, '-m', *console_programs.words(job), *flags]
            stack.enter_context(recorded_runs.process(command, path.with_name(f'{job}.log')))
        yield


def _bindings(task: Task, side: Side) -> list[str]:
    """Returns the gin statements of a task."""
    loss = 'ppo.PPOLoss' if side.algorithm == 'ppo' else 'impala.ImpalaLoss'
    values: dict[str, Any] = {
        f'{loss}.gamma': task.discount,
        f'{loss}.lambda_': task.lambda_,
        f'{loss}.entropy_coefficient': task.entropy,
        'optimizers.OptimizerOptions.learning_rate': task.learning_rate,
        'networks.NetworkOptions.fc_layer_params': tuple(task.units),
        'networks.NetworkOptions.shared': bool(task.filters),
        'collect.collect.num_environments': task.num_environments,
        'experience.Slicing.sequence_length': task.rollout + 1,
        'experience.Slicing.stride': task.rollout,
        'experience.Slicing.pad_episodes': False,
        'experience.Slicing.cross_episodes': True,
        'experience.BatchItems.per_replica': task.num_environments,
        'experience.Queue.max_size': 2 * task.num_environments,
        'train.StopConditions.num_train_steps': _OFTEN,
        'train.Intervals.export_interval_steps': _OFTEN,
        'train.SummaryOptions.interval_steps': 100_000,
    }
    lines = []
    if task.filters:
        values['train.Device.intra_op_threads'] = 1
    else:  # convolutions are slower with XLA; 'auto' would train without it for 10,000 train steps
        lines = ['from tflearn.learner import train_loop', 'train.LearnerOptions.loop=@train_loop.LoopOptions()']
        values['train_loop.LoopOptions.jit_compile'] = True
    if side.algorithm == 'ppo':
        values |= {
            'optimizers.OptimizerOptions.gradient_clipping': 0.5,
            'experience.Iteration.num_epochs': 1 if side.is_once else task.epochs,
            'experience.Iteration.minibatch_steps': task.batch if side.is_once else task.minibatch,
        }
        values['ppo.make_agent.normalize_values'] = task.normalizes_values
        values |= {'ppo.make_agent.initial_deviation': task.deviation} if task.deviation else {}
    if task.filters:
        values['networks.NetworkOptions.conv_layer_params'] = ((task.filters, 3, 1),)
        values |= {'ppo.make_agent.normalize_observations': False} if side.algorithm == 'ppo' else {}
        lines += ['from tflearn.extensions.tasks import minatar_env', "minatar_env.make.game='breakout'"]
        lines += ['recorded_environment.make.make_environment=@minatar_env.make']
    else:
        lines += [f'gymnasium_env.make.name={task.environment!r}']
    return [*lines, *(f'{name}={value!r}' for name, value in values.items())]


@contextlib.contextmanager
def _theirs(task: Task, side: Side, path: pathlib.Path, seed: int, options: argparse.Namespace) -> Iterator[None]:
    settings = {**dataclasses.asdict(task), 'path': str(path), 'seed': seed}
    if side.is_once:
        settings |= {'minibatch': task.batch, 'epochs': 1}
    program = str(pathlib.Path(__file__).with_name('throughput_peers.py'))
    command = [str(_python(side, options)), program, f'--library={side.library}', f'--settings={json.dumps(settings)}']
    with open(path.with_name('log'), 'w', encoding='utf-8') as log:
        run = subprocess.Popen([*command, *side.flags], stdout=log, stderr=log, cwd=path.parent, start_new_session=True)
        try:
            yield
        finally:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def table(task: str, sides: Sequence[str], found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the medians of the rounds of a task as a table."""
    rounds: dict[str, dict[str, Mapping[str, Any]]] = {}
    for key, figures in found.items():
        its_task, side, number = key.split(': ')
        if its_task == task and side in sides:
            rounds.setdefault(side, {})[number] = figures
    lines = [
        '| side | environment steps/s | of the fastest other | s to the return | of the fastest other | '
        'from the shell | of the fastest other | steps to it | cores | CPU s of 100,000 steps | MB |',
        '|---|---|---|---|---|---|---|---|---|---|---|',
    ]
    compared = (('steps_per_sec', ',.0f', max), ('secs_to_return', '.1f', min), ('command_secs_to_return', '.1f', min))
    for side, its in rounds.items():
        cells = [side]
        for name, form, best in compared:
            median = _median(its, name)
            median = float('inf') if name == 'steps_per_sec' and not median else median  # it is not known
            cells += [_form(median, form), _ratio(its, _fastest(rounds, side, name, best), name)]
        cores, rate = _median(its, 'cores'), _median(its, 'steps_per_sec')
        cpu_secs = 1e5 * cores / rate if rate else float('inf')
        cells += [_form(_median(its, 'steps_to_return'), ',.0f'), f'{cores:.2f}', _form(cpu_secs, '.1f')]
        lines.append(f'| {" | ".join(cells)} | {_median(its, "memory_mb"):,.0f} |')
    return '\n'.join(lines)


def _form(value: float, form: str) -> str:
    return '-' if value == float('inf') else format(value, form)


def _figure(figures: Mapping[str, float | None], name: str) -> float:
    """Returns a figure of a run; where it has none, what is worse than that of any run which has one."""
    value = figures[name]
    if value is None:
        return 0.0 if name == 'steps_per_sec' else float('inf')
    return value


def _median(its: Mapping[str, Mapping[str, Any]], name: str) -> float:
    """Returns the median of the rounds, where a run without the figure is worse than any other."""
    return statistics.median(_figure(each, name) for each in its.values())


def _fastest(rounds: Mapping[str, Any], side: str, name: str, best: Any) -> Mapping[str, Any] | None:
    """Returns the rounds of the best other library that trains as often on a step; None for a side of theirs."""
    if SIDES[side].library:
        return None
    others = [
        its for other, its in rounds.items() if SIDES[other].library and SIDES[other].is_once == SIDES[side].is_once
    ]
    return best(others, key=lambda its: _median(its, name)) if others else None


def _ratio(its: Mapping[str, Any], other: Mapping[str, Any] | None, name: str) -> str:
    """Returns the median of the ratios of the rounds that both have; '' if there are none, or neither gets there."""
    rounds = [(its[number], other[number]) for number in its.keys() & other.keys()] if other else []
    if all(side[name] is None for pair in rounds for side in pair):
        return ''
    return _form(statistics.median(_quotient(*(_figure(side, name) for side in pair)) for pair in rounds), '.2f')


def _quotient(a: float, b: float) -> float:
    if a == b:
        return 1.0  # also where neither has the figure
    return a / b if b else float('inf')


if __name__ == '__main__':
    main()
